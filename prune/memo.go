package prune

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/prune/internal/grads"
)

// Memo carries from one run to the next what depends on the dense model, the calibration data and settings of an allocation
// alone: the outliers of blocks, the exponents of their spectra, and the hashes of files with gradients. The same Memo goes
// into the options of runs that come one after the other; files that it has read must not change between them. What is
// measured while blocks before are pruned already differs from run to run and is never carried over.
type Memo struct {
	measured map[string][]float64
	hashes   map[string]string
}

// measuredOnce gives a figure for every block, measured by do unless an earlier run with the same memo has it.
func (w *walk) measuredOnce(what string, do func() ([]float64, error)) ([]float64, error) {
	o := w.o.Memo
	key := fmt.Sprint(what, " ", w.report.Model.Fingerprint, " ", w.calib.Hash, " ", w.o.BatchTokens)
	if o != nil && o.measured[key] != nil {
		return o.measured[key], nil
	}
	v, err := do()
	if err == nil && o != nil {
		if o.measured == nil {
			o.measured = map[string][]float64{}
		}
		o.measured[key] = v
	}
	return v, err
}

// gradientHash tells files of gradients apart by what they hold.
func (o Options) gradientHash(ctx context.Context) (string, error) {
	path := o.Gradients.File
	if path == "" {
		return "", nil
	}
	if o.Memo != nil && o.Memo.hashes[path] != "" {
		return o.Memo.hashes[path], nil
	}
	hash, err := grads.Hash(ctx, path)
	if err == nil && o.Memo != nil {
		if o.Memo.hashes == nil {
			o.Memo.hashes = map[string]string{}
		}
		o.Memo.hashes[path] = hash
	}
	return hash, err
}
