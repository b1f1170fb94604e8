// Package gpuscore computes scores on devices that compile formulas: one kernel for the scores of a matrix, or
// for scores and selection, after one for each statistic that the scores stand on. What a formula needs beyond
// the weights is brought to the device.
package gpuscore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
)

// ErrHost: the scores have to be computed on the host, since the device does not compile formulas, has no room,
// or the formula is more than it takes.
var ErrHost = errors.New("the device cannot compute the scores")

// Scores are those of one matrix on a device.
type Scores struct {
	Rows, Cols int
	// Exact tells that every operation is rounded as on the host, so that the same inputs give the same bits.
	Exact bool

	dev    kernels.Device
	scorer kernels.Scorer
	code   kernels.Formula
	in     kernels.FormulaInputs
	held   []*kernels.Buffer
	checks int // slot of the range of the scores
}

// begin makes scores without a formula yet, with room for so many statistics. The error is [ErrHost].
func begin(dev kernels.Device, rows, cols, stats int) (*Scores, error) {
	if dev.Info().Host {
		return nil, ErrHost
	}

	scorer, ok := kernels.As[kernels.Scorer](dev)
	if !ok || rows*cols == 0 {
		return nil, ErrHost
	}

	s := &Scores{Rows: rows, Cols: cols, Exact: true, dev: dev, scorer: scorer, checks: stats}
	var err error
	if s.in.Stats, err = s.alloc(kernels.F32, 1, 2*stats+2); err != nil {
		return nil, s.giveUp()
	}

	return s, nil
}

// giveUp frees everything and leaves the work to the host.
func (s *Scores) giveUp() error {
	s.Free()
	return ErrHost
}

// New compiles a program for one matrix. W, and G if the program reads it, may be on the device or in host
// memory, from where they are brought over. The error is [ErrHost].
func New(dev kernels.Device, p *gp.Program, in gp.Inputs) (*Scores, error) {
	s, err := begin(dev, in.W.Rows, in.W.Cols, len(p.Stats))
	if err != nil {
		return nil, err
	}

	b := builder{s: s, p: p, values: map[int]int{}}
	if err := b.inputs(in); err != nil {
		return nil, s.giveUp()
	}

	for n := range p.Stats {
		if err := b.stat(n); err != nil {
			return nil, s.giveUp()
		}
	}

	if s.code = b.formula(p.Result); len(s.code) > kernels.MaxFormula {
		return nil, s.giveUp()
	}

	return s, nil
}

// builder turns a program into formulas.
type builder struct {
	s      *Scores
	p      *gp.Program
	values map[int]int // inputs: the matrix or vector that a value of the program is read from
}

// inputs brings what the program loads to the device.
func (b *builder) inputs(in gp.Inputs) error {
	for v, i := range b.p.Code {
		if i.Op != gp.OpLoad {
			continue
		}

		if i.Shape == gp.Matrix {
			m, err := b.s.matrix(map[bool]kernels.Mat{true: in.W, false: in.G}[i.Term == gp.W], i.Term == gp.W)
			if err != nil {
				return err
			}

			b.values[v] = len(b.s.in.Matrices)
			b.s.in.Matrices = append(b.s.in.Matrices, m)
			continue
		}

		at, err := b.s.upload(terminal(in, i.Term))
		if err != nil {
			return err
		}

		b.values[v] = at
	}

	return nil
}

// terminal is the vector of a terminal.
func terminal(in gp.Inputs, t gp.Symbol) []float32 {
	switch t {
	case gp.X:
		return in.X
	case gp.Xm:
		return in.Mean
	case gp.Xv:
		return in.Var
	case gp.H:
		return in.Hess
	}

	return in.Inv
}

