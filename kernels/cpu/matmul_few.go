package cpu

import (
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of 3 to 16 rows with a weight as it lies, by blocks of the inner size. The dot kernels of
// matmul_skinny.go read all of x for every four rows of w, from the second-level cache where it is large. Here what x
// has of a block stays in the first-level cache while the rows of a piece run over it, packed once for the product in
// the order in which it is read. Between blocks sums lie in memory as they are in registers, lane by lane, so that every
// element is summed in the order of the dot kernels and has their bits.

// fewKernels are the kernels of such products, by type of w.
type fewKernels struct {
	f32, bf16, f16 func(*fewArgs)
	addLanes       func(*laneArgs)
}

// fewLeast is the number of rows of x, and fewColumns that of rows of w, from which on packing x pays.
const (
	fewLeast   = 4
	fewColumns = 16
)

// cacheLine is what a processor fetches at a time, in bytes.
const cacheLine = 64

// fewLanes is the number of lanes of a sum.
const fewLanes = 8

// fewSpace is how many floats of rows of x and of eight rows of w, four of them on their way, a block has, about: what
// a first-level cache of 32 KB holds, for w passes by.
const fewSpace = 9 << 10

// fewArgs are the operands of a few kernel: for every four rows of w, sums[i][r] (+)= w[r]·x[i], lane by lane. x lies in
// groups of three rows, then of two. The assembly knows the offsets.
type fewArgs struct {
	w, x         unsafe.Pointer // rows of w; of x [group][step][row][lane]
	sums         unsafe.Pointer // [four rows of w][row of x][row of w][lane]
	kept         unsafe.Pointer // scratch memory of the kernel, steps · 4 · lanes floats
	wStride      int            // bytes
	steps        int            // of eight elements
	threes, twos int            // groups of rows of x
	add          int            // 0 overwrites sums, 1 adds to them
	quads        int            // four rows of w each
	fetch        fetchArgs
}

// fetchArgs say what a few kernel fetches into the second-level cache for later while it multiplies, little by little:
// a processor waits where it has too much to fetch at a time. All are bytes.
type fetchArgs struct {
	from        uintptr // where it begins; it may be beyond the weight
	beside      int     // from there to what is fetched with it
	step        int     // on with every two steps
	group, quad int     // on behind a group of rows of x, and behind four rows of w
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

// packBlocks packs x for a product by blocks where that pays: as [block][group][step][row][lane], but for elements after
// the last whole step.
func (p *skinnyProduct) packBlocks() {
	if p.ks.few == nil || p.x.Rows < fewLeast || p.x.Cols < fewLanes || p.w.Rows < fewColumns {
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

// fewRows computes n columns of dst, a multiple of four, from column j on.
func (p *skinnyProduct) fewRows(st *stage, j, n int) {
	if n == 0 {
		return
	}
	whole := p.x.Cols / fewLanes * fewLanes
	st.total = growFloats(st.total, n*p.x.Rows*fewLanes)

	run := p.ks.few.of(p.w.DType())
	stride := p.w.Stride * p.w.DType().Size()
	threes, twos := threesAndTwos(p.x.Rows)
	for k := 0; k < whole; k += p.depth {
		steps := min(p.depth, whole-k) / fewLanes
		st.few = fewArgs{
			w: address(p.w, j, k), x: unsafe.Pointer(&p.blocks[p.x.Rows*k]), sums: unsafe.Pointer(&st.total[0]),
			kept: unsafe.Pointer(&st.f32), wStride: stride, steps: steps, threes: threes, twos: twos, add: min(k, 1),
			quads: n / 4, fetch: p.fetch(j, n, k, steps, threes+twos),
		}
		run(&st.few)
	}

	p.endSums(st, j, n)
}

// fetchesPieces reports whether a piece of a weight is fetched as a whole during another one. That reads memory
// fastest; but floats for four to six rows of x, where there is little else to do, come faster from the caches a few
// rows ahead, and no slower from memory.
func (p *skinnyProduct) fetchesPieces() bool {
	return p.w.Stride == p.w.Cols && (p.w.DType() != kernels.F32 || p.x.Rows > 6)
}

// fetch says what is to be fetched during steps of n rows of w from row j and element k on, for so many groups of rows
// of x.
func (p *skinnyProduct) fetch(j, n, k, steps, groups int) fetchArgs {
	size := p.w.DType().Size()
	stride := p.w.Stride * size
	pair := 2 * fewLanes * size // bytes of a row in two steps
	here := uintptr(address(p.w, j, k))

	switch {
	case p.ahead > 0 && j+p.ahead < p.w.Rows:
		// The rows of a later piece, front to back as memory likes it, while this one's are taken block by block.
		a := fetchArgs{from: uintptr(address(p.w, j+p.ahead, 0)) + uintptr(k*n*size), step: pieces(4*pair, groups)}
		if a.step > cacheLine {
			a.beside = cacheLine
		}
		return a
	case p.ahead > 0:
		return fetchArgs{from: here}
	}

	// The same elements of the next four rows, one of them with every group, or two.
	rows := 1
	if groups < 4 {
		rows = 2
	}
	return fetchArgs{
		from: here + uintptr(4*stride), beside: (rows - 1) * stride, step: pair,
		group: rows*stride - steps/2*pair, quad: 4*stride - groups*rows*stride,
	}
}

// endSums adds up the lanes of n columns and stores them.
func (p *skinnyProduct) endSums(st *stage, j, n int) {
	rows := p.x.Rows
	whole := p.x.Cols / fewLanes * fewLanes
	l := &st.lanes
	*l = laneArgs{sums: unsafe.Pointer(&st.total[0]), rows: rows}
	if whole == p.x.Cols && !p.o.Accumulate && len(p.bias) == 0 {
		l.out, l.outStride, l.quads = address(p.dst, 0, j), p.dst.Stride*4, n/4
		p.ks.few.addLanes(l)
		return
	}

	l.out, l.outStride, l.quads = unsafe.Pointer(&st.out), 4*4, 1
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
