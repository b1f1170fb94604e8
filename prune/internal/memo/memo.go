// Package memo carries measurements from one run of pruning to the next.
package memo

// Memo holds what was found out, by what it depends on. The zero Memo is empty; a nil one keeps nothing. It is
// for runs that come one after the other.
type Memo struct {
	figures map[string][]float64
	hashes  map[string]string
}

// Figures gives the figures of a key, found by do unless they are known.
func (m *Memo) Figures(key string, do func() ([]float64, error)) ([]float64, error) {
	if m == nil {
		return do()
	}
	return once(&m.figures, key, do)
}

// Hash gives the hash of a file's content, found by do unless it is known.
func (m *Memo) Hash(path string, do func() (string, error)) (string, error) {
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
