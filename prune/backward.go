package prune

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// gradientScale is the published factor of gradients.
const gradientScale = 100

// squares holds Σ (100·g)² of the matrices between passes over parts of the calibration data, F32 in stored layout.
type squares interface {
	open(block int, linears []lm.Linear) (map[string]kernels.Mat, error) // by tensor name, on the device
	shut(block int) error
}

// heldSquares keeps them in the device's memory.
type heldSquares struct {
	dev    kernels.Device
	blocks map[int]map[string]kernels.Mat
}

func (h *heldSquares) open(block int, linears []lm.Linear) (map[string]kernels.Mat, error) {
	if h.blocks[block] != nil {
		return h.blocks[block], nil
	}
	if h.blocks == nil {
		h.blocks = map[int]map[string]kernels.Mat{}
	}
	m, err := zeros32(h.dev, linears)
	h.blocks[block] = m
	return m, err
}

func (h *heldSquares) shut(int) error { return nil }

// drop frees the squares of a block that is done.
func (h *heldSquares) drop(block int) {
	for _, m := range h.blocks[block] {
		m.Buf.Free()
	}
	delete(h.blocks, block)
}

// zeros32 makes a matrix for each of a block's.
func zeros32(dev kernels.Device, linears []lm.Linear) (map[string]kernels.Mat, error) {
	m := map[string]kernels.Mat{}
	for _, l := range linears {
		rows, cols := storedShape(l)
		buf, err := dev.Alloc(kernels.F32, rows*cols)
		if err != nil {
			return m, fmt.Errorf("%s: squares of gradients: %w", l.Name, err)
		}
		m[l.Name] = kernels.MatOf(buf, rows, cols)
	}
	return m, nil
}

// filedSquares keeps them in a file, but for one block.
type filedSquares struct {
	dev     kernels.Device
	path    string
	file    *os.File
	at      map[string]int64 // where a matrix is
	end     int64
	current map[string]kernels.Mat
	order   []lm.Linear
}

func (f *filedSquares) open(_ int, linears []lm.Linear) (map[string]kernels.Mat, error) {
	var err error
	if f.file == nil {
		if f.file, err = os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600); err != nil {
			return nil, err
		}
		f.at = map[string]int64{}
	}
	f.order = linears
	if f.current, err = zeros32(f.dev, linears); err != nil {
		return nil, err
	}
	for _, l := range linears {
		at, ok := f.at[l.Name]
		if !ok {
			continue
		}
		m := f.current[l.Name]
		raw := make([]byte, 4*m.Len())
		if _, err := io.ReadFull(io.NewSectionReader(f.file, at, int64(len(raw))), raw); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
		if err := f.dev.Upload(m.Buf, 0, raw); err != nil {
			return nil, err
		}
	}
	return f.current, nil
}

func (f *filedSquares) shut(int) error {
	for _, l := range f.order {
		m := f.current[l.Name]
		raw, err := hostBytes(f.dev, m)
		if err != nil {
			return err
		}
		if _, ok := f.at[l.Name]; !ok {
			f.at[l.Name], f.end = f.end, f.end+int64(len(raw))
		}
		if _, err := f.file.WriteAt(raw, f.at[l.Name]); err != nil {
			return err
		}
		m.Buf.Free()
	}
	f.current = nil
	return nil
}

func (f *filedSquares) close() error {
	if f.file == nil {
		return nil
	}
	return errors.Join(f.file.Close(), os.Remove(f.path))
}

// eachGradient computes G of all matrices and hands every one out, F32 [out, in]. Sequences run forward a few at a time, as many as
// have room for the inputs of all blocks; then block after block from the last goes backward over these sequences, so
// that the sums of one block are worked on at a time.
func (w *walk) eachGradient(ctx context.Context, sums squares, give func(l lm.Linear, g []byte) error) error {
	budget := w.o.Gradients.Memory
	if budget == 0 {
		budget = 1 << 30
	}
	per := int64(w.m.Blocks()+1) * int64(w.m.Config().Hidden) * 4
	ids := w.calib.IDs
	for lo := 0; lo < len(ids); {
		hi, left := lo, budget
		for hi < len(ids) && (hi == lo || left >= per*int64(len(ids[hi]))) {
			left -= per * int64(len(ids[hi]))
			hi++
		}
		finish := give
		if hi < len(ids) {
			finish = nil
		}
		if err := w.gradientsOf(ctx, lo, hi, sums, finish); err != nil {
			return err
		}
		lo = hi
	}
	return nil
}

