package prune

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// ManifestFile is the name of a pruned folder's record: JSON with the metric, the options, the hash and seed of
// the calibration ids, the fingerprint of the model before, and the exact zeros of every matrix. The same run
// gives the same bytes.
const ManifestFile = "pruning.json"

// attachManifest adds the record to the output.
func (w *walk) attachManifest() error {
	r := w.report
	m := manifest{
		Metric: r.Options.Metric, Options: r.Options, Meaning: r.Meaning, Fingerprint: r.Model.Fingerprint,
		Calibration: CalibratedBy(r.Calibration), Weights: r.Total.Weights, Zeros: r.Total.Zeros,
		Sparsity: r.Total.Sparsity, Searched: r.Searched,
	}

	for _, t := range r.Tensors {
		m.Tensors = append(m.Tensors, recorded{
			Name: t.Name, Weights: t.Kept + t.Zeros, Zeros: t.Zeros,
			Sparsity: t.Sparsity, Dense: t.Dense, Rank: t.Rank,
		})
	}

	m.Quantised, m.Remarks = w.m.Quantised()
	m.Remarks = w.lowRankRemarks(m.Remarks)
	text, err := m.text()
	if err != nil {
		return err
	}

	return w.o.Out.AddFile(ManifestFile, text)
}

// manifest is what the file holds: of a report, what the device, the time and interruptions have no part in, so
// that the same run gives the same bytes.
type manifest struct {
	Format      string      `json:"format"`
	Version     int         `json:"format_version"`
	Metric      any         `json:"metric"`
	Options     any         `json:"options"`
	Meaning     string      `json:"pattern_meaning"`
	Fingerprint string      `json:"model_fingerprint"` // of the model before
	Calibration *Calibrated `json:"calibration,omitempty"`
	Weights     int64       `json:"weights"` // of the pruned matrices
	Zeros       int64       `json:"zeros"`
	Sparsity    float64     `json:"sparsity"`
	Searched    *Searched   `json:"searched,omitempty"`
	Tensors     []recorded  `json:"tensors"`
	// the model before, where its values are those of a quantised form
	Quantised []lm.Quantised `json:"source_quantization,omitempty"`
	Remarks   []string       `json:"remarks,omitempty"` // what a reader must know
}

// Calibrated says which token ids were run through the model, wherever they came from.
type Calibrated struct {
	Hash    string      `json:"hash"`
	Windows int         `json:"windows"`
	SeqLen  int         `json:"seqlen"`
	Mode    corpus.Mode `json:"mode"`
	Seed    uint64      `json:"seed"`
}

// recorded is one matrix with its exact count of zeros.
type recorded struct {
	Name     string  `json:"name"`
	Weights  int64   `json:"weights"`
	Zeros    int64   `json:"zeros"`
	Sparsity float64 `json:"sparsity"`
	Dense    bool    `json:"dense,omitempty"` // left as it was
	Rank     int     `json:"rank,omitempty"`  // oats: of the low-rank part
}

// maxManifest bounds the record that is read back: a few times that of the largest models.
const maxManifest = 256 << 20

// earlier is what the record of a finished output says.
type earlier struct {
	searched *Searched        // nil: nothing was searched for
	zeros    map[string]int64 // of each matrix; nil without a record, which outputs of early builds do not have
}

// readRecord reads the record of a finished output.
func readRecord(dir string) (r earlier, err error) {
	text, err := safefile.ReadFile(filepath.Join(dir, ManifestFile), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}

	var m struct {
		Searched *Searched  `json:"searched"`
		Tensors  []recorded `json:"tensors"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return r, fmt.Errorf("%s: %w: %w", filepath.Join(dir, ManifestFile), ErrDamaged, err)
	}

	r.searched, r.zeros = m.Searched, map[string]int64{}
	for _, t := range m.Tensors {
		r.zeros[t.Name] = t.Zeros
	}
	return r, nil
}

// asRecorded compares a matrix of a finished output with its record. The weights themselves have no checksum in a
// finished folder, so that damage among those that stayed is not seen here; but a resumed run counts zeros anyway.
func (w *walk) asRecorded(t Tensor) error {
	if want, ok := w.record.zeros[t.Name]; ok && want != t.Zeros {
		return w.fail(t.Name,
			fmt.Errorf("%w: it has %d zeros, and %s says %d", ErrDamaged, t.Zeros, ManifestFile, want))
	}
	return nil
}

// CalibratedBy takes from windows what belongs here; nil of nil.
func CalibratedBy(w *corpus.Windows) *Calibrated {
	if w == nil {
		return nil
	}
	return &Calibrated{Hash: w.Hash, Windows: w.Count, SeqLen: w.SeqLen, Mode: w.Mode, Seed: w.Seed}
}

// text is the text of the file.
func (m manifest) text() ([]byte, error) {
	m.Format, m.Version = "compress pruning", 1
	text, err := json.MarshalIndent(m, "", " ")
	return append(text, '\n'), err
}
