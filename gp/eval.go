package gp

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"

	"github.com/modelcompress/compress/gp/internal/lanes"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// The machine that runs programs: for each pass a plan of the instructions that it needs (plan), registers of 512
// columns for them (allocate), and threads that take tiles of rows. Arithmetic on elements is float32 in the order of
// the expression; statistics are float64 per tile and are merged from the top (stats.go), so that results depend
// neither on the number of threads nor on the instruction set.

// Exec says how a program runs.
type Exec struct {
	Threads int  // CPU threads; 0: one for each processor
	Finite  bool // fail with ErrNonFinite where a score is NaN or infinite

	loops *lanes.Loops // nil: the best
}

// Eval writes the score of every weight to dst, F32 [out, in] in host memory, which must not overlap the inputs. It
// returns [ErrInput] for inputs that do not fit the program or each other.
func (p *Program) Eval(dst kernels.Mat, in Inputs, o Exec) error {
	s, err := p.Scorer(in, o)
	if err != nil {
		return err
	}
	return s.Rows(dst, 0)
}

// Scorer gives scores row by row; see [Program.Scorer].
type Scorer struct{ m *machine }

// Scorer gathers the whole-matrix statistics of a program, so that scores can then be had for any rows without storing
// those of the whole matrix.
func (p *Program) Scorer(in Inputs, o Exec) (*Scorer, error) {
	rows, cols, err := p.check(&in)
	if err != nil {
		return nil, err
	}

	m := newMachine(p, in, o, rows, cols)
	for pass := range p.Passes {
		m.vectors(pass)
		if pl := p.plan(pass, false); len(pl.stats) > 0 {
			m.gather(pl)
		}
	}

	m.final = p.plan(p.Passes-1, true)
	return &Scorer{m}, nil
}

// Rows writes the scores of rows [first, first + dst.Rows) to dst, F32. It may be called from several
// goroutines at once.
func (s *Scorer) Rows(dst kernels.Mat, first int) error {
	m := s.m
	if first < 0 || first+dst.Rows > m.rows || dst.Cols != m.cols || dst.DType() != kernels.F32 {
		return fmt.Errorf("%s: %w: scores of rows %d to %d of [%d, %d] into %s [%d, %d]", m.p.Expr, ErrInput,
			first, first+dst.Rows-1, m.rows, m.cols, dst.DType(), dst.Rows, dst.Cols)
	}

	bad := m.emit(dst, first)
	dst.Buf.Changed()

	if bad >= 0 {
		i, j := bad/m.cols, bad%m.cols
		return fmt.Errorf("%s: %w: %g at [%d, %d]", m.p.Expr, ErrNonFinite, dst.RowF32(i - first)[j], i, j)
	}

	return nil
}

// Each computes all scores in blocks of rows from the top and calls f with the first row and the scores of every block;
// they are overwritten after f returns. rows is the number of rows of a block; 0 chooses about a megabyte.
func (s *Scorer) Each(rows int, f func(first int, scores kernels.Mat) error) error {
	if rows <= 0 {
		rows = max(1, 1<<18/max(1, s.m.cols))
	}

	rows = min(rows, max(1, s.m.rows))
	block := kernels.MatOf(kernels.NewHost(kernels.F32, rows*s.m.cols), rows, s.m.cols)
	for first := 0; first < s.m.rows; first += rows {
		part := block.RowRange(0, min(rows, s.m.rows-first))
		if err := s.Rows(part, first); err != nil {
			return err
		}
		if err := f(first, part); err != nil {
			return err
		}
	}

	return nil
}

// plan is the part of a program that one pass over the matrix runs.
type plan struct {
	steps  []step
	cols   []int // values of shape Col that the steps read
	rows   []int // values of shape Row
	stats  []int // gathered from the values
	result int   // the value that goes to the destination; -1: none
	regs   int
}

// step is an instruction with the register that it writes; -1: the destination.
type step struct {
	Instr
	value, reg int
}

