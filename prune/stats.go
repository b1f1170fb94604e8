package prune

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// inputStats gathers what flows into the matrices of one block. Matrices that read the same input (q, k and v; gate and up
// of the same expert) share one accumulator, filled by the first of them.
type inputStats struct {
	dev       kernels.Device
	sequences int
	sums      map[string]*sumSquares // by tensor name
	leads     map[string]bool        // tensors that fill their accumulator
	all       []*sumSquares
}

// sumSquares accumulates Σ x_j² in F64 on the device.
type sumSquares struct {
	acc    kernels.Mat
	tokens int64
}

// newInputStats makes accumulators for the matrices of a block.
func newInputStats(dev kernels.Device, linears []lm.Linear, sequences int) (*inputStats, error) {
	s := &inputStats{dev: dev, sequences: sequences, sums: map[string]*sumSquares{}, leads: map[string]bool{}}
	type key struct {
		input  arch.Role
		expert int
	}
	shared := map[key]*sumSquares{}
	for _, l := range linears {
		k := key{inputOf(l.Role), l.Expert}
		acc := shared[k]
		if acc == nil {
			buf, err := dev.Alloc(kernels.F64, l.In)
			if err != nil {
				s.free()
				return nil, err
			}
			acc = &sumSquares{acc: kernels.MatOf(buf, 1, l.In)}
			shared[k], s.leads[l.Name] = acc, true
			s.all = append(s.all, acc)
		}
		s.sums[l.Name] = acc
	}
	return s, nil
}

// inputOf names the input that matrices of a role read, by the role of the first of them.
func inputOf(r arch.Role) arch.Role {
	switch r {
	case arch.K, arch.V, arch.QKV:
		return arch.Q
	case arch.Up, arch.GateUp:
		return arch.Gate
	case arch.SharedUp:
		return arch.SharedGate
	}
	return r
}

// hooks listens to a pass through the block.
func (s *inputStats) hooks() *lm.Hooks {
	ops := s.dev.Ops()
	return &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		if acc := s.sums[l.Name]; acc != nil && s.leads[l.Name] {
			ops.ColSumSq(acc.acc, x)
			acc.tokens += int64(x.Rows)
		}
	}}
}

// of gives s_j for the inputs of a matrix, nil if no token reached it. A value that is not finite is an error.
func (s *inputStats) of(l lm.Linear) ([]float64, error) {
	acc := s.sums[l.Name]
	if acc.tokens == 0 {
		return nil, nil
	}
	raw := make([]byte, 8*l.In)
	if err := s.dev.Download(raw, acc.acc.Buf, acc.acc.Off); err != nil {
		return nil, err
	}
	out := make([]float64, l.In)
	for j := range out {
		out[j] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*j:])) / float64(s.sequences)
		if math.IsNaN(out[j]) || math.IsInf(out[j], 0) {
			return nil, fmt.Errorf("%s: input %d: %w: the activations that reach it overflow or are NaN", l.Name, j, ErrNonFinite)
		}
	}
	return out, nil
}

// free gives the accumulators back; a nil receiver has none.
func (s *inputStats) free() {
	if s == nil {
		return
	}
	for _, a := range s.all {
		a.acc.Buf.Free()
	}
}
