package cpu

import (
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of 4 to 16 rows with a weight as it lies, by blocks of the inner size. The dot kernels of
// matmul_skinny.go read all of x for every four rows of w, from the second-level cache where x is large. Here what x
// has of a block stays in the first-level cache while a stretch of rows of w runs over it; x is packed once for the
// product, in the order in which it is read. Between blocks sums lie in memory as they are in registers, lane by lane,
// so that every element is summed in the order of the dot kernels and has their bits.
//
// w is read from memory once. A stretch, of 32 KB, is taken block by block, which processors don't foresee; so the
// kernel fetches the next stretch into the second-level cache meanwhile.

// fewKernels are the kernels of such products, by type of w.
type fewKernels struct {
	f32, bf16, f16 func(*fewArgs)
	addLanes       func(*laneArgs)
}

// From how many rows of x on, by the size of an element of w, and from how many rows of w on, packing x pays. Of fewer
// rows of x memory is the limit.
const (
	fewLeast32 = 8
	fewLeast16 = 4
	fewColumns = 16
)

// cacheLine is what a processor fetches at a time, in bytes.
const cacheLine = 64

// fewLanes is the number of lanes of a sum.
const fewLanes = 8

// fewBytes is how much of w a stretch has, about: rows that are taken block by block while the next ones are fetched.
const fewBytes = 32 << 10

// fewSpace is how many floats of rows of x and of eight rows of w, four of them on their way, a block has, about: what
// a first-level cache of 32 KB holds, for w passes by.
const fewSpace = 9 << 10

// fewArgs are the operands of a few kernel: for every four rows of w, sums[i][r] (+)= w[r]·x[i], lane by lane. x lies
// in groups of three rows, then of two. The assembly knows the offsets.
type fewArgs struct {
	w, x         unsafe.Pointer // rows of w; of x [group][step][row][lane]
	sums         unsafe.Pointer // [four rows of w][row of x][row of w][lane]
	kept         unsafe.Pointer // scratch memory of the kernel, steps · 4 · lanes floats
	wStride      int            // bytes
	steps        int            // of eight elements
	threes, twos int            // groups of rows of x
	add          int            // 0 overwrites sums, 1 adds to them
	quads        int            // four rows of w each

	// What is fetched into the second-level cache for later, little by little, because a processor waits where it has
	// too much to fetch at a time: where it begins, which may be beyond the weight, how many bytes from there something
	// else is fetched with it, and how many bytes it moves on with every two steps.
	fetch        uintptr
	beside, step int
}

// laneArgs are the operands of the end of sums: out[i][4q+r] = Σ_l sums[q][i][r][l]. The assembly knows the offsets.
type laneArgs struct {
	sums, out   unsafe.Pointer
	outStride   int // bytes
	rows, quads int
}

// of returns the kernel for a type of weight.
func (f *fewKernels) of(t kernels.DType) func(*fewArgs) {
	switch t {
	case kernels.F32:
		return f.f32
	case kernels.BF16:
		return f.bf16
	}
	return f.f16
}

// threesAndTwos is how many groups of three and of two rows there are in rows.
func threesAndTwos(rows int) (threes, twos int) {
	twos = (3 - rows%3) % 3
	return (rows - 2*twos) / 3, twos
}

// packBlocks packs x for a product by blocks where that pays: as [block][group][step][row][lane], but for elements
// after the last whole step.
func (p *skinnyProduct) packBlocks() {
	least := fewLeast16
	if p.w.DType() == kernels.F32 {
		least = fewLeast32
	}
	if p.ks.few == nil || p.x.Rows < least || p.x.Cols < fewLanes || p.w.Rows < fewColumns || p.w.Stride != p.w.Cols {
		return
	}

	whole := p.x.Cols / fewLanes * fewLanes
	p.depth = evenBlock(whole, fewSpace/(p.x.Rows+8), 2*fewLanes)
	p.blocks = grow(p.blocks, p.x.Rows*whole)

	dst := unsafe.Pointer(&p.blocks[0])
	threes, _ := threesAndTwos(p.x.Rows)
	for k := 0; k < whole; k += p.depth {
		steps := min(p.depth, whole-k) / fewLanes
		for i := 0; i < p.x.Rows; {
			rows := 3
			if i >= 3*threes {
				rows = 2
			}
			for r := range rows {
				interleave(unsafe.Add(dst, r*fewLanes*4), address(p.x, i+r, k), steps, rows)
			}
			dst = unsafe.Add(dst, rows*steps*fewLanes*4)
			i += rows
		}
	}
}

// interleave copies steps of eight floats, which are to lie rows steps apart.
func interleave(dst, src unsafe.Pointer, steps, rows int) {
	type step [1][fewLanes]float32 // see floats16
	for s := range steps {
		*(*step)(unsafe.Add(dst, s*rows*fewLanes*4)) = *(*step)(unsafe.Add(src, s*fewLanes*4))
	}
}

// fewRows computes n columns of dst, a multiple of four, from column j on: a stretch of rows of w at a time.
func (p *skinnyProduct) fewRows(st *stage, j, n int) {
	stretch := max(4, fewBytes/(p.w.Cols*p.w.DType().Size())/4*4)
	for end := j + n; j < end; j += stretch {
		rows := min(stretch, end-j)
		next := j + rows
		if next == end {
			next += p.skip
		}
		p.fewStretch(st, j, rows, next)
	}
}

// fewStretch computes n columns of dst from column j on. Row next of w is the first one of those to come.
func (p *skinnyProduct) fewStretch(st *stage, j, n, next int) {
	whole := p.x.Cols / fewLanes * fewLanes
	st.total = growFloats(st.total, n*p.x.Rows*fewLanes)

	threes, twos := threesAndTwos(p.x.Rows)
	size := p.w.DType().Size()
	a := fewArgs{
		sums: unsafe.Pointer(&st.total[0]), kept: unsafe.Pointer(&st.f32), wStride: p.w.Stride * size,
		threes: threes, twos: twos,
	}

	// Memory likes to be read front to back, while this stretch is taken block by block: a share of the next one, of as
	// many bytes as the groups read of w in two steps.
	var ahead uintptr
	if next < p.w.Rows {
		ahead = uintptr(address(p.w, next, 0))
		a.step = pieces(4*2*fewLanes*size, threes+twos)
		if a.step > cacheLine {
			a.beside = cacheLine
		}
	}

	run := p.ks.few.of(p.w.DType())
	for k := 0; k < whole; k += p.depth {
		st.few = a
		st.few.w, st.few.x = address(p.w, j, k), unsafe.Pointer(&p.blocks[p.x.Rows*k])
		st.few.steps = min(p.depth, whole-k) / fewLanes
		st.few.add = min(k, 1)
		st.few.quads = n / 4
		st.few.fetch = ahead + uintptr(k*n*size)
		if ahead == 0 {
			st.few.fetch = uintptr(st.few.w) // there is nothing to come
		}
		run(&st.few)
	}

	p.endSums(st, j, n)
}

// endSums adds up the lanes of n columns and stores them.
func (p *skinnyProduct) endSums(st *stage, j, n int) {
	rows := p.x.Rows
	whole := p.x.Cols / fewLanes * fewLanes
	l := &st.lanes
	*l = laneArgs{sums: unsafe.Pointer(&st.total[0]), rows: rows}
	if whole == p.x.Cols && !p.o.Accumulate && len(p.bias) == 0 {
		l.out = address(p.dst, 0, j)
		l.outStride = p.dst.Stride * 4
		l.quads = n / 4
		p.ks.few.addLanes(l)
		return
	}

	l.out = unsafe.Pointer(&st.out)
	l.outStride = 4 * 4
	l.quads = 1
	for c := 0; c < n; c += 4 {
		l.sums = unsafe.Pointer(&st.total[c*rows*fewLanes])
		p.ks.few.addLanes(l)
		for q := whole; q < p.x.Cols; q++ {
			for r := range 4 {
				v := weightAt(p.w, j+c+r, q)
				for i := range rows {
					st.out[i*4+r] += p.x.RowF32(i)[q] * v
				}
			}
		}
		for i := range rows {
			p.storeSums(p.out[p.dst.Off+i*p.dst.Stride+j+c:][:4], st.out[i*4:], 1, j+c)
		}
	}
}
