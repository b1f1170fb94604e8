// Package actstats measures what flows into the matrices of a block.
package actstats

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// Set is a set of statistics that a metric, an allocation or an update reads.
type Set uint8

// The statistics. All but Gradients are of the inputs of a matrix, over the tokens that reach it; with N the number of
// calibration sequences:
const (
	SumSquares Set = 1 << iota // s_j = (1/N)·Σ x_j²
	Sums                       // (1/N)·Σ x_j
	Variances                  // variance of x_j within a sequence, over n, averaged over sequences by their tokens
	Hessian                    // (2/N)·Σ x xᵀ, and the factor of its damped inverse
	Gradients                  // 100·√(Σ_n g²), g the gradient of the mean loss of sequence n in the dense model
	Sample                     // some of the x themselves, to measure outputs on
	Extents                    // Σ |x_j|, and the least and the largest x_j
	Spread                     // some of the x themselves, spread evenly over all that reach the input
)

// OfInputs are the statistics that need a pass through the block.
const OfInputs = SumSquares | Sums | Variances | Hessian | Sample | Extents | Spread

// sampled is how many tokens Sample keeps of an input, at least one of each run of the block.
const sampled = 512

// Stats gathers what flows into the matrices of one block. Matrices that read the same input (q, k and v; gate and up
// of the same expert) share one accumulator, filled by the first of them.
type Stats struct {
	Stop func() error // asked now and then while factors are made; nil: nobody is

	dev       kernels.Device
	needs     Set
	sequences int
	damping   float64         // 0: the default
	sums      map[string]*Sum // by tensor name
	leads     map[string]bool // tensors that fill their accumulator
	all       []*Sum
	gram      *kernels.Buffer // F32 scratch of a product
	factored  *Sum            // the one whose factor is held
	err       error           // the first failure of a hook
}

// Sum accumulates over the tokens of one input, in F64. Vectors are on the device, [1, in].
type Sum struct {
	in             int
	expert         bool // of a mixture
	tokens         int64
	squares, total kernels.Mat
	within         []float64   // Σ (x - mean of its sequence)²
	hessian        kernels.Mat // Σ x xᵀ [in, in]
	sample         []float32   // x of some tokens, one after the other
	extents        *extents
	spread         *spread

	scaled  linalg.Matrix  // the Hessian on the host, dead inputs' diagonal 1
	Dead    []int          // inputs that are always 0
	u       kernels.Mat    // F32 on the host
	Damping linalg.Damping // of its Hessian, once factored
}

// New makes accumulators for the matrices of a block.
func New(dev kernels.Device, linears []lm.Linear, needs Set, sequences int, damping float64) (*Stats, error) {
	if needs&Variances != 0 {
		needs |= SumSquares | Sums
	}

	s := &Stats{
		dev: dev, needs: needs, sequences: sequences, damping: damping, sums: map[string]*Sum{},
		leads: map[string]bool{},
	}
	shared := map[source]*Sum{}
	for _, l := range linears {
		k := sourceOf(l)
		acc := shared[k]
		if acc == nil { // q, k and v read the same, and so do gate and up
			acc = &Sum{in: l.In, expert: l.Expert >= 0}
			s.all = append(s.all, acc)
			if err := s.alloc(acc); err != nil {
				s.Free()
				return nil, fmt.Errorf("tensor %q: statistics: %w", l.Name, err)
			}

			shared[k], s.leads[l.Name] = acc, true
		}

		s.sums[l.Name] = acc
	}

	return s, nil
}

// alloc makes the sums that are asked for.
func (s *Stats) alloc(a *Sum) error {
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

	if s.needs&Extents != 0 {
		a.extents = newExtents(a.in)
	}
	if s.needs&Spread != 0 {
		a.spread = &spread{limit: s.spreadLimit(a), every: 1}
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
	case arch.K, arch.V, arch.QKV, arch.QA, arch.KVA:
		return arch.Q
	case arch.Up, arch.GateUp:
		return arch.Gate
	case arch.SharedUp, arch.SharedGateUp:
		return arch.SharedGate
	}
	return r
}

// Hooks listens to a pass through the block.
func (s *Stats) Hooks() *lm.Hooks {
	return &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		if a := s.sums[l.Name]; a != nil && s.leads[l.Name] && s.err == nil && x.Rows > 0 {
			s.err = s.add(a, x)
		}
	}}
}

// Err is the first failure of the hooks.
func (s *Stats) Err() error { return s.err }

// Tokens is how many tokens reached the input.
func (a *Sum) Tokens() int64 { return a.tokens }

// SumOf is what matrices that read the same input share.
func (s *Stats) SumOf(name string) *Sum { return s.sums[name] }

