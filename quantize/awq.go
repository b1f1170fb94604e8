package quantize

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// ratios is how many exponents the search of AWQ tries: k/20, and before them no factors at all.
const ratios = 20

// rescale finds the factors of a block's folds by what reaches its matrices.
func (w *walk) rescale(ctx context.Context, l int, stats *actstats.Stats) (*scaling, error) {
	s := newScaling()
	for _, f := range w.foldsOf(l) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}

		found := Fold{Block: l, From: f.from}
		for _, lin := range f.readers {
			found.Into = append(found.Into, lin.Name)
		}

		var by []float32
		var err error
		if w.o.Smooth > 0 {
			by, err = w.smooth(f, stats)
		} else {
			by, err = w.balance(ctx, l, f, stats, &found)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: tensor %q: %w", w.m.File(f.from), f.from, err)
		}
		if by != nil {
			found.Scaled = true
			err = w.fold(s, f, by)
		}
		if err != nil {
			return nil, err
		}
		w.report.Folds = append(w.report.Folds, found)
	}
	return s, nil
}

// reader is a matrix behind a fold, F32 in host memory, with some of what reaches it.
type reader struct {
	lin    lm.Linear
	w      kernels.Mat
	x      kernels.Mat // transposed: [in, tokens]
	tokens int64       // that reach it, of which x holds some
}

// read brings a matrix behind a fold to the host. Its inputs are left out where none reached it.
func (w *walk) read(lin lm.Linear, stats *actstats.Stats) (*reader, error) {
	stored, err := w.m.Param(lin.Name)
	if err != nil {
		return nil, err
	}
	r := &reader{lin: lin, tokens: stats.SumOf(lin.Name).Tokens()}
	if r.w, err = hostmat.F32(w.dev, stored); err != nil || r.tokens == 0 {
		return r, err
	}
	r.x = flipped(stats.SpreadOf(lin.Name))
	return r, nil
}

// flipped exchanges rows and columns of a matrix in host memory.
func flipped(x kernels.Mat) kernels.Mat {
	out := kernels.NewHost(kernels.F32, x.Len())
	copy(out.Bytes(), hostmat.TransposedBytes(x.Buf.Bytes()[4*x.Off:][:4*x.Len()], x.Rows, x.Cols, 4))
	return kernels.MatOf(out, x.Cols, x.Rows)
}

// balance finds the factors of AWQ (Lin et al., 2023, arXiv:2306.00978): with the mean magnitudes x̄ of the inputs and
// those of the weights in their groups, w̄,
//
//	s = x̄^r/(w̄^(1-r) + 1e-4), over the geometric mean of the largest and the smallest of them
//
// for the r with which the matrices behind the fold, rounded with their columns multiplied by s and divided again, do
// least harm: to what the attention or the MLP gives that they are parts of (their parent, as in AutoAWQ and
// llm-compressor), or to their own outputs where they are alone or in a mixture. Where no r does better than no factors
// at all, and where no token came, nil. It is measured on some 512 to 1024 tokens of all the text.
func (w *walk) balance(ctx context.Context, l int, f *fold, stats *actstats.Stats, found *Fold) ([]float32, error) {
	input, err := f.inputs(stats)
	if err != nil || input == nil {
		return nil, err
	}
	weight, err := w.weights(f)
	if err != nil {
		return nil, err
	}

	tries := [][]float32{nil}
	for k := range ratios {
		tries = append(tries, awqFactors(input, weight, float64(k)/ratios))
	}
	errors, err := w.errorsOf(ctx, l, f, stats, tries)
	if err != nil {
		return nil, err
	}

	best := 0
	for k, e := range errors {
		if e < errors[best] {
			best = k
		}
	}
	found.Before = errors[0]
	found.After = errors[best]
	if best > 0 {
		found.Ratio = float64(best-1) / ratios
	}
	return tries[best], nil
}

