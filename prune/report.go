package prune

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/internal/grads"
)

// Report is the record of a run.
type Report struct {
	Options Options `json:"options"` // with the defaults filled in
	Meaning string  `json:"pattern_meaning"`
	Version string  `json:"version"`

	Model       ModelInfo       `json:"model"`
	Calibration *corpus.Windows `json:"calibration,omitempty"` // nil if the metric measures nothing
	Device      kernels.Info    `json:"device"`

	Searched *Searched `json:"searched,omitempty"` // with allocation search

	Blocks  []Block  `json:"blocks"`
	Tensors []Tensor `json:"tensors"`
	Total   Total    `json:"total"`
	Notes   []string `json:"notes"`
	Times   Times    `json:"timings"`
}

// ModelInfo says which model was pruned.
type ModelInfo struct {
	Path       string `json:"path"`
	Type       string `json:"type"`
	Parameters int64  `json:"parameters"`
	// Fingerprint is that of [lm.Model.Fingerprint]: the SHA-256 over the configuration and every tensor's
	// name, type, shape and bytes.
	Fingerprint string `json:"fingerprint"`
}

// Block is what one block loses.
type Block struct {
	Index    int     `json:"index"`
	Target   float64 `json:"target"`             // sparsity asked for
	Outliers float64 `json:"outliers,omitempty"` // OWL: percentage of the scores above M times their mean
	Exponent float64 `json:"exponent,omitempty"` // Alpha: of the tail of its matrices' spectra, their mean
	Sparsity float64 `json:"sparsity"`           // zeros of its matrices
	Restored bool    `json:"restored,omitempty"` // taken from an interrupted run
}

// Tensor is one pruned matrix. Zeros are counted in the finished weights, those among them that were zero before.
type Tensor struct {
	Name     string  `json:"name"`
	Block    int     `json:"block"`
	Role     string  `json:"role"`
	Expert   int     `json:"expert"` // -1 outside mixtures
	Shape    [2]int  `json:"shape"`  // as stored
	Group    Group   `json:"group"`
	Target   float64 `json:"target"`
	Pattern  Pattern `json:"pattern"`
	Dense    bool    `json:"dense,omitempty"` // left as it is
	Kept     int64   `json:"kept"`
	Zeros    int64   `json:"zeros"`
	Sparsity float64 `json:"sparsity"`
	// N:M: groups with fewer zeros than the pattern asks for; always checked, always 0
	BadGroups int64 `json:"bad_groups"`
	Short     int   `json:"short_group,omitempty"` // N:M: inputs in the last group of a neuron, if fewer than M
	Unrouted  bool  `json:"unrouted,omitempty"`
	Empty     bool  `json:"empty,omitempty"` // all its weights were 0 before
	Idle      bool  `json:"idle,omitempty"`  // all that the metric looks at besides the weights was 0

	Alpha   float64  `json:"alpha,omitempty"`   // group share: the share of its score that every neuron loses
	Damping *Damping `json:"damping,omitempty"` // of the Hessian
	Dead    int      `json:"dead,omitempty"`    // inputs that are always 0; an update drops their weights
	Loss    float64  `json:"loss,omitempty"`    // SparseGPT: Σ e²/2 over what went
	Change  *Change  `json:"change,omitempty"`  // with an update of the weights
	Undone  bool     `json:"undone,omitempty"`  // the guard left the matrix without the update
	Swaps   int64    `json:"swaps,omitempty"`   // exchanges of a refined mask, and of DSnoT
	Swapped *Change  `json:"swapped,omitempty"` // with swaps: zeroing by the metric's mask, and by the refined one
	Order   *Order   `json:"order,omitempty"`   // with a permutation

	Rank   int    `json:"rank,omitempty"`   // oats: of the low-rank part
	Stored int64  `json:"stored,omitempty"` // oats: values of both parts
	Split  *Split `json:"split,omitempty"`  // oats; nil: the matrix is of an interrupted run

	// NearTies are weights whose scores are so near the cut (2⁻¹⁸ of themselves) that the host may have chosen
	// otherwise: scores of a formula with sums, logarithms or exponentials, computed on another device.
	NearTies int64 `json:"near_ties,omitempty"`
}

// Change is what an update gained on the outputs over the calibration data, or for DSnoT over up to 512 of its
// tokens, as ‖ΔW·X‖²/‖W·X‖², measured on 64 outputs of the matrix.
type Change struct {
	Masked  float64 `json:"masked"`  // zeroing alone
	Updated float64 `json:"updated"` // with the update
}

