// Package manifest writes what is kept beside a pruned model about its pruning.
package manifest

import (
	"encoding/json"

	"github.com/modelcompress/compress/lm/corpus"
)

// Manifest is what the file holds: of a report, what the device, the time and interruptions have no part in, so
// that the same run gives the same bytes.
type Manifest struct {
	Format      string       `json:"format"`
	Version     int          `json:"format_version"`
	Metric      any          `json:"metric"`
	Options     any          `json:"options"`
	Meaning     string       `json:"pattern_meaning"`
	Fingerprint string       `json:"model_fingerprint"` // of the model before
	Calibration *Calibration `json:"calibration,omitempty"`
	Weights     int64        `json:"weights"` // of the pruned matrices
	Zeros       int64        `json:"zeros"`
	Sparsity    float64      `json:"sparsity"`
	Tensors     []Tensor     `json:"tensors"`
}

// Calibration says which token ids were run through the model, wherever they came from.
type Calibration struct {
	Hash    string      `json:"hash"`
	Windows int         `json:"windows"`
	SeqLen  int         `json:"seqlen"`
	Mode    corpus.Mode `json:"mode"`
	Seed    uint64      `json:"seed"`
}

// Tensor is one matrix with its exact count of zeros.
type Tensor struct {
	Name     string  `json:"name"`
	Weights  int64   `json:"weights"`
	Zeros    int64   `json:"zeros"`
	Sparsity float64 `json:"sparsity"`
	Dense    bool    `json:"dense,omitempty"` // left as it was
}

// Calibrated takes from windows what belongs here; nil of nil.
func Calibrated(w *corpus.Windows) *Calibration {
	if w == nil {
		return nil
	}
	return &Calibration{Hash: w.Hash, Windows: w.Count, SeqLen: w.SeqLen, Mode: w.Mode, Seed: w.Seed}
}

// JSON is the text of the file.
func (m Manifest) JSON() ([]byte, error) {
	m.Format, m.Version = "compress pruning", 1
	text, err := json.MarshalIndent(m, "", " ")
	return append(text, '\n'), err
}
