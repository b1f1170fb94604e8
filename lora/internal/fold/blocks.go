package fold

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// Editor computes the edited tensors of an output.
type Editor struct {
	Base    *adapter.Checkpoint
	Out     Writer
	Threads int  // 0: all processors
	Safe    bool // round the delta to the base's element type before it is added
	// KeepZeros leaves zeros of the base's matrices alone.
	KeepZeros bool
	// Trained: the adapter was trained to keep zeros. What its factors say there has never counted, so nothing of
	// its change is lost.
	Trained bool
	// Block is how many elements one thread computes at a time, in whole rows; 0: 512 Ki. Only DoRA's norms of
	// columns depend on it, by rounding.
	Block int
}

// Writer is where edited tensors go. It is called by several goroutines at once.
type Writer interface {
	WriteAt(name string, data []byte, off int64) error
}

// job is the editing of one tensor in blocks of its stored rows.
type job struct {
	*Editor
	e          *Edit
	rows, cols int
	step       int           // rows of a block
	p, q       linalg.Matrix // stored delta / scale = p [rows, r] · q [r, cols]
	elements   [][]element   // of a sparse change instead, by stored row; nil: there are factors
	byRow      []float32     // DoRA: factors of the stored rows; nil: none
	byCol      []float32     // DoRA: factors of the stored columns; nil: none
}

// Edit computes and writes one tensor.
func (w *Editor) Edit(ctx context.Context, e *Edit) (Sums, error) {
	j := &job{Editor: w, e: e, rows: 1, cols: int(e.Info.Shape[len(e.Info.Shape)-1])}
	if len(e.Info.Shape) == 2 {
		j.rows = int(e.Info.Shape[0])
	}

	elements := w.Block
	if elements <= 0 {
		elements = 1 << 19
	}

	j.step = max(1, elements/max(1, j.cols))
	if err := j.prepare(ctx); err != nil {
		return Sums{}, err
	}

	// Each block has sums of its own, added up in their order, so that they do not depend on the number of threads.
	parts := make([]Sums, j.blocks())
	err := j.each(ctx, func(b *block) error {
		j.apply(b)
		j.keep(b, &parts[b.index])
		return j.write(b, &parts[b.index])
	})
	if err != nil {
		return Sums{}, err
	}

	var total Sums
	for _, s := range parts {
		total.Add(s)
	}

	return total, nil
}

// prepare lays the factors out as the tensor is stored, and measures DoRA's norms.
func (j *job) prepare(ctx context.Context) error {
	l := j.e.low
	if l == nil {
		return nil
	}

	if s, ok := l.Factors.(adapter.Sparse); ok {
		j.elements = elementsOf(s, j.rows, j.turned())
		return nil
	}

	a, b := l.Pair()
	p, q := linalg.FromMat(b), linalg.FromMat(a) // [out, r], [r, in]
	if j.turned() {
		p, q = q.T(), p.T()
	}

	j.p, j.q = p, q
	if l.Magnitude == nil {
		return nil
	}

	return j.measure(ctx)
}

// element is one of a sparse change in its row.
type element struct {
	col   int32
	value float32
}

// elementsOf sorts the elements of a sparse change by stored row.
func elementsOf(s adapter.Sparse, rows int, turned bool) [][]element {
	list := make([][]element, rows)
	for i, v := range s.Value.Data() {
		r, c := s.Rows[i], s.Cols[i]
		if turned {
			r, c = c, r
		}
		list[r] = append(list[r], element{c, v})
	}
	return list
}

// addElements adds a sparse change.
func (j *job) addElements(b *block) {
	scale := float32(j.e.low.Scale)
	for i := range b.rows {
		row := b.x[i*j.cols : (i+1)*j.cols]
		for _, e := range j.elements[b.row+i] {
			delta := e.value * scale
			if j.Safe {
				delta = round(delta, j.e.Info.DType)
			}
			row[e.col] += delta
		}
	}
}

// turned reports whether the stored rows are the inputs of the module.
func (j *job) turned() bool { return j.e.low.Module.Transposed || j.e.low.Module.Table }

// measure computes DoRA's factors: magnitude by the norm of each output's weights.
func (j *job) measure(ctx context.Context) error {
	// An output is a row of a matrix as most models store it, which lies in one block, or a column, whose squares are
	// summed over all blocks, in their order.
	byRow := !j.turned()
	squares := make([][]float64, j.blocks())
	err := j.each(ctx, func(b *block) error {
		j.addDelta(b)
		sum := make([]float64, j.cols)
		if byRow {
			sum = make([]float64, b.rows)
		}

		for i := range b.rows {
			for k, v := range b.x[i*j.cols : (i+1)*j.cols] {
				if byRow {
					sum[i] += float64(v) * float64(v)
				} else {
					sum[k] += float64(v) * float64(v)
				}
			}
		}

		squares[b.index] = sum
		return nil
	})
	if err != nil {
		return err
	}

	factors := factorsOf(j.e.low.Magnitude.Data(), squares, byRow)
	if i := dtype.NonFinite(factors); i >= 0 {
		return fmt.Errorf("%s: tensor %q: %w: the weights of output %d are all zero, so DoRA cannot scale them",
			j.Base.Dir, j.e.Info.Name, adapter.ErrUnsupported, i)
	}

	if byRow {
		j.byRow = factors
	} else {
		j.byCol = factors
	}

	return nil
}

