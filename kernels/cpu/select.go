package cpu

import (
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
)

// Selection works on keys: a score as an int32 that orders as the score does, with -0 and +0 the same key and
// every NaN the highest key, above +Inf. A NaN score therefore never breaks the count of dropped elements; it
// is dropped last. Keys are made chunk by chunk in a scratch that stays in the first-level cache and are never
// stored for a whole matrix.

const (
	nanKey   = math.MaxInt32 // the key of a NaN score
	keyChunk = 2048          // keys made at a time: 8 KiB
	keyPad   = 64            // spare keys behind a scratch, which vector kernels may read and write
	tileSize = 1 << 16       // elements that one piece of parallel work covers, roughly
)

// selector runs the selection operations with one set of kernels.
type selector struct {
	dev *Device
	k   *selectKernels
}

// selectOps fills the operations that choose and count elements.
func (d *Device) selectOps(o *kernels.Ops) {
	s := selector{dev: d, k: selectKernelsFor(d.isa)}
	o.SelectRows = s.rows
	o.SelectAll = s.all
	o.SelectNM = s.nm
	o.ColSumSq = s.colSumSq
	o.ApplyMask = s.applyMask
	o.NonFinite = s.nonFinite
	o.CountZero = s.countZero
}

// rows implements [kernels.Ops].SelectRows.
func (s selector) rows(mask kernels.Mat, score kernels.Score, drop int) {
	src := s.source(mask, score)
	if drop < 0 || drop > mask.Cols {
		panic("cpu: SelectRows drops fewer than zero or more than all columns")
	}

	per := max(1, tileSize/max(1, mask.Cols))
	s.dev.parallel(ceilDiv(mask.Rows, per), func(p int) {
		for i := p * per; i < min((p+1)*per, mask.Rows); i++ {
			s.row(mask.RowU8(i), src, i, drop)
		}
	})

	mask.Buf.Changed()
}

// row writes the keep mask of one row.
func (s selector) row(mask []uint8, src keySource, i, drop int) {
	switch drop {
	case 0:
		fillMask(mask, 1)
		return
	case len(mask):
		fillMask(mask, 0)
		return
	}

	scratch := borrowKeys(3 * (len(mask) + keyPad))
	defer scratch.giveBack()

	keys := scratch.take(len(mask))
	src.keys(keys, i, 0)
	s.dropLowest(mask, keys, drop, scratch.take(len(mask)), scratch.take(len(mask)))
}

// all implements [kernels.Ops].SelectAll.
func (s selector) all(mask kernels.Mat, score kernels.Score, drop int) {
	src := s.source(mask, score)
	if drop >= mask.Len() && drop > 0 {
		panic("cpu: SelectAll has no score of that rank")
	}
	defer mask.Buf.Changed()

	if drop < 0 || mask.Len() == 0 {
		for i := range mask.Rows {
			fillMask(mask.RowU8(i), 1)
		}
		return
	}

	// Two readings of the matrix: one finds the threshold, one compares. Keys are made in both, which is cheaper than
	// keeping four bytes for every weight.
	t := s.threshold(src, mask, drop)
	g := tiling(mask, keyChunk)
	s.dev.parallel(g.count(), func(p int) {
		scratch := borrowKeys(keyChunk + keyPad)
		defer scratch.giveBack()
		buf := scratch.take(keyChunk)
		g.each(p, func(i, lo, hi int) {
			keys := buf[:hi-lo]
			src.keys(keys, i, lo)
			s.k.above(mask.RowU8(i)[lo:hi], keys, t)
		})
	})
}

// nm implements [kernels.Ops].SelectNM.
func (s selector) nm(mask kernels.Mat, score kernels.Score, n, m int) {
	src := s.source(mask, score)
	if m < 1 || n < 0 || n > m {
		panic("cpu: SelectNM needs 0 <= n <= m and m >= 1")
	}

	m = min(m, max(1, mask.Cols)) // a longer group is as long as the row
	plan := newGroupPlan(min(n, m), m, s.k.lanes)
	g := tiling(mask, plan.chunk())
	s.dev.parallel(g.count(), func(p int) {
		size := min(plan.chunk(), mask.Cols)
		scratch := borrowKeys(3 * (size + keyPad))
		defer scratch.giveBack()

		buf := scratch.take(size)
		a := scratch.take(size)
		b := scratch.take(size)
		g.each(p, func(i, lo, hi int) {
			keys := buf[:hi-lo]
			src.keys(keys, i, lo)
			s.groups(mask.RowU8(i)[lo:hi], keys, plan, src.address(i, hi), a, b)
		})
	})

	mask.Buf.Changed()
}

// dropLowest writes the keep mask that drops the drop lowest keys, 0 < drop < len(keys). a and b are scratch of the
// length of keys.
func (s selector) dropLowest(mask []uint8, keys []int32, drop int, a, b []int32) {
	t, below := s.k.nth(keys, drop-1, a, b)
	tied := s.k.above(mask, keys, t)
	for j := len(mask) - 1; tied > drop-below; j-- { // more columns share the threshold than may go: keep the highest
		if keys[j] == t {
			mask[j] = 1
			tied--
		}
	}
}

