package quantize

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/obs"
	"github.com/modelcompress/compress/kernels"
)

// prunes reports whether weights become 0 besides that the others are rounded.
func (o Options) prunes() bool { return o.Sparsity > 0 || o.Pattern != "" }

// pattern gives N and M of Options.Pattern: N of every M inputs go.
func (o Options) pattern() (n, m int, err error) {
	if o.Pattern == "" {
		return 0, 0, nil
	}
	if got, _ := fmt.Sscanf(o.Pattern, "%d:%d", &n, &m); got != 2 || fmt.Sprintf("%d:%d", n, m) != o.Pattern ||
		n < 1 || n >= m || !slices.Contains([]int{2, 4, 8, 16}, m) {
		return 0, 0, fmt.Errorf("%w: pattern %q; want N:M with M of 2, 4, 8 or 16 and N less, such as 2:4", ErrOptions,
			o.Pattern)
	}
	return n, m, nil
}

// validatePruning lists the faults of what makes weights 0.
func (o Options) validatePruning() (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}

	if !(o.Sparsity >= 0 && o.Sparsity < 1) {
		fault("sparsity %g; want 0 or more and less than 1", o.Sparsity)
	}
	if _, _, err := o.pattern(); err != nil {
		faults = append(faults, err)
	}
	switch {
	case !o.prunes():
	case o.KeepZeros:
		fault("zeros are kept, or chosen here (%s), and not both", o.removing())
	case o.Sparsity > 0 && o.Pattern != "":
		fault("sparsity %g and pattern %s both say how many weights go", o.Sparsity, o.Pattern)
	case o.Method == AWQ || o.Method == HQQ:
		fault("method %s removes no weights; %s and %s do it in one sweep, %s by Wanda's scores", o.Method, GPTQ,
			AWQGPTQ, RTN)
	case o.Pattern != "" && o.Order == OrderWeight:
		fault("pattern %s is one of inputs as they are stored, and goes with order %s", o.Pattern, OrderGiven)
	}
	return faults
}

// removing names what makes weights 0.
func (o Options) removing() string {
	if o.Pattern != "" {
		return "pattern " + o.Pattern
	}
	return fmt.Sprintf("sparsity %g", o.Sparsity)
}

// keeping lets a sweep keep zeros.
func keeping(job *obs.Job) {
	mask := kernels.NewHost(kernels.U8, job.W.Len())
	job.Mask = kernels.MatOf(mask, job.W.Rows, job.W.Cols)
	for i := range job.W.Rows {
		keep := job.Mask.RowU8(i)
		for j, v := range job.W.RowF32(i) {
			if v != 0 {
				keep[j] = 1
			}
		}
	}
}

// removal prepares a sweep that also removes weights, those whose removal costs least at their turn, as SparseGPT
// (Frantar and Alistarh, 2023, arXiv:2301.00774) chooses them: so many of every 128 inputs of all outputs, or N of
// every M inputs of an output. Those that stay make up for them as they do for what is lost by rounding.
func (w *walk) removal(job *obs.Job) error {
	mask := kernels.NewHost(kernels.U8, job.W.Len())
	for i := range mask.Bytes() {
		mask.Bytes()[i] = 1
	}
	job.Mask = kernels.MatOf(mask, job.W.Rows, job.W.Cols)

	var err error
	if job.N, job.M, err = w.o.pattern(); err != nil || job.M > 0 {
		return err
	}
	job.Choose = func(keep, score kernels.Mat) error {
		count := int(math.Floor(w.o.Sparsity * float64(keep.Rows*keep.Cols)))
		dropLowest(rowsOf(keep), floatRows(score), count)
		keep.Buf.Changed()
		return nil
	}
	return nil
}

// removed gives weights that a sweep removed the codes of 0.
func (g *grid) removed(mask kernels.Mat, threads int) {
	mmapsafe.Split(threads, g.rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			for j, keep := range mask.RowU8(i) {
				if keep == 0 {
					g.Round(i, j, 0)
				}
			}
		}
	})
}

