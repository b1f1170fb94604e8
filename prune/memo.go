package prune

import "fmt"

// Memo carries from one run to the next what depends on the dense model, the calibration data and settings of
// an allocation alone: the outliers of decoder layers, the exponents of their spectra, and the hashes of files with
// gradients. The same Memo goes into the options of runs that come one after the other; files that it has read
// must not change between them. What is measured while layers before are pruned already differs from run to run
// and is never carried over. The zero Memo is empty; a nil one keeps nothing.
type Memo struct {
	layers map[string][]float64 // a figure of every decoder layer, by what it depends on
	hashes map[string]string    // of files, by their paths
}

// measuredOnce gives a figure for every block, measured by do unless an earlier run with the same memo has it.
func (w *walk) measuredOnce(what string, do func() ([]float64, error)) ([]float64, error) {
	m := w.o.Memo
	if m == nil {
		return do()
	}
	key := fmt.Sprint(what, " ", w.report.Model.Fingerprint, " ", w.calib.Hash, " ", w.o.BatchTokens)
	return once(&m.layers, key, do)
}

// hash gives the hash of a file's content, found by do unless it is known.
func (m *Memo) hash(path string, do func() (string, error)) (string, error) {
	if m == nil {
		return do()
	}
	return once(&m.hashes, path, do)
}

func once[T any](known *map[string]T, key string, do func() (T, error)) (T, error) {
	if v, ok := (*known)[key]; ok {
		return v, nil
	}

	v, err := do()
	if err == nil {
		if *known == nil {
			*known = map[string]T{}
		}
		(*known)[key] = v
	}

	return v, err
}
