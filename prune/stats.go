package prune

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// Stats is a set of statistics that a metric, an allocation or an update reads.
type Stats uint8

// The statistics. All but Gradients are of the inputs of a matrix, over the tokens that reach it; with N the number of
// calibration sequences:
const (
	SumSquares Stats = 1 << iota // s_j = (1/N)·Σ x_j²
	Sums                         // (1/N)·Σ x_j
	Variances                    // variance of x_j within a sequence, over n, averaged over sequences by their tokens
	Hessian                      // (2/N)·Σ x xᵀ, and the factor of its damped inverse
	Gradients                    // 100·√(Σ_n g²), g the gradient of the mean loss of sequence n in the dense model
)

// ofInputs are the statistics that need a pass through the block.
const ofInputs = SumSquares | Sums | Variances | Hessian

// inputStats gathers what flows into the matrices of one block. Matrices that read the same input (q, k and v; gate and up
// of the same expert) share one accumulator, filled by the first of them.
type inputStats struct {
	dev       kernels.Device
	needs     Stats
	sequences int
	damping   float64
	sums      map[string]*inputSum // by tensor name
	leads     map[string]bool      // tensors that fill their accumulator
	all       []*inputSum
	gram      *kernels.Buffer // F32 scratch of a product
	factored  *inputSum       // the one whose factor is held
	err       error           // the first failure of a hook
}

// inputSum accumulates over the tokens of one input, in F64. Vectors are on the device, [1, in].
type inputSum struct {
	in             int
	tokens         int64
	squares, total kernels.Mat
	within         []float64   // Σ (x - mean of its sequence)²
	hessian        kernels.Mat // Σ x xᵀ [in, in]

	scaled  linalg.Matrix // the Hessian on the host, dead inputs' diagonal 1
	dead    []int         // inputs that are always 0
	factor  kernels.Mat   // F32 on the host
	damping linalg.Damping
}

// newInputStats makes accumulators for the matrices of a block.
func newInputStats(dev kernels.Device, linears []lm.Linear, needs Stats, sequences int) (*inputStats, error) {
	if needs&Variances != 0 {
		needs |= SumSquares | Sums
	}
	s := &inputStats{dev: dev, needs: needs, sequences: sequences, sums: map[string]*inputSum{}, leads: map[string]bool{}}
	type key struct {
		input  arch.Role
		expert int
	}
	shared := map[key]*inputSum{}
	for _, l := range linears {
		k := key{inputOf(l.Role), l.Expert}
		acc := shared[k]
		if acc == nil {
			acc = &inputSum{in: l.In}
			s.all = append(s.all, acc)
			if err := s.alloc(acc); err != nil {
				s.free()
				return nil, fmt.Errorf("statistics of %s: %w", l.Name, err)
			}
			shared[k], s.leads[l.Name] = acc, true
		}
		s.sums[l.Name] = acc
	}
	return s, nil
}

// alloc makes the sums that are asked for.
func (s *inputStats) alloc(a *inputSum) error {
	var faults []error
	mat := func(t kernels.DType, rows, cols int) kernels.Mat {
		buf, err := s.dev.Alloc(t, rows*cols)
		if err != nil {
			faults = append(faults, err)
			return kernels.Mat{}
		}
		return kernels.MatOf(buf, rows, cols)
	}
	if s.needs&SumSquares != 0 {
		a.squares = mat(kernels.F64, 1, a.in)
	}
	if s.needs&Sums != 0 {
		a.total = mat(kernels.F64, 1, a.in)
	}
	if s.needs&Variances != 0 {
		a.within = make([]float64, a.in)
	}
	if s.needs&Hessian != 0 {
		a.hessian = mat(kernels.F64, a.in, a.in)
		if s.gram == nil || s.gram.Len < a.in*a.in {
			if s.gram != nil {
				s.gram.Free()
			}
			s.gram = mat(kernels.F32, a.in, a.in).Buf
		}
	}
	return errors.Join(faults...)
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
	return &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		if a := s.sums[l.Name]; a != nil && s.leads[l.Name] && s.err == nil && x.Rows > 0 {
			s.err = s.add(a, x)
		}
	}}
}

// add takes the rows of x: one sequence, if variances are asked for.
func (s *inputStats) add(a *inputSum, x kernels.Mat) error {
	ops := s.dev.Ops()
	a.tokens += int64(x.Rows)
	if s.needs&Variances != 0 {
		if err := s.addSequence(a, x); err != nil {
			return err
		}
	} else {
		if !a.squares.IsZero() {
			ops.ColSumSq(a.squares, x)
		}
		if !a.total.IsZero() {
			ops.ColSum(a.total, x)
		}
	}
	if !a.hessian.IsZero() {
		gram := kernels.MatOf(s.gram, a.in, a.in)
		ops.MatMulTN(gram, x, x, kernels.MatMul{})
		// The product of a batch is carried in F32, the sum of batches in F64.
		ops.ColSum(a.hessian.Reshape(1, a.in*a.in), gram.Reshape(1, a.in*a.in))
	}
	return nil
}

