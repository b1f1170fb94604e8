package optim

import (
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// LOMOOptions configures [NewLOMO].
type LOMOOptions struct {
	ClipValue   float64 // largest magnitude of a gradient's element, before GradScale; 0 means no bound
	WeightDecay float64 // fraction of the value, times the learning rate, that a step takes away; default 0
	Threads     int     // CPU threads; 0: one for each processor
}

// LOMO is low-memory optimisation (Lv et al., arXiv 2306.09782): plain gradient descent, θ ← θ - η·g, meant to
// be applied during the backward pass, so that gradients need not be kept. Its clipping by the norm takes two
// passes: one that adds up [SumSquares], one that applies with the coefficient as [Step].GradScale. State: the
// count of steps only.
type LOMO struct {
	o LOMOOptions
	table
}

// NewLOMO returns a LOMO. The error lists every option out of range.
func NewLOMO(o LOMOOptions) (*LOMO, error) {
	var errs []error
	o.ClipValue = number("clip value", o.ClipValue, 0, 0, inf, &errs)
	o.WeightDecay = number("weight decay", o.WeightDecay, 0, 0, inf, &errs)
	return &LOMO{o: o}, errors.Join(errs...)
}

// Apply implements [Optimizer].
func (l *LOMO) Apply(p Param, s Step) error {
	if err := p.check(); err != nil {
		return err
	}

	slot, err := l.of(p, nil)
	if err != nil {
		return err
	}

	slot.step++
	g := p.grad()
	lr := p.rate(s)
	clip := newClip(l.o.ClipValue, s)
	keep, rate := float32(1-lr*p.decay(l.o.WeightDecay)), float32(-lr)
	values{m: p.Value}.change(l.o.Threads, func(lo int, p []float32) {
		for i, d := range g[lo:][:len(p)] {
			p[i] = float32(p[i]*keep) + float32(rate*clip.apply(d))
		}
	})

	return nil
}

// clip bounds and then scales gradients. Magnitudes are compared as bit patterns, whose order is the same,
// because that needs no branch; NaN stays NaN.
type clip struct {
	bound, span uint32 // magnitudes in (bound, bound+span] become bound
	scale       float32
}

func newClip(bound float64, s Step) clip {
	if bound == 0 {
		bound = inf
	}
	b := math.Float32bits(float32(bound))
	return clip{b, math.Float32bits(float32(inf)) - b, s.scale()}
}

func (c clip) apply(d float32) float32 {
	const sign = 1 << 31
	bits := math.Float32bits(d)
	size := bits &^ sign
	if size-c.bound-1 < c.span {
		size = c.bound
	}
	return math.Float32frombits(size|bits&sign) * c.scale
}

// AdaLomoOptions configures [NewAdaLomo].
type AdaLomoOptions struct {
	DecayRate   float64 // exponent k of the decay β = 1 - t^-k of mean squares at step t; 0 means 0.8
	EpsSquare   float64 // added to squared gradients; 0 means 1e-30
	EpsScale    float64 // smallest root mean square of a value that scales the learning rate; 0 means 1e-3
	Threshold   float64 // root mean square beyond which a matrix's update is scaled down; 0 means 1
	ClipValue   float64 // largest magnitude of a gradient's element, before GradScale; 0 means no bound
	WeightDecay float64 // fraction of the value, times the scaled learning rate, that a step takes away; default 0
	Threads     int     // CPU threads; 0: one for each processor
}

// AdaLomo is LOMO with an adaptive learning rate (Lv et al., arXiv 2310.10195, algorithm 1, with the decay and
// the constants of the authors' published implementation, which are those of Adafactor): for a matrix with rows
// i and columns j,
//
//	r ← β·r + (1-β)·mean_j(g² + ε₁);  c ← β·c + (1-β)·mean_i(g² + ε₁);  v_ij = r_i·c_j / mean(r)
//	u = g/√v;  u ← u / max(1, rms(u)/d);  η' = η·max(ε₂, rms(θ));  θ ← θ·(1 - η'·λ) - η'·u
//
// Parameters with one row keep v itself. State: exp_avg_sq_row and exp_avg_sq_col, or exp_avg_sq. Sums are
// carried in float64.
type AdaLomo struct {
	o AdaLomoOptions
	table
}

// NewAdaLomo returns an AdaLomo without state. The error lists every option out of range.
func NewAdaLomo(o AdaLomoOptions) (*AdaLomo, error) {
	var errs []error
	o.DecayRate = number("decay rate", o.DecayRate, 0.8, 0, inf, &errs)
	o.EpsSquare = number("eps of squares", o.EpsSquare, 1e-30, 0, inf, &errs)
	o.EpsScale = number("eps of scale", o.EpsScale, 1e-3, 0, inf, &errs)
	o.Threshold = number("threshold", o.Threshold, 1, 0, inf, &errs)
	o.ClipValue = number("clip value", o.ClipValue, 0, 0, inf, &errs)
	o.WeightDecay = number("weight decay", o.WeightDecay, 0, 0, inf, &errs)
	return &AdaLomo{o, table{kinds: []string{"exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"}}}, errors.Join(errs...)
}

// Apply implements [Optimizer]. A gradient that is not finite is an error too, wrapping [ErrNonFinite].
func (a *AdaLomo) Apply(p Param, s Step) error {
	if err := p.check(); err != nil {
		return err
	}

	u := &adaUpdate{
		AdaLomoOptions: a.o, g: p.grad(), clip: newClip(a.o.ClipValue, s), rows: p.Value.Rows,
		cols: p.Value.Cols,
	}
	if len(u.g) == 0 {
		return nil
	}

	sums := u.squares()
	if math.IsNaN(sums.total) || math.IsInf(sums.total, 0) {
		return fmt.Errorf("%s: %w", p.Name, ErrNonFinite)
	}

	sizes := map[string]int{"exp_avg_sq": u.cols}
	if u.rows > 1 {
		sizes = map[string]int{"exp_avg_sq_row": u.rows, "exp_avg_sq_col": u.cols}
	}

	slot, err := a.of(p, sizes)
	if err != nil {
		return err
	}

	slot.step++
	u.beta = 1 - math.Pow(float64(slot.step), -a.o.DecayRate)
	u.factors(slot, sums)
	lr := p.rate(s) * max(a.o.EpsScale, math.Sqrt(sumSquaresOf(p.Value, a.o.Threads)/float64(len(u.g))))
	u.subtract(p.Value, lr, p.decay(a.o.WeightDecay))

	return nil
}

// adaUpdate is one step for one parameter.
type adaUpdate struct {
	AdaLomoOptions
	clip
	g          []float32
	rows, cols int
	beta       float64
	row, col   []float32 // u_ij = row_i·col_j·g_ij
}

// squareSums are sums of g².
type squareSums struct {
	row, col []float64
	total    float64
}

// bands cuts the rows into at most 64 bands of a fixed size, and calls f for each.
func (u *adaUpdate) bands(f func(band, lo, hi int)) int {
	per := max(1, chunk/u.cols, pieces(u.rows, 64))
	n := pieces(u.rows, per)
	if f != nil {
		mmapsafe.Each(u.Threads, n, func(i int) { f(i, i*per, min(u.rows, (i+1)*per)) })
	}
	return n
}

// squares adds up squared gradients by row and by column.
func (u *adaUpdate) squares() squareSums {
	s := squareSums{row: make([]float64, u.rows), col: make([]float64, u.cols)}
	part := make([]float64, u.bands(nil)*u.cols)
	u.bands(func(band, lo, hi int) {
		col := part[band*u.cols:][:u.cols]
		for i := lo; i < hi; i++ {
			s.row[i] = u.addSquares(col, u.g[i*u.cols:][:u.cols])
		}
	})

	for b := 0; b < len(part); b += u.cols {
		for j, v := range part[b:][:u.cols] {
			s.col[j] += v
		}
	}

	for _, v := range s.row {
		s.total += v
	}

	return s
}

// addSquares adds squares to col and returns their sum. Two sums, so that additions need not wait for each other.
func (u *adaUpdate) addSquares(col []float64, g []float32) float64 {
	var even, odd float64
	col = col[:len(g)]
	j := 0
	for ; j+2 <= len(g); j += 2 {
		x, y := float64(u.clip.apply(g[j])), float64(u.clip.apply(g[j+1]))
		x, y = x*x, y*y
		col[j] += x
		col[j+1] += y
		even, odd = even+x, odd+y
	}

	if j < len(g) {
		x := float64(u.clip.apply(g[j]))
		col[j] += x * x
		even += x * x
	}

	return even + odd
}

// factors moves the mean squares on and derives row and col.
func (u *adaUpdate) factors(slot *slot, s squareSums) {
	u.row, u.col = make([]float32, u.rows), make([]float32, u.cols)
	move := func(state []float32, sums []float64, n int) (mean float64) {
		for i, v := range sums {
			state[i] = float32(u.beta*float64(state[i]) + (1-u.beta)*(v/float64(n)+u.EpsSquare))
			mean += float64(state[i])
		}
		return mean / float64(len(sums))
	}

	if u.rows == 1 {
		c := slot.bufs["exp_avg_sq"]
		move(c, s.col, 1)
		u.row[0] = 1
		rootsInto(u.col, c, 1)
		return
	}

	r, c := slot.bufs["exp_avg_sq_row"], slot.bufs["exp_avg_sq_col"]
	mean := move(r, s.row, u.cols)
	move(c, s.col, u.rows)
	rootsInto(u.row, r, mean)
	rootsInto(u.col, c, 1)
}

// rootsInto writes √(mean/v).
func rootsInto(dst, v []float32, mean float64) {
	for i, x := range v {
		dst[i] = float32(math.Sqrt(mean / float64(x)))
	}
}

// subtract scales the update to the threshold and subtracts it.
func (u *adaUpdate) subtract(value kernels.Mat, lr, decay float64) {
	part := make([]float64, u.bands(nil))
	u.bands(func(band, lo, hi int) {
		for i := lo; i < hi; i++ {
			part[band] += u.sumUpdate(u.g[i*u.cols:][:u.cols]) * float64(u.row[i]) * float64(u.row[i])
		}
	})

	total := 0.0
	for _, v := range part {
		total += v
	}

	rms := math.Sqrt(total / float64(len(u.g)))
	keep, rate := float32(1-lr*decay), float32(-lr/max(1, rms/u.Threshold))
	values{m: value}.change(u.Threads, func(lo int, p []float32) {
		for len(p) > 0 { // row by row
			i, j := lo/u.cols, lo%u.cols
			n := min(len(p), u.cols-j)
			u.subtractRow(p[:n], u.g[lo:][:n], u.col[j:][:n], u.row[i], keep, rate)
			p, lo = p[n:], lo+n
		}
	})
}

// sumUpdate adds up squared updates of a row, but for its factor.
func (u *adaUpdate) sumUpdate(g []float32) float64 {
	var even, odd float64
	col := u.col[:len(g)]
	j := 0
	for ; j+2 <= len(g); j += 2 {
		x, y := float64(col[j]*u.clip.apply(g[j])), float64(col[j+1]*u.clip.apply(g[j+1]))
		even, odd = even+x*x, odd+y*y
	}

	if j < len(g) {
		x := float64(col[j] * u.clip.apply(g[j]))
		even += x * x
	}

	return even + odd
}

func (u *adaUpdate) subtractRow(p, g, col []float32, row, keep, rate float32) {
	g, col = g[:len(p)], col[:len(p)]
	for j, x := range p {
		d := float32(row*col[j]) * u.clip.apply(g[j])
		p[j] = float32(x*keep) + float32(rate*d)
	}
}
