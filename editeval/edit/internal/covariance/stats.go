package covariance

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/mmapsafe"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
)

// Statistics are second moments of the keys of a model, not centred: C = Σ k·kᵀ / tokens (ROME: layer_stats.py).
type Statistics struct {
	Model  string // fingerprint of the weights; empty: unknown
	Data   string // hash of the token ids
	Tokens int

	Moments map[int]linalg.Matrix // by decoder layer, [In, In]
}

// Collect computes the statistics of some decoder layers from documents of token ids, every token of which counts. The
// model runs no further than it must, and memory holds the moments and one pass.
func Collect(ctx context.Context, m *lm.Model, docs [][]int32, blocks []int,
	progress func(done, total int),
) (*Statistics, error) {
	s := &Statistics{Data: corpus.HashIDs(docs), Moments: map[int]linalg.Matrix{}}
	sums := map[int]*moment{}
	defer func() {
		for _, x := range sums {
			x.free()
		}
	}()

	last := 0
	for _, b := range blocks {
		l, err := site.Linear(m, b, arch.Down)
		if err != nil {
			return nil, err
		}

		if sums[b], err = newMoment(m.Device(), l.In); err != nil {
			return nil, err
		}

		last = max(last, b)
	}

	hooks := &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		if sum := sums[l.Block]; sum != nil && l.Role == arch.Down {
			sum.add(x)
		}
	}}

	since := 0 // tokens in the float32 sums
	for _, c := range site.Chunks(docs, func(d []int32) int { return len(d) }) {
		n, err := walk(ctx, m, docs[c[0]:c[1]], last, hooks)
		if err != nil {
			return nil, err
		}

		s.Tokens += n

		if since += n; since >= flushTokens || c[1] == len(docs) {
			since = 0
			for _, b := range blocks {
				if err := sums[b].flush(); err != nil {
					return nil, err
				}
			}
		}

		if progress != nil {
			progress(c[1], len(docs))
		}
	}

	if s.Tokens == 0 {
		return nil, fmt.Errorf("%w: no tokens to collect them from", site.ErrStatistics)
	}

	for b, x := range sums {
		x.sum.Scale(1 / float64(s.Tokens))
		x.sum.Symmetrize() // products in parts of 16 bits differ in their last digits; files keep the lower triangle
		s.Moments[b] = x.sum
	}

	return s, nil
}

// walk runs documents through the first layers.
func walk(ctx context.Context, m *lm.Model, docs [][]int32, last int, hooks *lm.Hooks) (tokens int, err error) {
	h, err := m.Embed(docs)
	if err != nil {
		return 0, err
	}
	defer h.Free()

	for b := range last + 1 {
		if err := m.RunBlock(ctx, b, h, hooks); err != nil {
			return 0, err
		}
	}

	return h.X.Rows, m.Device().Ops().Sync()
}

// flushTokens is how many tokens are summed in float32 before they go to the float64 sum: few enough that 1e-6
// of a sum is kept.
const flushTokens = 16384

// moment is a sum of outer products: a few passes in float32, their sum in float64.
type moment struct {
	dev  kernels.Device
	buf  *kernels.Buffer
	part kernels.Mat
	any  bool
	sum  linalg.Matrix
}

func newMoment(dev kernels.Device, n int) (*moment, error) {
	buf, err := dev.Alloc(kernels.F32, n*n)
	if err != nil {
		return nil, fmt.Errorf("key statistics: %w", err)
	}
	return &moment{dev: dev, buf: buf, part: kernels.MatOf(buf, n, n), sum: linalg.New(n, n)}, nil
}

func (x *moment) free() { x.buf.Free() }

// add adds the products of a pass.
func (x *moment) add(keys kernels.Mat) {
	x.dev.Ops().MatMulTN(x.part, keys, keys, kernels.MatMul{Accumulate: x.any})
	x.any = true
}

// flush moves the sum of a pass over.
func (x *moment) flush() error {
	if !x.any {
		return nil
	}

	x.any = false
	r := site.Rows{Dev: x.dev}
	errs := make([]error, x.sum.Rows)
	mmapsafe.Each(0, x.sum.Rows, func(i int) {
		v, err := r.Get(x.part, i)
		errs[i] = err
		for j := range v {
			x.sum.Row(i)[j] += v[j]
		}
	})

	for _, err := range errs {
		if err != nil {
			return err
		}
	}

	return nil
}