// factorsOf divides magnitudes by the roots of sums of squares that the blocks have, one after the other or
// each for all.
func factorsOf(magnitude []float32, squares [][]float64, byRow bool) []float32 {
	sums := make([]float64, 0, len(magnitude))
	for i, s := range squares {
		switch {
		case byRow:
			sums = append(sums, s...)
		case i == 0:
			sums = append(sums, s...)
		default:
			for k, v := range s {
				sums[k] += v
			}
		}
	}

	factors := make([]float32, len(magnitude))
	for i, m := range magnitude {
		factors[i] = m / float32(math.Sqrt(sums[i]))
	}

	return factors
}

// block is some stored rows.
type block struct {
	index, row, rows int
	before           []float32 // of the base
	x                []float32
	raw              []byte
	delta            linalg.Matrix
}

func (j *job) blocks() int { return (j.rows + j.step - 1) / j.step }

// each reads the blocks and calls fn with them, several at once.
func (j *job) each(ctx context.Context, fn func(*block) error) error {
	workers := j.Threads
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}

	g, ctx := mmapsafe.WithContext(ctx)
	workers = min(workers, j.blocks())
	for worker := range workers {
		g.Go(func() error {
			b := &block{}
			for b.index = worker; b.index < j.blocks(); b.index += workers {
				if err := ctx.Err(); err != nil {
					return err
				}

				b.row = b.index * j.step
				b.rows = min(j.step, j.rows-b.row)
				if err := j.read(b); err != nil {
					return err
				}
				if err := fn(b); err != nil {
					return err
				}
			}

			return nil
		})
	}

	return g.Wait()
}

// read gets the rows that the edit starts from.
func (j *job) read(b *block) error {
	n := b.rows * j.cols
	if cap(b.x) < n {
		b.x, b.before = make([]float32, n), make([]float32, n)
		b.raw = make([]byte, n*dtype.Size(j.e.Info.DType))
	}

	b.x, b.before, b.raw = b.x[:n], b.before[:n], b.raw[:n*dtype.Size(j.e.Info.DType)]
	off := int64(b.row) * int64(j.cols) * int64(dtype.Size(j.e.Info.DType))
	if _, err := j.Base.Tensors.ReadAt(j.e.From, b.raw, off); err != nil {
		return err
	}
	if err := dtype.Decode(b.before, b.raw, j.e.Info.DType); err != nil {
		return err
	}
	if i := dtype.NonFinite(b.before); i >= 0 {
		return fmt.Errorf("%s: tensor %q: %w: element %d of the base is %v", j.Base.Dir, j.e.From, adapter.ErrBase,
			b.row*j.cols+i, b.before[i])
	}

	copy(b.x, b.before)
	if w := j.e.whole; w != nil {
		copy(b.x, w.Value.Data()[b.row*j.cols:])
	}

	j.putRows(b)
	return nil
}

// putRows replaces trained rows.
func (j *job) putRows(b *block) {
	for _, r := range j.e.rows {
		for i, id := range r.IDs {
			if at := int(id) - b.row; at >= 0 && at < b.rows {
				copy(b.x[at*j.cols:(at+1)*j.cols], r.Value.Value.RowF32(i))
			}
		}
	}
}

// apply makes the new values of a block.
func (j *job) apply(b *block) {
	if l := j.e.bias; l != nil {
		for i, v := range l.Bias.Data() {
			b.x[i] += float32(l.Scale) * v
		}
	}

	if j.e.low == nil {
		return
	}

	j.addDelta(b)

	for i := range b.rows {
		row := b.x[i*j.cols : (i+1)*j.cols]
		switch {
		case j.byRow != nil:
			for k := range row {
				row[k] *= j.byRow[b.row+i]
			}
		case j.byCol != nil:
			for k := range row {
				row[k] *= j.byCol[k]
			}
		}
	}
}

// keep takes back what the adapter has put where the base has zeros, and measures that.
func (j *job) keep(b *block, s *Sums) {
	if !j.KeepZeros || !j.e.Matrix() {
		return
	}

	for i, was := range b.before {
		change := float64(b.x[i]) - float64(was)
		if !j.Trained {
			s.Whole += change * change
			if was == 0 {
				s.Left += change * change
			}
		}

		if was == 0 {
			b.x[i] = was
		}
	}
}

// addDelta adds the scaled product of the factors.
func (j *job) addDelta(b *block) {
	if j.elements != nil {
		j.addElements(b)
		return
	}

	if b.delta.Data == nil {
		b.delta = linalg.New(j.step, j.cols)
	}

	d := b.delta.Sub(0, b.rows, 0, j.cols)
	linalg.Solver{Threads: 1}.Mul(d, j.p.Sub(b.row, b.row+b.rows, 0, j.p.Cols), j.q, linalg.Product{})

	scale := float32(j.e.low.Scale)
	safe := j.Safe && j.e.low.Magnitude == nil
	for i := range b.rows {
		row := b.x[i*j.cols : (i+1)*j.cols]
		for k, v := range d.Row(i) {
			delta := float32(v) * scale
			if safe {
				delta = round(delta, j.e.Info.DType)
			}
			row[k] += delta
		}
	}
}