// Order is what a permutation gained: sums of the scores that stay.
type Order struct {
	Plain    float64 `json:"plain"` // in the order of the file
	Permuted float64 `json:"permuted"`
}

// Split is what the sparse and the low-rank part together leave of a matrix, each input weighted by its second moment,
// as a fraction of the squares.
type Split struct {
	First float64 `json:"first"` // after the first turn
	Last  float64 `json:"last"`
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
	Dead     int     `json:"dead"`         // inputs of matrices that are always 0, where an update looks
	Short    int     `json:"short_groups"` // N:M: matrices whose inputs are not a multiple of M
	NearTies int64   `json:"near_ties"`    // of all matrices
	// oats: values of the sparse and low-rank parts of all matrices; the others count with what they keep
	Stored int64 `json:"stored,omitempty"`
}

// Times are wall-clock seconds.
type Times struct {
	Gradients  float64 `json:"gradients"`
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

	if r.Options.Metric.splits {
		stored := t.Stored
		if t.Rank == 0 {
			stored = t.Kept
		}
		r.Total.Stored += stored
	}

	r.Total.Dead += t.Dead
	r.Total.NearTies += t.NearTies
	if t.Short > 0 {
		r.Total.Short++
	}
}

// close computes what depends on all matrices.
func (r *Report) close() {
	type sum struct{ zeros, weights int64 }
	blocks := make([]sum, len(r.Blocks))
	structured := 0
	empty := 0
	bad := int64(0)
	idle := []string(nil)
	for _, t := range r.Tensors {
		blocks[t.Block].zeros += t.Zeros
		blocks[t.Block].weights += t.Zeros + t.Kept
		bad += t.BadGroups
		if t.Empty {
			empty++
		}
		if t.Idle {
			idle = append(idle, t.Name)
		}
		// The sums of two parts have no pattern, whatever the sparse one has.
		sums := t.Rank > 0 && !r.Options.LowRank.Apart
		if t.Pattern.Structured() && !t.Dense && !sums {
			structured++
		}
	}

	// Exact says that every group of M has its zeros, which only means something where some matrix has a pattern.
	r.Total.Exact = structured > 0 && bad == 0
	// Of all weights, and of all parameters: embeddings and norms are not pruned.
	r.Total.Sparsity = ratio(r.Total.Zeros, r.Total.Weights)
	r.Total.Overall = ratio(r.Total.Zeros, r.Model.Parameters)
	for i, b := range blocks {
		r.Blocks[i].Sparsity = ratio(b.zeros, b.weights)
	}

	r.noteUnranked(empty, idle)
	r.noteRestored()
	r.noteTied()
	r.noteWorse()
	r.noteMissed()
	if r.Options.TrueSequential && r.Options.Needs()&ofInputs == 0 {
		r.note("the true sequential order has no effect: nothing is measured")
	}
}

// noteUnranked tells of matrices that did not lose what their scores say: without calibration tokens, with groups that
// are too short, or with nothing to rank.
func (r *Report) noteUnranked(empty int, idle []string) {
	if n := r.Total.Unrouted; n > 0 && r.Options.MasksFrom != "" {
		r.note("%d matrices saw no calibration token, as experts may, and were not updated", n)
	} else if n > 0 {
		r.note("%d matrices saw no calibration token, as experts may, or have no gradient, and were ranked by |W|", n)
	}

	if n := r.Total.Short; n > 0 {
		r.note("the inputs of %d matrices are not a multiple of their pattern's length: the short last group of a "+
			"neuron loses as many, or all it has", n)
	}

	if empty > 0 {
		r.note("all weights of %d matrices were 0 before; there is nothing to rank, and they count as pruned", empty)
	}
	if r.Total.Dead > 0 {
		r.note("%d inputs of matrices were 0 throughout; the update dropped their weights", r.Total.Dead)
	}

	r.noteIdle(idle)
}

// noteMissed tells of matrices whose rows' bound on the share of their scores kept them from what was asked.
func (r *Report) noteMissed() {
	missed := slices.DeleteFunc(slices.Clone(r.Tensors),
		func(t Tensor) bool { return t.Group != Share || t.Sparsity > t.Target-.005 })
	if len(missed) > 0 {
		r.note("%d matrices lose less than asked, the first %.1f %%: with group %s no neuron loses more than 80 %% "+
			"of its score", len(missed), 100*missed[0].Sparsity, Share)
	}
}

// mostNames of matrices are in a note.
const mostNames = 5