// gradientsOf adds the gradients of sequences [lo, hi), and hands the sums out if give is not nil.
func (w *walk) gradientsOf(ctx context.Context, lo, hi int, sums squares, give func(l lm.Linear, g []byte) error) error {
	var runs []*checkpoints
	defer func() {
		for _, r := range runs {
			r.free()
		}
	}()
	for i := lo; i < hi; i++ {
		w.step(Step{Stage: Gradient, Block: 0, Done: i, Of: len(w.calib.IDs)})
		r, err := w.checkpointed(ctx, w.calib.IDs[i])
		if err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		runs = append(runs, r)
	}
	for l := w.m.Blocks() - 1; l >= 0; l-- {
		w.step(Step{Stage: Gradient, Block: l, Done: lo, Of: len(w.calib.IDs)})
		if err := w.blockGradients(ctx, l, runs, sums, give); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
	}
	return nil
}

// checkpoints are the inputs of all blocks for one sequence, and the gradient of the loss on its way down.
type checkpoints struct {
	lens   []int
	inputs []kernels.Mat
	grad   kernels.Mat
}

func (c *checkpoints) free() {
	for _, m := range append(c.inputs, c.grad) {
		if !m.IsZero() {
			m.Buf.Free()
		}
	}
}

// checkpointed runs a sequence forward, and its loss back to the output of the last block.
func (w *walk) checkpointed(ctx context.Context, ids []int32) (*checkpoints, error) {
	c := &checkpoints{lens: []int{len(ids)}, inputs: make([]kernels.Mat, w.m.Blocks())}
	keep := func(dst *kernels.Mat, x kernels.Mat) error {
		buf, err := w.dev.Alloc(kernels.F32, x.Len())
		if err != nil {
			return err
		}
		*dst = kernels.MatOf(buf, x.Rows, x.Cols)
		w.ops.Convert(*dst, x)
		return nil
	}
	_, err := w.m.Backward(ctx, [][]int32{ids}, lm.BackwardOptions{
		Edit: func(state int, x kernels.Mat) error {
			if state == w.m.Blocks() {
				return nil
			}
			return keep(&c.inputs[state], x)
		},
		WantHidden: func(state int) bool { return state == w.m.Blocks() },
		Hooks:      &lm.Hooks{HiddenGrad: func(_ int, g kernels.Mat) error { return keep(&c.grad, g) }},
	})
	if err != nil {
		c.free()
	}
	return c, err
}

// blockGradients takes the sequences back through one block.
func (w *walk) blockGradients(ctx context.Context, l int, runs []*checkpoints, sums squares, give func(l lm.Linear, g []byte) error) error {
	linears := w.m.Linears(l)
	acc, err := sums.open(l, linears)
	if err != nil {
		return err
	}
	hooks := &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
		w.ops.AddSquare(acc[name], g, gradientScale)
		return nil
	}}
	for _, r := range runs {
		hooks.HiddenGrad = func(state int, g kernels.Mat) error {
			if state == l {
				w.ops.Convert(r.grad, g)
			}
			return nil
		}
		loss := func(_, grad kernels.Mat) (float64, error) { w.ops.Convert(grad, r.grad); return 0, nil }
		_, err := w.m.BackwardBlock(ctx, l, &lm.Hidden{X: r.inputs[l], Lens: r.lens}, loss, lm.BackwardOptions{
			Hooks:      hooks,
			Want:       func(name string) bool { return !acc[name].IsZero() },
			WantHidden: func(state int) bool { return state == l && l > 0 },
		})
		if err != nil {
			return err
		}
		r.inputs[l].Buf.Free()
		r.inputs[l] = kernels.Mat{}
	}
	w.m.ReleaseBlock(l, false)
	for _, lin := range linears {
		if give == nil {
			break
		}
		if err := w.giveGradient(lin, acc[lin.Name], give); err != nil {
			return fmt.Errorf("%s: %w", lin.Name, err)
		}
	}
	if held, ok := sums.(*heldSquares); ok && give != nil {
		held.drop(l)
		return nil
	}
	return sums.shut(l)
}

// giveGradient takes the roots of a matrix's sums.
func (w *walk) giveGradient(l lm.Linear, sum kernels.Mat, give func(l lm.Linear, g []byte) error) (err error) {
	if l.Transposed {
		if sum, err = transposed(w.dev, sum); err != nil {
			return err
		}
		defer sum.Buf.Free()
	}
	host, err := hostF32(w.dev, sum)
	if err != nil {
		return err
	}
	v := host.Buf.F32()
	inParallel(w.dev.Info().Threads, len(v), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			v[i] = float32(math.Sqrt(float64(v[i])))
		}
	})
	return give(l, host.Buf.Bytes())
}
