package quantize

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// grid is the numbers that the weights of one matrix [rows, cols] become: scales, zero points and codes. It is an
// obs.Grid.
type grid struct {
	form    Scheme // what the matrix is stored as
	numbers quantized.Numbers
	rounder quantized.Rounder
	scheme  Numbers
	rows    int
	cols    int
	across  int // columns that share a scale
	down    int // rows that share one
	width   int // scales in a row of rectangles

	scale  []float32
	zero   []int8 // nil for symmetric numbers
	global float32
	code   []byte

	order []int // column of the matrix that stands at a place of the sweep; nil: they stand as they are
	late  bool  // scales are fitted when the sweep comes to them

	search  *quantized.Search // of ranges; nil: those of the elements
	weight  []float32         // of the inputs' errors in a search; nil: all weigh the same
	shares  []float32         // of the range of the elements that each scale is fitted to; nil: all of it
	halves  bool              // scales are fitted by HQQ
	foreign bool              // the weights are no numbers of the type
}

// newGrid makes room for the codes of a matrix. stored is the type of its elements in the checkpoint, which its scales
// get too.
func newGrid(s Numbers, rows, cols int, stored safetensors.DType) (*grid, error) {
	g := &grid{
		scheme: s, rows: rows, cols: cols, across: s.columns(cols), down: 1,
		numbers: quantized.Numbers{
			Float: s.Kind == Float, Bits: s.Bits, Symmetric: s.Symmetric, PowerOfTwo: s.PowerOfTwo, DType: stored,
		},
	}
	if s.Strategy == PerBlock {
		g.down = s.Block[0]
	} else if cols%g.across != 0 {
		return nil, failure.Hinted(fmt.Errorf("%w: groups of %d inputs do not divide %d; %s", ErrLayout, g.across, cols,
			divisors(cols)), "--group-size sets another, --ignore leaves matrices out")
	}

	g.rounder = g.numbers.Rounder(false)
	g.width = (cols + g.across - 1) / g.across
	g.scale = make([]float32, (rows+g.down-1)/g.down*g.width)
	if !s.Symmetric {
		g.zero = make([]int8, len(g.scale))
	}

	return g, nil
}

// divisors says which sizes of groups would do.
func divisors(cols int) string {
	var sizes []string
	for n := 512; n >= 16; n /= 2 {
		if cols%n == 0 {
			sizes = append(sizes, fmt.Sprint(n))
		}
	}
	if len(sizes) == 0 {
		return "none of the usual sizes does; a scale for each output (-1) goes"
	}
	return "of the usual sizes " + strings.Join(sizes, ", ") + " do"
}

// fit fits all scales to a matrix, F32 in host memory. largest is what NVFP4's scale of the matrix goes by: the largest
// magnitude of all matrices that runtimes run as one, or 0 for this one alone.
func (g *grid) fit(w kernels.Mat, largest float32, threads int) {
	if g.scheme.Strategy == PerTensorGroup {
		g.global = g.numbers.GlobalScale(max(largest, magnitude(w)))
	}

	bands := (g.rows + g.down - 1) / g.down
	mmapsafe.Split(threads, bands, func(lo, hi int) {
		low := make([]float32, g.width)
		high := make([]float32, g.width)
		for band := lo; band < hi; band++ {
			first := band * g.down
			last := min(g.rows, first+g.down)
			if g.halves || g.search != nil {
				g.fitApart(w, band, first, last)
				continue
			}

			g.extents(low, high, w.RowRange(first, last))
			for group := range g.width {
				at := band*g.width + group
				if g.shares != nil {
					most := g.shares[at] * max(-low[group], high[group])
					low[group], high[group] = max(low[group], -most), min(high[group], most)
				}
				g.set(at, low[group], high[group])
			}
		}
	})
}

// fitApart fits the scales of rows that share them one by one, by HQQ or the search.
func (g *grid) fitApart(w kernels.Mat, band, first, last int) {
	for group := range g.width {
		from := group * g.across
		at := band*g.width + group
		x := rectangle(w, first, last, from, min(g.cols, from+g.across))
		if g.halves {
			scale, zero := g.numbers.FitHalfQuadratic(x)
			g.scale[at], g.zero[at] = scale, int8(zero)
			continue
		}
		g.look(at, from, x)
	}
}

// extents finds the least and the largest element, and 0, of each group of columns of some rows.
func (g *grid) extents(low, high []float32, w kernels.Mat) {
	quantized.Extents(low, high, w.RowF32(0), g.across)
	if w.Rows == 1 {
		return
	}

	lower := make([]float32, len(low))
	higher := make([]float32, len(low))
	for i := 1; i < w.Rows; i++ {
		quantized.Extents(lower, higher, w.RowF32(i), g.across)
		for k, v := range lower {
			low[k] = min(low[k], v)
			high[k] = max(high[k], higher[k])
		}
	}
}

// bounds are the least and the largest element, and 0.
func bounds(x []float32) (low, high float32) {
	for _, v := range x {
		low = min(low, v)
		high = max(high, v)
	}
	return low, high
}

// magnitude is the largest magnitude of a matrix.
func magnitude(w kernels.Mat) (m float32) {
	for i := range w.Rows {
		low, high := bounds(w.RowF32(i))
		m = max(m, -low, high)
	}
	return m
}