// matrix brings a matrix over. A formula reads magnitudes: unless that is meant, values below 0 are left to the host.
func (s *Scores) matrix(m kernels.Mat, magnitude bool) (kernels.Mat, error) {
	if m.IsZero() || m.Rows != s.Rows || m.Cols != s.Cols || !m.Dense() {
		return m, ErrHost
	}

	raw := m.Buf.Bytes()
	if raw == nil {
		return m, nil
	}

	size := m.DType().Size()
	raw = raw[m.Off*size : (m.Off+m.Len())*size]
	if !magnitude && negative(raw, size) {
		return m, ErrHost
	}

	there, err := s.alloc(m.DType(), m.Rows, m.Cols)
	if err == nil {
		err = s.dev.Upload(there.Buf, 0, raw)
	}

	return there, err
}

// Resident is a copy of a matrix of magnitudes in host memory on a device, for formulas that read it often; a
// matrix that is there already is itself. The error is [ErrHost] for one with values below 0, or without room.
func Resident(dev kernels.Device, m kernels.Mat) (kernels.Mat, error) {
	s := &Scores{Rows: m.Rows, Cols: m.Cols, dev: dev}
	there, err := s.matrix(m, false)
	if err != nil {
		return there, s.giveUp()
	}
	return there, nil
}

// negative reports whether a run of floats of a width has a sign.
func negative(raw []byte, size int) bool {
	for at := size - 1; at < len(raw); at += size {
		if raw[at]&0x80 != 0 {
			return true
		}
	}
	return false
}

func (s *Scores) alloc(t kernels.DType, rows, cols int) (kernels.Mat, error) {
	buf, err := s.dev.Alloc(t, rows*cols)
	if err != nil {
		return kernels.Mat{}, err
	}
	s.held = append(s.held, buf)
	return kernels.MatOf(buf, rows, cols), nil
}

// upload brings a vector over and gives its number.
func (s *Scores) upload(v []float32) (int, error) {
	if len(v) == 0 {
		return 0, ErrHost
	}

	m, err := s.alloc(kernels.F32, 1, len(v))
	if err == nil {
		err = s.dev.Upload(m.Buf, 0, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v)))
	}
	if err == nil && len(s.in.Vectors) == kernels.MaxFormulaVectors {
		err = ErrHost
	}

	s.in.Vectors = append(s.in.Vectors, m)
	return len(s.in.Vectors) - 1, err
}

var scalars = map[gp.StatKind]kernels.StatKind{
	gp.StatRange: kernels.StatRange, gp.StatMoments: kernels.StatMoments, gp.StatNorm: kernels.StatNorm,
	gp.StatTotal: kernels.StatTotal,
}

// stat gathers statistic n; those that it stands on have lower numbers.
func (b *builder) stat(n int) error {
	st, s := b.p.Stats[n], b.s
	f := b.formula(st.Of)
	if len(f) > kernels.MaxFormula {
		return ErrHost
	}

	// Minima and maxima are the same in any order; sums are not, and differ from the host's in their last bits.
	s.Exact = s.Exact && st.Kind == gp.StatRange
	if kind, ok := scalars[st.Kind]; ok {
		over := b.p.Code[st.Of].Shape
		if st.Kind == gp.StatNorm {
			over = st.Over
		}

		rows, cols := s.Rows, s.Cols
		switch over {
		case gp.Row:
			rows = 1
		case gp.Col:
			cols = 1
		}

		return s.scorer.Gather(rows, cols, f, s.in, kind, n)
	}

	return b.vector(n, f)
}

// vector gathers a statistic of every row or column, which later formulas read as a vector.
func (b *builder) vector(n int, f kernels.Formula) (err error) {
	kind, s := b.p.Stats[n].Kind, b.s
	if len(s.in.Vectors) == kernels.MaxFormulaVectors {
		return ErrHost
	}

	sum := kernels.StatTotal
	if kind == gp.StatRowNorm || kind == gp.StatColNorm {
		sum = kernels.StatNorm
	}

	var dst kernels.Mat
	if kind == gp.StatRowAbs || kind == gp.StatRowNorm {
		if dst, err = s.alloc(kernels.F32, 1, s.Rows); err == nil {
			err = s.scorer.GatherRows(dst, s.Cols, f, s.in, sum)
		}
	} else if dst, err = s.alloc(kernels.F32, 1, s.Cols); err == nil {
		err = s.scorer.GatherCols(dst, s.Rows, f, s.in, sum)
	}

	s.in.Vectors = append(s.in.Vectors, dst)
	for v, i := range b.p.Code {
		if i.Op == gp.OpStat && i.Stat == n {
			b.values[v] = len(s.in.Vectors) - 1
		}
	}

	return err
}

