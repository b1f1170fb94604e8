package prune

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// Report is the record of a run.
type Report struct {
	Options Options `json:"options"` // with the defaults filled in
	Meaning string  `json:"pattern_meaning"`
	Version string  `json:"version"`

	Model       ModelInfo       `json:"model"`
	Calibration *corpus.Windows `json:"calibration,omitempty"` // nil if the metric measures nothing
	Device      kernels.Info    `json:"device"`

	Blocks  []Block  `json:"blocks"`
	Tensors []Tensor `json:"tensors"`
	Total   Total    `json:"total"`
	Notes   []string `json:"notes"`
	Times   Times    `json:"seconds"`
}

// ModelInfo says which model was pruned.
type ModelInfo struct {
	Path       string `json:"path"`
	Type       string `json:"type"`
	Parameters int64  `json:"parameters"`
	// Fingerprint is the SHA-256 over config.json and over the name and size of every weight file with its tensors' names,
	// types, shapes and places. It does not read the weights.
	Fingerprint string `json:"fingerprint"`
}

// Block is what one block loses.
type Block struct {
	Index    int     `json:"index"`
	Target   float64 `json:"target"`             // sparsity asked for
	Outliers float64 `json:"outliers,omitempty"` // OWL: percentage of the scores above M times their mean
	Sparsity float64 `json:"sparsity"`           // zeros of its matrices
	Restored bool    `json:"restored,omitempty"` // taken from an interrupted run
}

// Tensor is one pruned matrix. Zeros are counted in the finished weights, those among them that were zero before.
type Tensor struct {
	Name      string  `json:"name"`
	Block     int     `json:"block"`
	Role      string  `json:"role"`
	Expert    int     `json:"expert"` // -1 outside mixtures
	Shape     [2]int  `json:"shape"`  // as stored
	Group     Group   `json:"group"`
	Target    float64 `json:"target"`
	Kept      int64   `json:"kept"`
	Zeros     int64   `json:"zeros"`
	Sparsity  float64 `json:"sparsity"`
	BadGroups int64   `json:"bad_groups"`            // N:M: groups with fewer zeros than the pattern asks for; always checked, always 0
	Short     int     `json:"short_group,omitempty"` // N:M: inputs in the last group of a neuron, if fewer than M
	Unrouted  bool    `json:"unrouted,omitempty"`
}

// Total sums up.
type Total struct {
	Matrices int     `json:"matrices"`
	Weights  int64   `json:"weights"` // of the pruned matrices
	Zeros    int64   `json:"zeros"`
	Sparsity float64 `json:"sparsity"` // Zeros/Weights
	Overall  float64 `json:"overall"`  // Zeros over all parameters of the model
	Exact    bool    `json:"pattern_exact"`
	Restored int     `json:"restored"`     // matrices taken from an interrupted run
	Unrouted int     `json:"unrouted"`     // matrices of experts that no calibration token reached, ranked by |W|
	Short    int     `json:"short_groups"` // N:M: matrices whose inputs are not a multiple of M
}

// Times are wall-clock seconds.
type Times struct {
	Allocate   float64 `json:"allocate"`
	Statistics float64 `json:"statistics"`
	Select     float64 `json:"select"`
	Propagate  float64 `json:"propagate"`
	Save       float64 `json:"save"`
	Total      float64 `json:"total"`
}

// add counts a finished matrix.
func (r *Report) add(t Tensor) {
	t.Sparsity = float64(t.Zeros) / float64(t.Zeros+t.Kept)
	r.Tensors = append(r.Tensors, t)
	r.Total.Matrices++
	r.Total.Weights += t.Zeros + t.Kept
	r.Total.Zeros += t.Zeros
	if t.Unrouted {
		r.Total.Unrouted++
	}
	if t.Short > 0 {
		r.Total.Short++
	}
}

// close computes what depends on all matrices.
func (r *Report) close() {
	r.Total.Exact = r.Options.Pattern.Structured()
	type sum struct{ zeros, weights int64 }
	blocks := make([]sum, len(r.Blocks))
	for _, t := range r.Tensors {
		blocks[t.Block].zeros += t.Zeros
		blocks[t.Block].weights += t.Zeros + t.Kept
		r.Total.Exact = r.Total.Exact && t.BadGroups == 0
	}
	for i, b := range blocks {
		r.Blocks[i].Sparsity = ratio(b.zeros, b.weights)
	}
	r.Total.Sparsity = ratio(r.Total.Zeros, r.Total.Weights)
	r.Total.Overall = ratio(r.Total.Zeros, r.Model.Parameters)
	if n := r.Total.Unrouted; n > 0 {
		r.note("%d matrices of experts saw no calibration token and were ranked by |W|", n)
	}
	if n := r.Total.Short; n > 0 {
		r.note("the inputs of %d matrices are not a multiple of %d: the short last group of a neuron loses %d too, or all it has",
			n, r.Options.Pattern.M, r.Options.Pattern.N)
	}
	if n := r.Total.Restored; n > 0 {
		r.note("%d matrices were taken from an interrupted run; counts of experts without tokens cover the others", n)
	}
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Fingerprint identifies a job: the same model, calibration tokens and options. It is what a saver's options should carry so
// that a resumed run cannot continue another job.
func Fingerprint(m *lm.Model, calib corpus.Windows, o Options) (string, error) {
	o.setDefaults()
	model, err := modelFingerprint(m)
	if err != nil {
		return "", err
	}
	calibration := calib.Hash
	if o.Metric.Needs == 0 {
		calibration = ""
	}
	job, err := json.Marshal(struct {
		Model, Calibration string
		Options            Options
	}{model, calibration, o})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(job)
	return hex.EncodeToString(sum[:]), nil
}

// modelFingerprint hashes what describes the weights without reading them.
func modelFingerprint(m *lm.Model) (string, error) {
	h := sha256.New()
	config, err := os.ReadFile(filepath.Join(m.Path(), "config.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	fmt.Fprintf(h, "%d\n%s\n", len(config), config)
	src := m.Source()
	for _, shard := range src.Shards() {
		f := src.Shard(shard)
		fmt.Fprintf(h, "%q %d\n", shard, f.Size())
		for _, name := range f.Names() {
			info, _ := f.Info(name)
			fmt.Fprintf(h, "%q %s %v %d\n", name, info.DType, info.Shape, info.Offset)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// version names the build: the module's version, or its revision.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v += " " + s.Value
		case "vcs.modified":
			if s.Value == "true" {
				v += " (modified)"
			}
		}
	}
	return v
}