// errorsOf are the squared errors that each of some factors leaves behind a fold, over all tokens.
func (w *walk) errorsOf(ctx context.Context, l int, f *fold, stats *actstats.Stats, tries [][]float32) (
	[]float64, error,
) {
	p, err := w.parentOf(ctx, l, f, stats)
	if err != nil {
		return nil, err
	}
	if p != nil {
		defer p.free()
		return p.errorsOf(ctx, f, tries)
	}

	errors := make([]float64, len(tries))
	for _, lin := range f.readers {
		if !w.rounds[lin.Name] {
			continue
		}
		r, err := w.read(lin, stats)
		if err != nil {
			return nil, err
		}
		if r.tokens == 0 {
			continue
		}
		for k, s := range tries {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			e, err := w.scaledError(r, f.columns(s))
			if err != nil {
				return nil, err
			}
			errors[k] += e
		}
	}
	return errors, nil
}

// inputs are the mean magnitudes of what the readers of a fold read, over all tokens; nil where none came.
func (f *fold) inputs(stats *actstats.Stats) ([]float64, error) {
	sum := make([]float64, f.channels)
	tokens := int64(0)
	seen := map[*actstats.Sum]bool{}
	for _, lin := range f.readers {
		a := stats.SumOf(lin.Name)
		if seen[a] {
			continue
		}
		seen[a] = true
		magnitude, _, _, err := stats.ExtentsOf(lin)
		if err != nil {
			return nil, err
		}
		for j, v := range magnitude {
			sum[f.channel(j)] += v
		}
		tokens += a.Tokens()
	}
	if tokens == 0 {
		return nil, nil
	}

	shared := max(1, len(f.tied)/f.channels)
	for k := range sum {
		sum[k] /= float64(tokens) * float64(shared)
	}
	return sum, nil
}

// weights are the mean magnitudes of the weights of each channel, over the largest that share a scale with them.
func (w *walk) weights(f *fold) ([]float64, error) {
	sum := make([]float64, f.channels)
	n := 0
	for _, lin := range f.readers {
		if !w.rounds[lin.Name] {
			continue
		}
		stored, err := w.m.Param(lin.Name)
		if err != nil {
			return nil, err
		}
		m, err := hostmat.F32(w.dev, stored)
		if err != nil {
			return nil, err
		}
		g, err := w.newGrid(lin)
		if err != nil {
			return nil, err
		}
		g.addRelative(sum, f, m, w.threads)
		n += m.Rows * max(1, len(f.tied)/f.channels)
	}
	for k := range sum {
		sum[k] /= float64(n)
	}
	return sum, nil
}

// addRelative adds up the magnitudes of each channel's weights, over the largest that share a scale with them.
func (g *grid) addRelative(sum []float64, f *fold, m kernels.Mat, threads int) {
	largest := make([]float32, len(g.scale))
	low := make([]float32, g.width)
	high := make([]float32, g.width)
	for i := range m.Rows {
		quantized.Extents(low, high, m.RowF32(i), g.across)
		at := i / g.down * g.width
		for k := range low {
			largest[at+k] = max(largest[at+k], -low[k], high[k])
		}
	}

	// Threads share the columns, so that each sum is in the order of the rows.
	column := make([]float64, m.Cols)
	mmapsafe.Split(threads, m.Cols, func(lo, hi int) {
		for i := range m.Rows {
			row := m.RowF32(i)
			at := i / g.down * g.width
			for j := lo; j < hi; j++ {
				column[j] += float64(max(row[j], -row[j])) / (float64(largest[at+j/g.across]) + 1e-6)
			}
		}
	})
	for j, v := range column {
		sum[f.channel(j)] += v
	}
}

// awqFactors are the factors of a ratio.
func awqFactors(input, weight []float64, ratio float64) []float32 {
	s := make([]float64, len(input))
	low, high := math.Inf(1), 0.0
	for j := range s {
		s[j] = max(math.Pow(input[j], ratio)/(math.Pow(weight[j], 1-ratio)+1e-4), 1e-4)
		low, high = min(low, s[j]), max(high, s[j])
	}

	out := make([]float32, len(s))
	middle := math.Sqrt(low * high)
	for j, v := range s {
		out[j] = float32(v / middle)
		if !(out[j] > 0) || math.IsInf(float64(out[j]), 0) {
			out[j] = 1
		}
	}
	return out
}