var operations = map[gp.Op]kernels.FormulaOp{
	gp.OpSqr: kernels.Square, gp.OpNeg: kernels.Negate, gp.OpAbs: kernels.Absolute, gp.OpLog: kernels.Logarithm,
	gp.OpExp:  kernels.Exponential,
	gp.OpSqrt: kernels.Root, gp.OpTanh: kernels.HyperbolicTangent, gp.OpAdd: kernels.Plus, gp.OpSub: kernels.Minus,
	gp.OpMul:  kernels.Times,
	gp.OpPdiv: kernels.Quotient, gp.OpMin: kernels.Least, gp.OpMax: kernels.Most, gp.OpAffine: kernels.Affine,
}

// formula is the code for one value of the program.
func (b *builder) formula(value int) kernels.Formula {
	need := make([]bool, len(b.p.Code))
	need[value] = true

	for v := value; v >= 0; v-- {
		for _, operand := range []int{b.p.Code[v].A, b.p.Code[v].B} {
			if need[v] && operand >= 0 {
				need[operand] = true
			}
		}
	}

	var f kernels.Formula
	number := make([]int, len(b.p.Code))
	for v, i := range b.p.Code[:value+1] {
		if need[v] {
			number[v] = len(f)
			f = append(f, b.instruction(v, i, number))
			b.s.Exact = b.s.Exact && f[len(f)-1].Op.Exact()
		}
	}

	return f
}

// instruction translates one; number has the places of its operands.
func (b *builder) instruction(v int, i gp.Instr, number []int) kernels.FormulaInstr {
	switch {
	case i.Op == gp.OpLoad && i.Shape == gp.Matrix:
		return kernels.FormulaInstr{Op: kernels.LoadMatrix, Arg: b.values[v]}
	case (i.Op == gp.OpLoad || i.Op == gp.OpStat) && i.Shape == gp.Col:
		return kernels.FormulaInstr{Op: kernels.LoadRow, Arg: b.values[v]}
	case i.Op == gp.OpLoad || i.Op == gp.OpStat:
		return kernels.FormulaInstr{Op: kernels.LoadCol, Arg: b.values[v]}
	}

	out := kernels.FormulaInstr{Op: operations[i.Op], A: number[i.A]}
	if i.B >= 0 {
		out.B = number[i.B]
	}
	if i.Op == gp.OpAffine {
		out.Arg = i.Stat
	}

	return out
}

// RIA makes the scores |W|/Σ_column|W| + |W|/Σ_row|W|, times a factor for every input.
func RIA(dev kernels.Device, w kernels.Mat, factor []float32) (*Scores, error) {
	s, err := begin(dev, w.Rows, w.Cols, 0)
	if err != nil {
		return nil, err
	}

	m, err := s.matrix(w, true)
	if err != nil {
		return nil, s.giveUp()
	}

	// The sums are gathered on the device, which orders them differently from the host: not exact.
	s.in.Matrices, s.Exact = []kernels.Mat{m}, false
	byCol, err := s.alloc(kernels.F32, 1, s.Cols)
	if err == nil {
		err = s.scorer.GatherCols(byCol, s.Rows, kernels.Formula{{Op: kernels.LoadMatrix}}, s.in, kernels.StatTotal)
	}

	byRow, failed := s.alloc(kernels.F32, 1, s.Rows)
	if err = errors.Join(err, failed); err == nil {
		err = s.scorer.GatherRows(byRow, s.Cols, kernels.Formula{{Op: kernels.LoadMatrix}}, s.in, kernels.StatTotal)
	}

	for _, sums := range []kernels.Mat{byCol, byRow} {
		if err == nil {
			err = s.divisors(sums)
		}
	}
	if err == nil {
		_, err = s.upload(factor)
	}
	if err != nil {
		return nil, s.giveUp()
	}

	s.code = kernels.Formula{
		{Op: kernels.LoadMatrix},
		{Op: kernels.LoadCol},
		{Op: kernels.Quotient, A: 0, B: 1},
		{Op: kernels.LoadRow, Arg: 1},
		{Op: kernels.Quotient, A: 0, B: 3},
		{Op: kernels.Plus, A: 2, B: 4},
		{Op: kernels.LoadCol, Arg: 2},
		{Op: kernels.Times, A: 5, B: 6},
	}

	return s, nil
}

