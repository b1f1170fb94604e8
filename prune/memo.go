package prune

import (
	"fmt"

	"github.com/modelcompress/compress/prune/internal/memo"
)

// Memo carries from one run to the next what depends on the dense model, the calibration data and settings of
// an allocation alone: the outliers of blocks, the exponents of their spectra, and the hashes of files with
// gradients. The same Memo goes into the options of runs that come one after the other; files that it has read
// must not change between them. What is measured while blocks before are pruned already differs from run to run
// and is never carried over.
type Memo = memo.Memo

// measuredOnce gives a figure for every block, measured by do unless an earlier run with the same memo has it.
func (w *walk) measuredOnce(what string, do func() ([]float64, error)) ([]float64, error) {
	return w.o.Memo.Figures(fmt.Sprint(what, " ", w.report.Model.Fingerprint, " ", w.calib.Hash, " ", w.o.BatchTokens),
		do)
}