// plan selects what a pass needs: its statistics or, if final, the result.
func (p *Program) plan(pass int, final bool) *plan {
	pl := &plan{result: -1}
	last := make([]int, len(p.Code)) // the step after which a value is free
	need := make([]bool, len(p.Code))
	if final {
		pl.result = p.Result
		need[p.Result], last[p.Result] = true, len(p.Code)
	} else {
		for n, s := range p.Stats {
			if s.Pass == pass && p.Code[s.Of].Shape == Matrix {
				pl.stats = append(pl.stats, n)
				need[s.Of], last[s.Of] = true, len(p.Code)
			}
		}
	}

	// Backwards, since operands come before what uses them: a value is needed if something is that uses it.
	for v := len(p.Code) - 1; v >= 0; v-- {
		if i := p.Code[v]; need[v] && i.Shape == Matrix {
			for _, operand := range []int{i.A, i.B} {
				if operand >= 0 {
					need[operand] = true
					last[operand] = max(last[operand], v)
				}
			}
		}
	}

	pl.allocate(p, need, last)
	return pl
}

// allocate gives every matrix value a register until its last use.
func (pl *plan) allocate(p *Program, need []bool, last []int) {
	var free, held []int // registers; values that hold one, by register
	for v, i := range p.Code {
		if !need[v] {
			continue
		}

		switch i.Shape {
		case Row:
			pl.rows = append(pl.rows, v)
			continue
		case Col:
			pl.cols = append(pl.cols, v)
			continue
		}

		for reg, value := range held { // an operand that ends here may be overwritten
			if value >= 0 && last[value] <= v {
				free, held[reg] = append(free, reg), -1
			}
		}

		reg := -1
		if v != pl.result {
			if len(free) == 0 {
				free, held = append(free, len(held)), append(held, -1)
			}
			reg = free[len(free)-1]
			free, held[reg] = free[:len(free)-1], v
		}

		pl.steps = append(pl.steps, step{i, v, reg})
	}

	pl.regs = len(held)
}

// chunk is how many columns of a row are computed at a time; the registers stay in the first-level cache.
const chunk = 512

// machine runs a program on one set of inputs.
type machine struct {
	p          *Program
	in         Inputs
	rows, cols int
	threads    int
	finite     bool
	l          *lanes.Loops
	vec        [][]float32 // by value: those of shape Row and Col
	stat       []statistic
	final      *plan
}

// statistic is the outcome of a Stat.
type statistic struct {
	sub, div float32
	vec      []float32
}

func newMachine(p *Program, in Inputs, o Exec, rows, cols int) *machine {
	m := &machine{p: p, in: in, rows: rows, cols: cols, threads: o.Threads, finite: o.Finite, l: o.loops}
	if m.threads <= 0 {
		m.threads = runtime.GOMAXPROCS(0)
	}
	if m.l == nil {
		m.l = lanes.Best()
	}
	m.vec, m.stat = make([][]float32, len(p.Code)), make([]statistic, len(p.Stats))
	return m
}

// vectors computes the values of shape Row and Col that become known before a pass, and their statistics.
func (m *machine) vectors(pass int) {
	// In the order of the code, and a statistic as soon as its value is there: later values may use it.
	for v, i := range m.p.Code {
		if i.Shape == Matrix || i.Pass != pass {
			continue
		}

		switch i.Op {
		case OpLoad:
			m.vec[v] = m.in.vector(i.Term)
		case OpStat:
			m.vec[v] = m.stat[i.Stat].vec
		default:
			n := m.cols
			if i.Shape == Col {
				n = m.rows
			}
			m.vec[v] = make([]float32, n)
			m.apply(i, m.vec[v], m.vec)
		}

		for n, s := range m.p.Stats {
			if s.Of == v {
				m.stat[n] = m.ofVector(s)
			}
		}
	}
}

// apply computes one instruction on slices of its operands; val is indexed by value.
func (m *machine) apply(i Instr, dst []float32, val [][]float32) {
	a := val[i.A]
	switch i.Op {
	case OpAffine:
		m.l.Affine(dst, a, m.stat[i.Stat].sub, m.stat[i.Stat].div)
	case OpSqr:
		m.l.Sqr(dst, a)
	case OpNeg:
		m.l.Neg(dst, a)
	case OpAbs:
		m.l.Abs(dst, a)
	case OpLog:
		m.l.Log(dst, a)
	case OpExp:
		m.l.Exp(dst, a)
	case OpSqrt:
		m.l.Sqrt(dst, a)
	case OpTanh:
		m.l.Tanh(dst, a)
	case OpAdd:
		m.l.Add(dst, a, val[i.B])
	case OpSub:
		m.l.Sub(dst, a, val[i.B])
	case OpMul:
		m.l.Mul(dst, a, val[i.B])
	case OpPdiv:
		m.l.Pdiv(dst, a, val[i.B])
	case OpMin:
		m.l.Min(dst, a, val[i.B])
	case OpMax:
		m.l.Max(dst, a, val[i.B])
	}
}