// add takes the rows of x: one sequence, if variances are asked for.
func (s *Stats) add(a *Sum, x kernels.Mat) error {
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

	if s.needs&Sample != 0 {
		if err := s.addSample(a, x); err != nil {
			return err
		}
	}

	if a.extents != nil || a.spread != nil {
		if err := s.addOnHost(a, x); err != nil {
			return err
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

// addSample takes tokens at equal distances, as many of each sequence.
func (s *Stats) addSample(a *Sum, x kernels.Mat) error {
	n := min(max(1, sampled/s.sequences), x.Rows, sampled-len(a.sample)/a.in)
	for k := range n {
		i := (2*k + 1) * x.Rows / (2 * n)
		row, err := hostmat.F32(s.dev, x.RowRange(i, i+1))
		if err != nil {
			return err
		}
		a.sample = append(a.sample, row.RowF32(0)...)
	}

	return nil
}

// SampleOf gives some of the tokens that reach a matrix, F32 [tokens, in] in host memory; the zero Mat if there
// are none, as with a nil receiver.
func (s *Stats) SampleOf(name string) kernels.Mat {
	if s == nil || len(s.sums[name].sample) == 0 {
		return kernels.Mat{}
	}
	a := s.sums[name]
	return kernels.MatOf(kernels.WrapF32(a.sample), len(a.sample)/a.in, a.in)
}

// addSequence takes one sequence; sums before and after give those of the sequence alone.
func (s *Stats) addSequence(a *Sum, x kernels.Mat) error {
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
func (s *Stats) vectors(a *Sum) (v [2][]float64, err error) {
	for i, m := range []kernels.Mat{a.squares, a.total} {
		if v[i], err = hostmat.F64(s.dev, m); err != nil {
			return v, err
		}
	}
	return v, nil
}

// Inputs are the statistics of what flows into a matrix. Slices are nil unless asked for, and if no token reached it.
type Inputs struct {
	SumSquares []float64
	Sums       []float64
	Variances  []float64
	Tokens     int64 // that reached the matrix
	Sequences  int   // of the calibration data
	// Factor gives the upper triangular U with H⁻¹ = UᵀU of the damped Hessian: F32 [in, in], in host memory.
	// nil unless asked for.
	Factor func() (kernels.Mat, error)
}

// Of gives the statistics of the inputs of a matrix. A value that is not finite is an error.
func (s *Stats) Of(l lm.Linear) (in Inputs, err error) {
	a := s.sums[l.Name]
	in.Sequences, in.Tokens = s.sequences, a.tokens
	if a.tokens == 0 {
		return in, nil
	}

	v, err := s.vectors(a)
	if err != nil {
		return in, err
	}

	in.SumSquares, in.Sums = v[0], v[1]
	for j := range v[0] {
		v[0][j] /= float64(s.sequences)
		if v[0][j]-v[0][j] != 0 {
			return in, fmt.Errorf("tensor %q: input %d: %w: the activations that reach it overflow or are NaN", l.Name,
				j, hostmat.ErrNonFinite)
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
		in.Factor = func() (kernels.Mat, error) { return s.factorOf(a, l) }
	}

	return in, nil
}

// HessianOf gives (2/N)·Σ x xᵀ on the host. Inputs that are always 0 get a diagonal of 1.
func (s *Stats) HessianOf(a *Sum, l lm.Linear) (linalg.Matrix, error) {
	if a.scaled.Data != nil {
		return a.scaled, nil
	}

	var data []float64
	if s.dev.Info().Host {
		data = a.hessian.Buf.F64()[a.hessian.Off : a.hessian.Off+a.hessian.Len()]
	} else {
		var err error
		if data, err = hostmat.F64(s.dev, a.hessian); err != nil {
			return linalg.Matrix{}, err
		}
	}

	// In place: on the host the sum itself becomes the Hessian, since another would be as large. An input that is
	// always 0 has a row and a column of zeros, and any diagonal makes the matrix regular without touching the others.
	h := linalg.Of(data, a.in, a.in)
	h.Scale(2 / float64(s.sequences))
	for j := range a.in {
		switch v := h.At(j, j); {
		case v == 0:
			h.Set(j, j, 1)
			a.Dead = append(a.Dead, j)
		case v-v != 0:
			return h, fmt.Errorf("tensor %q: input %d: %w: the activations that reach it overflow or are NaN", l.Name,
				j, hostmat.ErrNonFinite)
		}
	}

	a.scaled = h
	return h, nil
}

// factorOf gives the upper triangular U with (H + damping)⁻¹ = UᵀU. That of one input is held at a time.
func (s *Stats) factorOf(a *Sum, l lm.Linear) (kernels.Mat, error) {
	if s.factored == a {
		return a.u, nil
	}

	// Matrices that read the same input come one after the other, so holding one factor is enough.
	if s.factored != nil {
		s.factored.u.Buf.Free()
		s.factored.u, s.factored = kernels.Mat{}, nil
	}

	h, err := s.HessianOf(a, l)
	if err != nil {
		return kernels.Mat{}, err
	}

	u := kernels.MatOf(kernels.NewHost(kernels.F32, a.in*a.in), a.in, a.in)
	view, err := kernels.Wrap(kernels.F64, hostmat.BytesOf(h.Data))
	if err != nil {
		return u, err
	}

	solver := linalg.Solver{Threads: s.dev.Info().Threads, Device: s.dev, Stop: s.Stop}
	if a.Damping, err = solver.DampedInverseFactor(u, kernels.MatOf(view, a.in, a.in), s.damping); err != nil {
		return u, fmt.Errorf("tensor %q: Hessian: %w", l.Name, err)
	}

	a.u, s.factored = u, a
	return u, nil
}

// Free gives the accumulators back; a nil receiver has none.
func (s *Stats) Free() {
	if s == nil {
		return
	}

	for _, a := range s.all {
		for _, m := range []kernels.Mat{a.squares, a.total, a.hessian, a.u} {
			if !m.IsZero() {
				m.Buf.Free()
			}
		}
	}

	if s.gram != nil {
		s.gram.Free()
	}
}
