package structure

import (
	"context"
	"encoding/json"

	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// Fingerprint identifies a run by everything that its result depends on: the model, the text and the options.
func Fingerprint(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (string, error) {
	model, err := m.Fingerprint(ctx)
	if err != nil {
		return "", err
	}
	o.Layers = Share{Keep: o.Layers.Of(m.Blocks())} // however it was said
	return stage.Fingerprint("structure", model, calib.Hash, o.fill())
}

// Manifest is the record of a smaller model, for prune.ManifestFile beside its weights: the same run gives the same
// bytes.
func (p *Plan) Manifest(ctx context.Context, m *lm.Model, calib corpus.Windows) ([]byte, error) {
	model, err := m.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}

	type calibrated struct {
		Hash    string      `json:"hash"`
		Windows int         `json:"windows"`
		SeqLen  int         `json:"seqlen"`
		Mode    corpus.Mode `json:"mode"`
		Seed    uint64      `json:"seed"`
	}
	record := struct {
		Format      string         `json:"format"`
		Version     int            `json:"format_version"`
		Structure   *Plan          `json:"structure"`
		Fingerprint string         `json:"model_fingerprint"` // of the model before
		Calibration calibrated     `json:"calibration"`
		Quantised   []lm.Quantised `json:"source_quantization,omitempty"`
		Remarks     []string       `json:"remarks,omitempty"`
	}{
		Format: "compress pruning", Version: 1, Structure: p, Fingerprint: model,
		Calibration: calibrated{calib.Hash, calib.Count, calib.SeqLen, calib.Mode, calib.Seed},
	}
	record.Quantised, record.Remarks = m.Quantised()

	text, err := json.MarshalIndent(record, "", " ")
	return append(text, '\n'), err
}
