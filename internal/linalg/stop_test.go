package linalg

import (
	"errors"
	"testing"
)

// Factors of large matrices are left off where their caller wants to stop.
func TestFactorsStop(t *testing.T) {
	want := errors.New("stop")
	const n = 512
	for name, f := range map[string]func(s Solver, a Matrix) error{
		"Cholesky": func(s Solver, a Matrix) error { return s.Cholesky(a, true) },
		"inverse":  Solver.InverseFactor,
	} {
		asked := 0
		s := Solver{Threads: 1, Stop: func() error {
			asked++
			if asked > 2 {
				return want
			}
			return nil
		}}

		a := New(n, n)
		for i := range n {
			a.Data[i*n+i] = 1
		}
		if err := f(s, a); !errors.Is(err, want) || asked != 3 {
			t.Errorf("%s: %v after asking %d times", name, err, asked)
		}
	}
}