// removeApart makes weights 0 by Wanda's scores (Sun et al., 2023, arXiv:2306.11695), |w|·√E[x²], the lowest of each
// output or of every M of its inputs, and lets the others be. Where no token came to the inputs, by |w|.
func (w *walk) removeApart(r *rounding) error {
	in, err := w.inputsOr(r.stats).Of(r.lin)
	if err != nil {
		return err
	}
	n, m, err := w.o.pattern()
	if err != nil {
		return err
	}
	if m == 0 {
		m = r.after.Cols
		n = int(math.Floor(w.o.Sparsity * float64(m)))
	}

	by := w.scaling.columnsOf(r.lin.Name)
	mmapsafe.Split(w.threads, r.after.Rows, func(lo, hi int) {
		score := make([]float32, r.after.Cols)
		keep := make([]uint8, r.after.Cols)
		for i := lo; i < hi; i++ {
			row := r.after.RowF32(i)
			for j, v := range row {
				score[j] = max(v, -v)
				if in.SumSquares != nil {
					score[j] *= float32(math.Sqrt(in.SumSquares[j]))
				}
				if by != nil {
					score[j] /= by[j]
				}
				keep[j] = 1
			}
			for at := 0; at < len(row); at += m {
				to := min(at+m, len(row))
				dropLowest([][]uint8{keep[at:to]}, [][]float32{score[at:to]}, min(n, to-at))
			}
			for j := range row {
				if keep[j] == 0 {
					row[j] = 0
				}
			}
		}
	})
	r.after.Buf.Changed()
	return nil
}

// dropLowest clears the mask of the lowest scores, which are not negative: so many, of equal ones those that come
// first.
func dropLowest(keep [][]uint8, score [][]float32, count int) {
	if count <= 0 {
		return
	}

	last, equal := lastToGo(score, count)
	for i, row := range score {
		for j, v := range row {
			switch b := math.Float32bits(v); {
			case b < last:
				keep[i][j] = 0
			case b == last && equal > 0:
				keep[i][j] = 0
				equal--
			}
		}
	}
}

// lastToGo gives the bits of the highest of so many lowest scores, and how many scores that are equal to it are among
// these.
func lastToGo(score [][]float32, count int) (bits uint32, equal int) {
	const few = 1 << 12
	if n := len(score) * len(score[0]); n <= few {
		all := make([]float32, 0, n)
		for _, row := range score {
			all = append(all, row...)
		}
		slices.Sort(all)
		last := all[count-1]
		first, _ := slices.BinarySearch(all, last)
		return math.Float32bits(last), count - first
	}

	// The bits of floats that are not negative have the order of the floats: the score is found by counting, its upper
	// half first.
	high := reach(score, count, func(b uint32) (uint32, bool) { return b >> 16, true })
	count -= high.before
	low := reach(score, count, func(b uint32) (uint32, bool) { return b & 0xffff, b>>16 == high.value })
	return high.value<<16 | low.value, count - low.before
}

// reached is the least value that a number of scores reaches, and how many are below it.
type reached struct {
	value  uint32
	before int
}

func reach(score [][]float32, count int, part func(bits uint32) (uint32, bool)) reached {
	counts := make([]int, 1<<16)
	for _, row := range score {
		for _, v := range row {
			if at, ok := part(math.Float32bits(v)); ok {
				counts[at]++
			}
		}
	}

	before := 0
	for v, n := range counts {
		if before+n >= count {
			return reached{uint32(v), before}
		}
		before += n
	}
	return reached{uint32(len(counts) - 1), before}
}

func rowsOf(m kernels.Mat) [][]uint8 {
	rows := make([][]uint8, m.Rows)
	for i := range rows {
		rows[i] = m.RowU8(i)
	}
	return rows
}

func floatRows(m kernels.Mat) [][]float32 {
	rows := make([][]float32, m.Rows)
	for i := range rows {
		rows[i] = m.RowF32(i)
	}
	return rows
}

// zeros is the fraction of a matrix' values that are 0.
func zeros(m kernels.Mat) float64 {
	n := 0
	for i := range m.Rows {
		for _, v := range m.RowF32(i) {
			if v == 0 {
				n++
			}
		}
	}
	return float64(n) / float64(m.Len())
}
