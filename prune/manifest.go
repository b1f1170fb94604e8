package prune

import (
	"encoding/json"

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
		Calibration: calibratedBy(r.Calibration), Weights: r.Total.Weights, Zeros: r.Total.Zeros,
		Sparsity: r.Total.Sparsity,
	}

	for _, t := range r.Tensors {
		m.Tensors = append(m.Tensors, recorded{
			Name: t.Name, Weights: t.Kept + t.Zeros, Zeros: t.Zeros,
			Sparsity: t.Sparsity, Dense: t.Dense,
		})
	}

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
	Calibration *calibrated `json:"calibration,omitempty"`
	Weights     int64       `json:"weights"` // of the pruned matrices
	Zeros       int64       `json:"zeros"`
	Sparsity    float64     `json:"sparsity"`
	Tensors     []recorded  `json:"tensors"`
}

// calibrated says which token ids were run through the model, wherever they came from.
type calibrated struct {
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
}

// calibratedBy takes from windows what belongs here; nil of nil.
func calibratedBy(w *corpus.Windows) *calibrated {
	if w == nil {
		return nil
	}
	return &calibrated{Hash: w.Hash, Windows: w.Count, SeqLen: w.SeqLen, Mode: w.Mode, Seed: w.Seed}
}

// text is the text of the file.
func (m manifest) text() ([]byte, error) {
	m.Format, m.Version = "compress pruning", 1
	text, err := json.MarshalIndent(m, "", " ")
	return append(text, '\n'), err
}