// Damping says what had to be added to the diagonal of a covariance, so that it could be factored.
type Damping struct {
	Layer int
	Share float64 // of the mean of the diagonal
}

// Covariance gives factors and solves of the second moments, made once a layer.
type Covariance struct {
	Stats   map[int]linalg.Matrix // by decoder layer; nil: none are given
	Ridge   float64               // added to the diagonal before it is factored
	Share   float64               // and this fraction of its mean
	Solver  linalg.Solver
	factors map[int]linalg.Matrix // lower Cholesky
	Damped  []Damping
}

// Moments is C of a layer.
func (c *Covariance) Moments(block, in int) (linalg.Matrix, error) {
	if c.Stats == nil {
		return linalg.Matrix{}, fmt.Errorf("%w: the method needs the covariance of keys (HINT: give a text)",
			site.ErrStatistics)
	}

	m, ok := c.Stats[block]
	if !ok {
		return m, fmt.Errorf("%w: none of layer %d", site.ErrStatistics, block)
	}

	if m.Rows != in || m.Cols != in {
		return m, fmt.Errorf("%w: layer %d has keys of %d values, the statistics %d", site.ErrStatistics, block, in,
			m.Rows)
	}

	return m, m.CheckFinite()
}

// factor is the lower Cholesky factor of C of a layer. A matrix that is not positive definite, as one from too
// few tokens is, gets a fraction of its mean diagonal added, which is reported.
func (c *Covariance) factor(block, in int) (linalg.Matrix, error) {
	if f, ok := c.factors[block]; ok {
		return f, nil
	}

	m, err := c.Moments(block, in)
	if err != nil {
		return m, err
	}

	// Undamped first, as in the published code, and with the least damping that helps: whatever is added of the
	// identity lets edits leak into directions that ordinary keys use.
	m = c.ridged(m)
	f := m.Clone()
	if c.Solver.Cholesky(f, false) != nil || narrow(f) {
		f = linalg.New(in, in)
		d, err := c.Solver.Damped(f, 1e-6, func(h linalg.Matrix) { h.Copy(m) },
			func(h linalg.Matrix) error { return c.Solver.Cholesky(h, false) })
		if err != nil {
			return f, fmt.Errorf("%w: layer %d: %w", site.ErrStatistics, block, err)
		}
		c.Damped = append(c.Damped, Damping{block, d.Share})
	}

	if c.factors == nil {
		c.factors = map[int]linalg.Matrix{}
	}

	c.factors[block] = f
	return f, nil
}

// ridged is m with what is added to its diagonal.
func (c *Covariance) ridged(m linalg.Matrix) linalg.Matrix {
	if c.Ridge == 0 && c.Share == 0 {
		return m
	}

	mean := 0.0
	for i := range m.Rows {
		mean += m.At(i, i) / float64(m.Rows)
	}
	m = m.Clone()
	for i := range m.Rows {
		m.Set(i, i, m.At(i, i)+c.Ridge+c.Share*mean)
	}
	return m
}

// narrow reports whether a factor lost its precision: a pivot of 1e-7 of the largest (1e-14 of the matrix) is rounding.
func narrow(f linalg.Matrix) bool {
	low, high := f.At(0, 0), f.At(0, 0)
	for i := range f.Rows {
		low, high = min(low, f.At(i, i)), max(high, f.At(i, i))
	}
	return low < 1e-7*high
}

// Solve is C⁻¹·K for keys in rows, again in rows.
func (c *Covariance) Solve(block int, keys linalg.Matrix) (linalg.Matrix, error) {
	f, err := c.factor(block, keys.Cols)
	if err != nil {
		return keys, err
	}
	x := keys.T()
	if err := c.Solver.CholeskySolve(f, x, false); err != nil {
		return x, fmt.Errorf("%w: layer %d: %w", site.ErrStatistics, block, err)
	}
	return x.T(), nil
}

// key identifies statistics in a cache.
func (s *Statistics) key(block int) string {
	h := sha256.New()
	for _, part := range []string{"key statistics 1", s.Model, s.Data} {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(block)))
	return hex.EncodeToString(h.Sum(nil))
}