// scaledError is the squared error of a matrix' outputs, over all tokens, when it is rounded with its columns
// multiplied by factors; nil: by 1.
func (w *walk) scaledError(r *reader, by []float32) (float64, error) {
	change, err := w.deviation(r.lin, r.w, by)
	if err != nil {
		return 0, err
	}

	out := kernels.MatOf(kernels.NewHost(kernels.F32, r.w.Rows*r.x.Cols), r.w.Rows, r.x.Cols)
	w.multiply(out, change, r.x)
	sum := 0.0
	for _, e := range w.squares(out) {
		sum += e
	}
	return sum * float64(r.tokens) / float64(r.x.Cols), nil
}

// deviation is what rounding does to a matrix, F32 in host memory, when its columns are multiplied by factors before
// and divided by them afterwards; nil: by 1.
func (w *walk) deviation(lin lm.Linear, m kernels.Mat, by []float32) (kernels.Mat, error) {
	g, err := w.newGrid(lin)
	if err != nil {
		return kernels.Mat{}, err
	}
	g.foreign = true

	out := kernels.MatOf(kernels.NewHost(kernels.F32, m.Len()), m.Rows, m.Cols)
	copy(out.Buf.F32(), m.Buf.F32())
	if by != nil {
		(&factors{columns: by}).apply(out, w.threads)
	}
	g.fit(out, 0, w.threads)
	g.values(out, w.threads)
	mmapsafe.Split(w.threads, m.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			before, row := m.RowF32(i), out.RowF32(i)
			for j, v := range row {
				if by != nil {
					v /= by[j]
				}
				row[j] = v - before[j]
			}
		}
	})
	out.Buf.Changed()
	return out, nil
}

// squares are the sums of the squares of a matrix' rows, F32 in host memory.
func (w *walk) squares(m kernels.Mat) []float64 {
	rows := make([]float64, m.Rows)
	mmapsafe.Split(w.threads, m.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sum := 0.0
			for _, v := range m.RowF32(i) {
				sum += float64(v) * float64(v)
			}
			rows[i] = sum
		}
	})
	return rows
}

// smooth finds the factors of SmoothQuant (Xiao et al., 2022, arXiv:2211.10438), which take from the activations that
// runtimes round what weights have room for: with the extents of the inputs and the largest magnitudes of the weights
// behind them,
//
//	s = (max x - min x)^α/(2·max |w|)^(1-α), at least 1e-5
func (w *walk) smooth(f *fold, stats *actstats.Stats) ([]float32, error) {
	low := make([]float32, f.channels)
	high := make([]float32, f.channels)
	largest := make([]float32, f.channels)
	any := false
	for _, lin := range f.readers {
		_, from, to, err := stats.ExtentsOf(lin)
		if err != nil {
			return nil, err
		}
		for j := range from {
			if !any {
				low[j], high[j] = from[j], to[j]
			}
			low[j] = min(low[j], from[j])
			high[j] = max(high[j], to[j])
		}
		any = any || from != nil

		stored, err := w.m.Param(lin.Name)
		if err != nil {
			return nil, err
		}
		m, err := hostmat.F32(w.dev, stored)
		if err != nil {
			return nil, err
		}
		for i := range m.Rows {
			for j, v := range m.RowF32(i) {
				largest[j] = max(largest[j], v, -v)
			}
		}
	}
	if !any {
		return nil, nil
	}

	s := make([]float32, f.channels)
	for j := range s {
		extent := float64(high[j]) - float64(low[j])
		by := extent
		if largest[j] > 0 {
			by = math.Pow(extent, w.o.Smooth) / math.Pow(2*float64(largest[j]), 1-w.o.Smooth)
		}
		s[j] = float32(max(by, 1e-5))
		if extent == 0 { // a constant
			s[j] = 1
		}
	}
	return s, nil
}