// noteIdle tells of matrices whose scores are all 0 because their inputs or gradients are.
func (r *Report) noteIdle(names []string) {
	if len(names) == 0 {
		return
	}

	list := strings.Join(names[:min(mostNames, len(names))], ", ")
	if more := len(names) - mostNames; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	r.note("%d matrices had all-zero inputs or gradients, so all their scores are 0; ties were broken by column: %s",
		len(names), list)
}

// ratio is a fraction; 0 of nothing.
func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// tiedMargin is how far a matrix' sparsity may be above what was asked before it is said why.
const tiedMargin = .0005

// noteTied says how many weights went beyond what was asked because their scores equal the threshold of their matrix,
// which happens where weights have few values, as those that were once quantised: they go together, as in the
// published code.
func (r *Report) noteTied() {
	matrices := 0
	more := int64(0)
	weights := int64(0)
	first := ""
	for _, t := range r.Tensors {
		// Ties are taken together only by a threshold over a layer or strip; rows and patterns sort, and cut where
		// asked.
		together := (t.Group == Layer || t.Group == Strip) && !t.Pattern.Structured()
		// Nor do ties say anything of a matrix that was all zeros before.
		if !together || t.Dense || t.Empty || t.Sparsity <= t.Target+tiedMargin {
			continue
		}
		if matrices == 0 {
			first = t.Name
		}

		n := t.Zeros + t.Kept
		matrices++
		more += t.Zeros - int64(t.Target*float64(n))
		weights += n
	}

	if matrices > 0 {
		r.note("%d weights of %d matrices went beyond what was asked (%.2f %% of their weights; the first is %s): "+
			"their scores equal the threshold, and ties go together", more, matrices,
			100*float64(more)/float64(weights), first)
	}
}

// noteWorse says in which blocks an update raised the error of the outputs, as the mean over their matrices.
func (r *Report) noteWorse() {
	masked, updated := make([]float64, len(r.Blocks)), make([]float64, len(r.Blocks))
	undone := 0

	// Sums over a block stand for the means: both have the same number of matrices.
	for _, t := range r.Tensors {
		if t.Change != nil {
			masked[t.Block] += t.Change.Masked
			updated[t.Block] += t.Change.Updated
		}

		if t.Undone {
			undone++
		}
	}

	var worse []int
	for l := range r.Blocks {
		if updated[l] > masked[l] {
			worse = append(worse, l)
		}
	}

	if len(worse) > 0 {
		r.note("update %s raised the error of the outputs of the matrices of %d of %d blocks, among them block %d "+
			"by %.1f %%; a guard of the update leaves such matrices without it",
			r.Options.Update.Name, len(worse), len(r.Blocks), worse[0], 100*(updated[worse[0]]/masked[worse[0]]-1))
	}

	if undone > 0 {
		r.note("the guard left %d of %d matrices without update %s, which raised the error of their outputs", undone,
			len(r.Tensors), r.Options.Update.Name)
	}
}

// noteRestored says what was not done again, and what is therefore not known of it.
func (r *Report) noteRestored() {
	switch n := r.Total.Restored; {
	case n == 0:
	case n == r.Total.Matrices:
		r.note("nothing was left to do: all %d matrices are those of an earlier run", n)
	case slices.ContainsFunc(r.Tensors, func(t Tensor) bool { return t.Expert >= 0 }):
		r.note("%d of %d matrices were taken from an interrupted run; experts without tokens are counted among "+
			"the others only", n, r.Total.Matrices)
	default:
		r.note("%d of %d matrices were taken from an interrupted run", n, r.Total.Matrices)
	}
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Fingerprint identifies a job: the same model, calibration tokens, options and contents of files of gradients
// and masks. It is what a saver's options should carry so that a resumed run cannot continue another job.
func Fingerprint(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (string, error) {
	o.setDefaults()
	model, err := m.Fingerprint(ctx)
	if err != nil {
		return "", err
	}

	calibration := calib.Hash
	if o.Needs() == 0 || o.Norms != nil && !o.NeedsCalibration() {
		calibration = ""
	}
	if o.Norms != nil {
		o.Norms = &Norms{From: o.Norms.hash()} // wherever they come from
	}

	if path := o.MasksFrom; path != "" {
		if o.MasksFrom, err = o.Memo.hash(path, func() (string, error) { return grads.Hash(ctx, path) }); err != nil {
			return "", err
		}
	}

	if path := o.Gradients.File; path != "" {
		if o.Gradients.File, err = o.Memo.hash(path,
			func() (string, error) { return grads.Hash(ctx, path) }); err != nil {
			return "", err
		}

		if o.Needs()&^Gradients == 0 {
			calibration = "" // the gradients stand for it
		}
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