// keySource makes the keys of a score.
type keySource struct {
	k   *selectKernels
	x   kernels.Mat
	col []float32 // nil: all ones
	abs uint32    // bits of X that count: all but the sign, or all for raw scores
}

// source checks the operands of a selection and returns the source of its keys.
func (s selector) source(mask kernels.Mat, score kernels.Score) keySource {
	if mask.DType() != kernels.U8 {
		panic("cpu: a keep mask must be U8")
	}
	if mask.Rows != score.X.Rows || mask.Cols != score.X.Cols {
		panic("cpu: keep mask and score differ in shape")
	}

	// The sign bit is cleared from keys, unless raw scores are compared with it.
	src := keySource{k: s.k, x: score.X, abs: math.MaxInt32}
	if score.Raw {
		src.abs = math.MaxUint32
	}
	if !score.Col.IsZero() {
		if score.Col.Rows != 1 || score.Col.Cols != score.X.Cols {
			panic("cpu: Score.Col must be [1, cols]")
		}
		src.col = score.Col.RowF32(0)
	}

	switch score.X.DType() {
	case kernels.F32, kernels.BF16, kernels.F16:
	default:
		panic("cpu: Score.X must be F32, BF16 or F16")
	}

	return src
}

// keys writes the keys of row i, columns [lo, lo+len(dst)).
func (s *keySource) keys(dst []int32, i, lo int) {
	hi := lo + len(dst)
	var col []float32
	if s.col != nil {
		col = s.col[lo:hi]
	}

	switch s.x.DType() {
	case kernels.F32:
		s.k.keysF32(dst, s.x.RowF32(i)[lo:hi], col, s.abs)
	case kernels.BF16:
		s.k.keysBF16(dst, s.x.RowU16(i)[lo:hi], col, s.abs)
	default:
		s.k.keysF16(dst, s.x.RowU16(i)[lo:hi], col, s.abs)
	}
}

// address is where element (i, j) of X lies; j may be the number of columns. It is good for prefetching only.
func (s *keySource) address(i, j int) uintptr {
	b := s.x.Buf.Bytes()
	return uintptr(unsafe.Pointer(unsafe.SliceData(b))) + uintptr((s.x.Off+i*s.x.Stride+j)*s.x.DType().Size())
}

// tileGrid cuts a matrix into pieces of parallel work, and each piece into chunks of a row. The bounds follow from the
// shape alone.
type tileGrid struct {
	rows, cols, chunk  int
	tileRows, tileCols int
	across             int // tiles side by side
}

// tiling cuts m into tiles of about tileSize elements and into chunks of chunk columns.
func tiling(m kernels.Mat, chunk int) tileGrid {
	t := tileGrid{rows: m.Rows, cols: m.Cols, chunk: chunk}
	t.tileCols = max(chunk, tileSize/chunk*chunk)
	t.tileRows = max(1, tileSize/max(1, min(m.Cols, t.tileCols)))
	t.across = ceilDiv(m.Cols, t.tileCols)
	return t
}

// count is the number of tiles.
func (t *tileGrid) count() int { return ceilDiv(t.rows, t.tileRows) * t.across }

// each calls f for every chunk of tile p: row i, columns [lo, hi).
func (t *tileGrid) each(p int, f func(i, lo, hi int)) {
	r, c := p/t.across*t.tileRows, p%t.across*t.tileCols
	for i := r; i < min(r+t.tileRows, t.rows); i++ {
		for lo := c; lo < min(c+t.tileCols, t.cols); lo += t.chunk {
			f(i, lo, min(lo+t.chunk, c+t.tileCols, t.cols))
		}
	}
}

// keyScratch is a stretch of key memory that pieces of work borrow and cut up.
type keyScratch struct {
	mem  []int32
	used int
	from *sync.Pool
}

// keyScratches are of rows and chunks, matrixScratches of what a pass over a matrix keeps: a small one that
// came in place of a large one would be made anew, and its pages with it.
var keyScratches, matrixScratches sync.Pool

// borrowKeys returns a scratch for at least n keys, padding included.
func borrowKeys(n int) *keyScratch { return borrow(&keyScratches, n) }

func borrow(from *sync.Pool, n int) *keyScratch {
	s, ok := from.Get().(*keyScratch)
	if !ok {
		s = &keyScratch{from: from}
	}
	if len(s.mem) < n {
		s.mem = make([]int32, n)
	}
	s.used = 0
	return s
}

// take cuts n keys off; keyPad more are writable behind them.
func (s *keyScratch) take(n int) []int32 {
	at := s.used
	s.used += n + keyPad
	return s.mem[at : at+n : s.used]
}

func (s *keyScratch) giveBack() { s.from.Put(s) }

// sampleKeys returns the sorted keys of at most n elements spread over the matrix by a fixed pseudo-random sequence.
func sampleKeys(src keySource, rows, cols, n int) []int32 {
	n = min(n, rows*cols)
	sample := make([]int32, n, n+keyPad)
	for i := range sample {
		at := int(rng.Key(0).Bits(uint64(i)) % uint64(rows*cols))
		src.keys(sample[i:i+1], at/cols, at%cols)
	}
	slices.Sort(sample)
	return sample
}

func fillMask(mask []uint8, v uint8) {
	for i := range mask {
		mask[i] = v
	}
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