// round rounds a value to an element type.
func round(v float32, t safetensors.DType) float32 {
	switch t {
	case safetensors.BF16:
		return kernels.FromBF16(kernels.ToBF16(v))
	case safetensors.F16:
		return kernels.FromF16(kernels.ToF16(v))
	}
	return v
}

// Sums are what is known of a change, in sums over elements: those of parts can be added.
type Sums struct {
	Moved         int64   // elements whose stored value has changed
	MaxAbs        float64 // largest change
	Was           float64 // squares of what was there
	Difference    float64 // squares of the change as stored
	Before, After int64   // zeros
	Whole, Left   float64 // squares of the adapter's change, and of what of it was left out to keep zeros
}

// Add adds those of another part.
func (s *Sums) Add(t Sums) {
	s.Moved += t.Moved
	s.MaxAbs = max(s.MaxAbs, t.MaxAbs)
	s.Was += t.Was
	s.Difference += t.Difference
	s.Before += t.Before
	s.After += t.After
	s.Whole += t.Whole
	s.Left += t.Left
}

// Lost is the norm of what was left out to keep zeros, by the norm of the adapter's change.
func (s *Sums) Lost() float64 { return rootOf(s.Left, s.Whole) }

// Relative is the norm of the change by the norm of what was there.
func (s *Sums) Relative() float64 { return rootOf(s.Difference, s.Was) }

// rootOf is the root of a ratio, 0 of nothing.
func rootOf(a, b float64) float64 {
	if b > 0 {
		return math.Sqrt(a / b)
	}
	return 0
}

// write stores a block and compares it with what was there.
func (j *job) write(b *block, s *Sums) error {
	if err := dtype.Encode(b.raw, b.x, j.e.Info.DType); err != nil {
		return err
	}
	if err := dtype.Decode(b.x, b.raw, j.e.Info.DType); err != nil {
		return err
	}

	if i := s.compare(b.x, b.before); i >= 0 {
		return fmt.Errorf("%s: tensor %q: %w: element %d becomes %v in %s", j.Base.Dir, j.e.Info.Name,
			adapter.ErrFile, b.row*j.cols+i, b.x[i], j.e.Info.DType)
	}

	off := (j.e.first + int64(b.row)*int64(j.cols)) * int64(dtype.Size(j.e.Info.DType))
	return j.Out.WriteAt(j.e.to, b.raw, off)
}

// compare adds what became of was, which is finite. It returns the first element that is now a NaN or an infinity, -1
// if there is none; s then counts for nothing.
func (s *Sums) compare(now, was []float32) int {
	// Two sums of each kind, of even and of odd elements: one alone waits for itself at every addition. Zeros are
	// counted in integers, without branches, which half of the weights of a pruned base would mispredict.
	var wasEven, wasOdd, even, odd float64
	var most uint64 // bits of the largest change, without the sign
	var same, before, after uint64
	now = now[:len(was)]
	for i := 0; i+1 < len(was); i += 2 {
		a, b := was[i], was[i+1]
		c, d := now[i], now[i+1]
		x, y := float64(c)-float64(a), float64(d)-float64(b)

		wasEven += float64(a) * float64(a)
		wasOdd += float64(b) * float64(b)
		even += x * x
		odd += y * y

		p, q := math.Float64bits(x)<<1, math.Float64bits(y)<<1
		most = max(most, p, q)
		same += isZero(p) + isZero(q)
		before += isZero(magnitude(a)) + isZero(magnitude(b))
		after += isZero(magnitude(c)) + isZero(magnitude(d))
	}

	if n := len(was); n%2 != 0 {
		x := float64(now[n-1]) - float64(was[n-1])
		wasEven += float64(was[n-1]) * float64(was[n-1])
		even += x * x

		p := math.Float64bits(x) << 1
		most = max(most, p)
		same += isZero(p)
		before += isZero(magnitude(was[n-1]))
		after += isZero(magnitude(now[n-1]))
	}

	// Squares of differences of finite floats are far from the end of float64.
	if sum := even + odd; sum-sum != 0 {
		return dtype.NonFinite(now)
	}

	s.Add(Sums{
		Moved:  int64(len(was)) - int64(same),
		MaxAbs: math.Float64frombits(most >> 1),
		Was:    wasEven + wasOdd, Difference: even + odd,
		Before: int64(before), After: int64(after),
	})
	return -1
}

// magnitude are the bits of a value but for its sign.
func magnitude(x float32) uint64 { return uint64(math.Float32bits(x) << 1) }

// isZero is 1 for 0 and 0 for everything else.
func isZero(bits uint64) uint64 { return (bits - 1) &^ bits >> 63 }