// addSequence takes one sequence; sums before and after give those of the sequence alone.
func (s *inputStats) addSequence(a *inputSum, x kernels.Mat) error {
	before, err := s.vectors(a)
	if err != nil {
		return err
	}
	s.dev.Ops().ColSumSq(a.squares, x)
	s.dev.Ops().ColSum(a.total, x)
	after, err := s.vectors(a)
	if err != nil {
		return err
	}
	for j := range a.within {
		sum := after[1][j] - before[1][j]
		a.within[j] += max(0, after[0][j]-before[0][j]-sum*sum/float64(x.Rows))
	}
	return nil
}

// vectors downloads Σx² and Σx.
func (s *inputStats) vectors(a *inputSum) (v [2][]float64, err error) {
	for i, m := range []kernels.Mat{a.squares, a.total} {
		if v[i], err = hostF64(s.dev, m); err != nil {
			return v, err
		}
	}
	return v, nil
}

// hostF64 copies an F64 matrix to the host.
func hostF64(dev kernels.Device, m kernels.Mat) ([]float64, error) {
	if m.IsZero() {
		return nil, nil
	}
	raw := make([]byte, 8*m.Len())
	if err := dev.Download(raw, m.Buf, m.Off); err != nil {
		return nil, err
	}
	out := make([]float64, m.Len())
	for j := range out {
		out[j] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*j:]))
	}
	return out, nil
}

// fill gives the statistics of the inputs of a matrix to a metric; none if no token reached it. A value that is not finite
// is an error.
func (s *inputStats) fill(in *Inputs, l lm.Linear) error {
	a := s.sums[l.Name]
	in.Sequences, in.Tokens = s.sequences, a.tokens
	if a.tokens == 0 {
		return nil
	}
	v, err := s.vectors(a)
	if err != nil {
		return err
	}
	in.SumSquares, in.Sums = v[0], v[1]
	for j := range v[0] {
		v[0][j] /= float64(s.sequences)
		if v[0][j]-v[0][j] != 0 {
			return fmt.Errorf("%s: input %d: %w: the activations that reach it overflow or are NaN", l.Name, j, ErrNonFinite)
		}
	}
	for j := range v[1] {
		v[1][j] /= float64(s.sequences)
	}
	if a.within != nil {
		in.Variances = make([]float64, a.in)
		for j, d := range a.within {
			in.Variances[j] = d / float64(a.tokens)
		}
	}
	if !a.hessian.IsZero() {
		in.Factor = func() (kernels.Mat, error) { return s.factor(a, l) }
	}
	return nil
}

// hessianOf gives (2/N)·Σ x xᵀ on the host. Inputs that are always 0 get a diagonal of 1.
func (s *inputStats) hessianOf(a *inputSum, l lm.Linear) (linalg.Matrix, error) {
	if a.scaled.Data != nil {
		return a.scaled, nil
	}
	var data []float64
	if s.dev.Info().Host {
		data = a.hessian.Buf.F64()[a.hessian.Off : a.hessian.Off+a.hessian.Len()]
	} else {
		var err error
		if data, err = hostF64(s.dev, a.hessian); err != nil {
			return linalg.Matrix{}, err
		}
	}
	h := linalg.Of(data, a.in, a.in)
	h.Scale(2 / float64(s.sequences))
	for j := range a.in {
		switch v := h.At(j, j); {
		case v == 0:
			h.Set(j, j, 1)
			a.dead = append(a.dead, j)
		case v-v != 0:
			return h, fmt.Errorf("%s: input %d: %w: the activations that reach it overflow or are NaN", l.Name, j, ErrNonFinite)
		}
	}
	a.scaled = h
	return h, nil
}

// factor gives the upper triangular U with (H + damping)⁻¹ = UᵀU. That of one input is held at a time.
func (s *inputStats) factor(a *inputSum, l lm.Linear) (kernels.Mat, error) {
	if s.factored == a {
		return a.factor, nil
	}
	if s.factored != nil {
		s.factored.factor.Buf.Free()
		s.factored.factor, s.factored = kernels.Mat{}, nil
	}
	h, err := s.hessianOf(a, l)
	if err != nil {
		return kernels.Mat{}, err
	}
	u := kernels.MatOf(kernels.NewHost(kernels.F32, a.in*a.in), a.in, a.in)
	view, err := kernels.Wrap(kernels.F64, bytesOf(h.Data))
	if err != nil {
		return u, err
	}
	solver := linalg.Solver{Threads: s.dev.Info().Threads}
	if a.damping, err = solver.DampedInverseFactor(u, kernels.MatOf(view, a.in, a.in), s.damping); err != nil {
		return u, fmt.Errorf("%s: Hessian: %w", l.Name, err)
	}
	a.factor, s.factored = u, a
	return u, nil
}

// free gives the accumulators back; a nil receiver has none.
func (s *inputStats) free() {
	if s == nil {
		return
	}
	for _, a := range s.all {
		for _, m := range []kernels.Mat{a.squares, a.total, a.hessian, a.factor} {
			if !m.IsZero() {
				m.Buf.Free()
			}
		}
	}
	if s.gram != nil {
		s.gram.Free()
	}
}