// divisors adds sums as a vector, less what a quotient adds to its divisor.
func (s *Scores) divisors(sums kernels.Mat) error {
	raw, err := hostmat.Bytes(s.dev, sums)
	if err != nil {
		return err
	}

	v := make([]float32, sums.Cols)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])) - 1e-8
	}

	_, err = s.upload(v)
	return err
}

// Range waits, and gives the lowest score and how far the highest is above it; NaN if one is NaN.
func (s *Scores) Range() (lo, span float32, err error) {
	if err := s.scorer.Gather(s.Rows, s.Cols, s.code, s.in, kernels.StatRange, s.checks); err != nil {
		return 0, 0, fmt.Errorf("scores: %w", err)
	}
	if err := s.dev.Ops().Sync(); err != nil {
		return 0, 0, fmt.Errorf("scores: %w", err)
	}

	raw := make([]byte, 8)
	if err := s.dev.Download(raw, s.in.Stats.Buf, 2*s.checks); err != nil {
		return 0, 0, fmt.Errorf("scores: %w", err)
	}

	return math.Float32frombits(binary.LittleEndian.Uint32(raw)),
		math.Float32frombits(binary.LittleEndian.Uint32(raw[4:])), nil
}

// Select writes the keep mask that drops the drop lowest scores of every row, in the kernel that computes them.
func (s *Scores) Select(mask kernels.Mat, drop int) error {
	return errors.Join(s.scorer.SelectFormula(mask, s.code, s.in, drop), s.dev.Ops().Sync())
}

// Matrix computes the scores, F32 on the device. The caller frees the buffer. Without room for them the error
// is [ErrHost].
func (s *Scores) Matrix() (kernels.Mat, error) {
	buf, err := s.dev.Alloc(kernels.F32, s.Rows*s.Cols)
	if err != nil {
		return kernels.Mat{}, ErrHost
	}

	m := kernels.MatOf(buf, s.Rows, s.Cols)
	if err := errors.Join(s.scorer.Score(m, s.code, s.in), s.dev.Ops().Sync()); err != nil {
		buf.Free()
		return kernels.Mat{}, fmt.Errorf("scores: %w", err)
	}

	return m, nil
}

// Choose computes the scores, lets mask choose by them, and counts near ties where the host's scores may be
// others; see [NearTies]. A device without room to count is told.
func (s *Scores) Choose(keep kernels.Mat, mask func(mask kernels.Mat, s kernels.Score)) (near int64, err error) {
	m, err := s.Matrix()
	if err != nil {
		return 0, err
	}
	defer m.Buf.Free()

	mask(keep, kernels.Score{X: m, Raw: true})
	if err := s.dev.Ops().Sync(); err != nil || s.Exact {
		return 0, err
	}

	if near, err = NearTies(s.dev, m, keep, mask); err != nil {
		kernels.Missed(s.dev, "NearTies")
		near = 0
	}

	return near, s.dev.Ops().Sync()
}

// Free gives back what was brought to the device; a nil receiver has nothing.
func (s *Scores) Free() {
	if s == nil {
		return
	}
	for _, b := range s.held {
		b.Free()
	}
	s.held = nil
}