// set fits one scale to elements from low to high.
func (g *grid) set(at int, low, high float32) {
	if g.scheme.Strategy == PerTensorGroup {
		g.scale[at] = g.numbers.FitE4M3(max(-low, high), g.global)
		return
	}

	scale, zero := g.numbers.Fit(low, high)
	g.scale[at] = scale
	if g.zero != nil {
		g.zero[at] = int8(zero)
	}
}

// look searches the scale of elements, of inputs from one on, row by row.
func (g *grid) look(at, from int, x []float32) {
	one := quantized.Group{X: x, Global: g.global, Typed: !g.foreign}
	if g.weight != nil {
		columns := g.weight[from:min(g.cols, from+g.across)]
		for len(one.Weight) < len(x) {
			one.Weight = append(one.Weight, columns...)
		}
	}

	scale, zero := g.numbers.FitLeastError(one, *g.search)
	g.scale[at] = scale
	if g.zero != nil {
		g.zero[at] = int8(zero)
	}
}

// rectangle is a part of a matrix, row by row: its own memory where it is of one row.
func rectangle(w kernels.Mat, first, last, from, to int) []float32 {
	if last == first+1 {
		return w.RowF32(first)[from:to]
	}
	x := make([]float32, 0, (last-first)*(to-from))
	for i := first; i < last; i++ {
		x = append(x, w.RowF32(i)[from:to]...)
	}
	return x
}

// Fix fits the scale of a group of a row, where that is to be done as the sweep goes.
func (g *grid) Fix(i, lo int, w []float32) {
	if !g.late {
		return
	}
	for first := 0; first < len(w); first += g.across {
		part := w[first:min(len(w), first+g.across)]
		at := i*g.width + (lo+first)/g.across
		if g.search != nil {
			g.look(at, lo+first, part)
			continue
		}
		low, high := bounds(part)
		g.set(at, low, high)
	}
}

// Round gives a weight its code, and the value of that.
func (g *grid) Round(i, j int, w float32) float32 {
	if g.order != nil {
		j = g.order[j]
	}

	scale, zero := g.at(i/g.down*g.width + j/g.across)
	code, value := g.rounder.One(w, scale, zero)
	g.code[i*g.cols+j] = code
	return value
}

// roundQuotients rounds quotients to the type of the weights, as compressed-tensors does where it rounds weights by
// themselves. With a scale for the matrix they are float32 whatever the weights are.
func (g *grid) roundQuotients() {
	g.rounder = g.numbers.Rounder(g.scheme.Strategy != PerTensorGroup)
}

// at is the scale of a rectangle, that of the matrix in it, and its zero point.
func (g *grid) at(at int) (scale float32, zero int) {
	scale = g.scale[at]
	if g.zero != nil {
		zero = int(g.zero[at])
	}
	if g.global != 0 {
		scale /= g.global
	}
	return scale, zero
}

// roundAll rounds every weight by itself, in place, and gives the error as [weightError] does.
func (g *grid) roundAll(w kernels.Mat, threads int) float64 {
	lost := make([]loss, g.rows)
	mmapsafe.Split(threads, g.rows, func(lo, hi int) {
		l := g.newLine()
		before := make([]float32, g.cols)
		for i := lo; i < hi; i++ {
			row := w.RowF32(i)
			copy(before, row)
			l.round(i, g.code[i*g.cols:][:g.cols], row)
			lost[i] = lossOf(before, row)
		}
	})
	w.Buf.Changed()
	return relative(lost)
}

// values rounds every weight by itself, in place, without the codes.
func (g *grid) values(w kernels.Mat, threads int) {
	mmapsafe.Split(threads, g.rows, func(lo, hi int) {
		l := g.newLine()
		code := make([]byte, g.cols)
		for i := lo; i < hi; i++ {
			l.round(i, code, w.RowF32(i))
		}
	})
	w.Buf.Changed()
}

// line rounds rows of a matrix, for one goroutine.
type line struct {
	g           *grid
	scale, zero []float32 // of the row, as [quantized.Rounder.Row] takes them
}

func (g *grid) newLine() *line {
	return &line{g: g, scale: make([]float32, g.width), zero: make([]float32, g.width)}
}

// round rounds row i, in place.
func (l *line) round(i int, code []byte, row []float32) {
	for k := range l.scale {
		scale, zero := l.g.at(i/l.g.down*l.g.width + k)
		l.scale[k] = scale
		l.zero[k] = float32(zero)
	}
	l.g.rounder.Row(code, row, l.scale, l.zero, l.g.across)
}

// nonFinite finds a scale that is no number.
func (g *grid) nonFinite() error {
	if at := dtype.NonFinite(g.scale); at >= 0 {
		return fmt.Errorf("%w: the scale of output %d, inputs from %d on", ErrNonFinite, at/g.width*g.down,
			at%g.width*g.across)
	}
	return nil
}

// byWeight are the columns in the order of their weights, the largest first; of equal ones the lower first.
func byWeight(weight []float64) []int {
	order := make([]int, len(weight))
	for j := range order {
		order[j] = j
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case weight[a] > weight[b]:
			return -1
		case weight[a] < weight[b]:
			return 1
		}
		return 0
	})
	return order
}
