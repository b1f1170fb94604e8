package structure

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// Fingerprint identifies a run by everything that its result depends on: the model, the text and the options.
func Fingerprint(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (string, error) {
	model, err := m.Fingerprint(ctx)
	if err != nil {
		return "", err
	}
	// However it was said.
	o.DropLayers, o.KeepLayers = nil, o.given(m.Blocks())
	o.Layers = Share{Keep: o.keeps(m.Blocks())}
	return stage.Fingerprint("structure 2", model, calib.Hash, o.fill())
}

// maxRecord bounds the record of a run, in bytes; every layer and matrix has a line or two in it.
const maxRecord = 64 << 20

// Recall takes the plan from the folder that the same run has finished. The error wraps [lm.ErrDamaged] where the
// record is not one of such a run.
func Recall(m *lm.Model, calib corpus.Windows, o Options, dir string) (*Plan, error) {
	text, err := safefile.ReadIn(dir, prune.ManifestFile, maxRecord)
	if err != nil {
		return nil, err
	}

	var record struct{ Structure Plan }
	p := &record.Structure
	if err := json.Unmarshal(text, &record); err != nil || (p.Depth == nil) == o.shortens() ||
		(p.Width == nil) == o.narrows() || (p.Experts == nil) != o.Experts.Zero() {
		return nil, fmt.Errorf("%s: %w: %s does not say what was taken out", dir, lm.ErrDamaged, prune.ManifestFile)
	}
	p.Options = o.fill()

	var layers []int
	if p.Depth != nil {
		layers = p.Depth.Kept
		given := o.given(m.Blocks())
		if !within(layers, m.Blocks()) || len(layers) != o.keeps(m.Blocks()) ||
			given != nil && !slices.Equal(given, layers) {
			return nil, fmt.Errorf("%s: %w: %s names other layers than there are", dir, lm.ErrDamaged,
				prune.ManifestFile)
		}
	}
	p.Cut, p.Notes, err = o.alike(m, calib, layers)

	return p, err
}

// within reports whether numbers rise and are below n.
func within(list []int, n int) bool {
	last := -1
	for _, i := range list {
		if i <= last || i >= n {
			return false
		}
		last = i
	}
	return true
}

// Manifest is the record of a smaller model, for prune.ManifestFile beside its weights: the same run gives the same
// bytes.
func (p *Plan) Manifest(ctx context.Context, m *lm.Model, calib corpus.Windows) ([]byte, error) {
	model, err := m.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}

	record := struct {
		Format      string            `json:"format"`
		Version     int               `json:"format_version"`
		Structure   *Plan             `json:"structure"`
		Fingerprint string            `json:"model_fingerprint"` // of the model before
		Calibration *prune.Calibrated `json:"calibration"`
		Quantised   []lm.Quantised    `json:"source_quantization,omitempty"`
		Remarks     []string          `json:"remarks,omitempty"`
	}{
		Format: "compress pruning", Version: 1, Structure: p, Fingerprint: model,
	}
	if p.Options.NeedsCalibration() {
		record.Calibration = prune.CalibratedBy(&calib)
	}
	record.Quantised, record.Remarks = m.Quantised()

	text, err := json.MarshalIndent(record, "", " ")
	return append(text, '\n'), err
}