// load brings columns [lo, hi) of a row of a matrix into dst, or returns the memory itself.
func (m *machine) load(t Symbol, dst []float32, row, lo, hi int) []float32 {
	x, mask := m.in.G, uint16(math.MaxUint16)
	if t == W {
		x, mask = m.in.W, math.MaxInt16
	}

	switch x.DType() {
	case kernels.BF16:
		m.l.BF16(dst, x.RowU16(row)[lo:hi], mask)
	case kernels.F16:
		m.l.F16(dst, x.RowU16(row)[lo:hi], mask)
	default:
		if t != W {
			return x.RowF32(row)[lo:hi]
		}
		m.l.Abs(dst, x.RowF32(row)[lo:hi])
	}

	return dst
}

// worker is the scratch of one goroutine in one pass.
type worker struct {
	m    *machine
	pl   *plan
	regs []float32
	fill [][]float32 // Col values, repeated
	val  [][]float32
}

func (m *machine) worker(pl *plan) *worker {
	n := min(chunk, m.cols)
	w := &worker{m: m, pl: pl, regs: make([]float32, max(1, pl.regs)*n), val: make([][]float32, len(m.p.Code))}
	for range pl.cols {
		w.fill = append(w.fill, make([]float32, n))
	}
	return w
}

// row prepares for a row of the matrix.
func (w *worker) row(i int) {
	for k, v := range w.pl.cols {
		c := w.m.vec[v][i]
		for j := range w.fill[k] {
			w.fill[k][j] = c
		}
	}
}

// run computes columns [lo, hi) of a row; out is the destination of the result there, if the plan has one.
func (w *worker) run(row, lo, hi int, out []float32) {
	m, n := w.m, hi-lo
	for _, v := range w.pl.rows {
		w.val[v] = m.vec[v][lo:hi]
	}
	for k, v := range w.pl.cols {
		w.val[v] = w.fill[k][:n]
	}

	for _, s := range w.pl.steps {
		dst := out
		if s.reg >= 0 {
			at := s.reg * min(chunk, m.cols)
			dst = w.regs[at : at+n]
		}

		if s.Op == OpLoad {
			dst = m.load(s.Term, dst, row, lo, hi)
		} else {
			m.apply(s.Instr, dst, w.val)
		}

		w.val[s.value] = dst
	}

	// A result that is a terminal in F32 is not computed at all: load has given its memory.
	if r := w.pl.result; r >= 0 && n > 0 && &w.val[r][0] != &out[0] {
		copy(out, w.val[r])
	}
}

// emit runs the last pass over the rows of dst and returns the row-major position of the first score that is not finite
// among all rows of the matrix, or -1.
func (m *machine) emit(dst kernels.Mat, first int) int {
	var bad atomic.Int64
	bad.Store(math.MaxInt64)
	t := tiles(dst.Rows, m.cols)
	mmapsafe.EachWith(m.threads, t.count, func() *worker { return m.worker(m.final) }, func(w *worker, tile int) {
		for i := tile * t.rows; i < min((tile+1)*t.rows, dst.Rows); i++ {
			w.row(first + i)
			out := dst.RowF32(i)
			for lo := 0; lo < m.cols; lo += chunk {
				hi := min(lo+chunk, m.cols)
				w.run(first+i, lo, hi, out[lo:hi])
				if m.finite && !m.l.Finite(out[lo:hi]) {
					lower(&bad, int64((first+i)*m.cols+lo+nonFinite(out[lo:hi])))
				}
			}
		}
	})

	if n := bad.Load(); n != math.MaxInt64 {
		return int(n)
	}

	return -1
}

func nonFinite(x []float32) int {
	for i, v := range x {
		if v-v != 0 {
			return i
		}
	}
	return -1
}
