// Package grads collects the gradients of a model's matrices over calibration sequences, a block at a time.
package grads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// gradientScale is the published factor of gradients.
const gradientScale = 100

// Job is one collection. G of a matrix is 100·√(Σ g²), g the gradient of the mean loss of one sequence.
type Job struct {
	Model  *lm.Model
	IDs    [][]int32
	Memory int64 // about how many bytes the inputs of all blocks may take; 0: 1 GiB

	// Step is told, before each pass of a sequence through a block, how many passes of all are done.
	Step func(block, done, of int)
}

// backwardPasses is how many passes forward a pass back through a block counts for in displays of progress: it
// computes the block once more, the gradients of what flows and of the weights, and adds their squares.
const backwardPasses = 4

// passes is how many passes of a sequence through a block there are.
func (j Job) passes() int { return len(j.IDs) * j.Model.Blocks() * (1 + backwardPasses) }

func (j Job) dev() kernels.Device { return j.Model.Device() }

// Squares holds Σ (100·g)² of the matrices between passes over parts of the calibration data, F32 in stored layout.
type Squares interface {
	open(block int, linears []lm.Linear) (map[string]kernels.Mat, error) // by tensor name, on the device
	shut(block int) error
	drop(block int) // in place of shut, after the last pass
}

// Held keeps them in the device's memory.
type Held struct {
	Device kernels.Device
	blocks map[int]map[string]kernels.Mat
}

func (h *Held) open(block int, linears []lm.Linear) (map[string]kernels.Mat, error) {
	if h.blocks[block] != nil {
		return h.blocks[block], nil
	}
	if h.blocks == nil {
		h.blocks = map[int]map[string]kernels.Mat{}
	}
	m, err := zeros32(h.Device, linears)
	h.blocks[block] = m
	return m, err
}

func (h *Held) shut(int) error { return nil }

// drop frees the squares of a block that is done.
func (h *Held) drop(block int) {
	for _, m := range h.blocks[block] {
		m.Buf.Free()
	}
	delete(h.blocks, block)
}

// zeros32 makes a matrix for each of a block's.
func zeros32(dev kernels.Device, linears []lm.Linear) (map[string]kernels.Mat, error) {
	m := map[string]kernels.Mat{}
	for _, l := range linears {
		rows, cols := l.Out, l.In
		if l.Transposed {
			rows, cols = l.In, l.Out
		}

		buf, err := dev.Alloc(kernels.F32, rows*cols)
		if err != nil {
			return m, fmt.Errorf("tensor %q: squares of gradients: %w", l.Name, err)
		}

		m[l.Name] = kernels.MatOf(buf, rows, cols)
	}

	return m, nil
}

// Filed keeps them in a file, but for one block. Where all sequences go backward together there is no second
// pass, and no file.
type Filed struct {
	Device kernels.Device
	Path   string // of a scratch file, made and removed here

	file    *os.File
	at      map[string]int64 // where a matrix is
	end     int64
	current map[string]kernels.Mat
	order   []lm.Linear
}

func (f *Filed) open(_ int, linears []lm.Linear) (map[string]kernels.Mat, error) {
	var err error
	f.order = linears
	if f.current, err = zeros32(f.Device, linears); err != nil {
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
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if err := f.Device.Upload(m.Buf, 0, raw); err != nil {
			return nil, err
		}
	}

	return f.current, nil
}

func (f *Filed) shut(int) error {
	if f.file == nil {
		var err error
		if f.file, err = os.OpenFile(f.Path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600); err != nil {
			return err
		}
		f.at = map[string]int64{}
	}

	for _, l := range f.order {
		m := f.current[l.Name]
		raw, err := hostmat.Bytes(f.Device, m)
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

func (f *Filed) drop(int) {
	for _, m := range f.current {
		m.Buf.Free()
	}
	f.current = nil
}

// Close removes the file.
func (f *Filed) Close() error {
	if f.file == nil {
		return nil
	}
	return errors.Join(f.file.Close(), os.Remove(f.Path))
}

// Each computes G of all matrices and hands every one out, F32 [out, in]. Sequences run forward a few at a
// time, as many as have room for the inputs of all blocks; then block after block from the last goes backward
// over these sequences, so that the sums of one block are worked on at a time.
func (j Job) Each(ctx context.Context, sums Squares, give func(l lm.Linear, g []byte) error) error {
	lo := 0
	for _, hi := range j.parts() {
		finish := give
		if hi < len(j.IDs) {
			finish = nil
		}
		if err := j.gradientsOf(ctx, lo, hi, sums, finish); err != nil {
			return err
		}

		lo = hi
	}

	return nil
}

// parts are the ends of the runs of sequences that go forward together.
func (j Job) parts() (ends []int) {
	budget := j.Memory
	if budget == 0 {
		budget = 1 << 30
	}

	per := int64(j.Model.Blocks()+1) * int64(j.Model.Config().Hidden) * 4 // bytes that a token keeps
	for lo := 0; lo < len(j.IDs); {
		hi, left := lo, budget
		for hi < len(j.IDs) && (hi == lo || left >= per*int64(len(j.IDs[hi]))) {
			left -= per * int64(len(j.IDs[hi]))
			hi++
		}

		ends = append(ends, hi)
		lo = hi
	}

	return ends
}

// Work is what a collection takes, in passes of a token through a block.
func (j Job) Work() float64 {
	tokens := 0
	for _, ids := range j.IDs {
		tokens += len(ids)
	}
	return float64(tokens) * float64(j.Model.Blocks()) * (1 + backwardPasses)
}

// Disk is how many bytes [Job.Keep] takes at most, for so many weights: those of the file, and of the squares
// between one part of the sequences and the next.
func (j Job) Disk(weights int64, half bool) int64 {
	size := int64(4)
	if half {
		size = 2
	}
	if len(j.parts()) > 1 {
		size += 4
	}
	return size * weights
}

// gradientsOf adds the gradients of sequences [lo, hi), and hands the sums out if give is not nil.
func (j Job) gradientsOf(ctx context.Context, lo, hi int, sums Squares, give func(l lm.Linear, g []byte) error) error {
	var runs []*checkpoints
	defer func() {
		for _, r := range runs {
			r.free()
		}
	}()

	n, blocks := hi-lo, j.Model.Blocks()
	before := lo * blocks * (1 + backwardPasses)
	for i := lo; i < hi; i++ {
		r, err := j.checkpointed(ctx, j.IDs[i], func(block int) {
			j.Step(block, before+(i-lo)*blocks+block, j.passes())
		})
		if err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		runs = append(runs, r)
	}

	// Block by block and not sequence by sequence: the sums of squares of one block are in memory at a time, and its
	// weights are read once for all sequences.
	before += n * blocks
	for l := blocks - 1; l >= 0; l-- {
		step := func(k int) { j.Step(l, before+((blocks-1-l)*n+k)*backwardPasses, j.passes()) }
		if err := j.blockGradients(ctx, l, runs, sums, step, give); err != nil {
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

// checkpointed runs a sequence forward, and its loss back to the output of the last block. step is called
// before every block.
func (j Job) checkpointed(ctx context.Context, ids []int32, step func(block int)) (*checkpoints, error) {
	// Edits see every hidden state before the block does, which is all that is wanted here: nothing is edited.
	c := &checkpoints{lens: []int{len(ids)}, inputs: make([]kernels.Mat, j.Model.Blocks())}
	keep := func(dst *kernels.Mat, x kernels.Mat) error {
		buf, err := j.dev().Alloc(kernels.F32, x.Len())
		if err != nil {
			return err
		}
		*dst = kernels.MatOf(buf, x.Rows, x.Cols)
		j.dev().Ops().Convert(*dst, x)
		return nil
	}

	_, err := j.Model.Backward(ctx, [][]int32{ids}, lm.BackwardOptions{
		Edit: func(state int, x kernels.Mat) error {
			if state == j.Model.Blocks() {
				return nil
			}
			step(state)
			return keep(&c.inputs[state], x)
		},
		WantHidden: func(state int) bool { return state == j.Model.Blocks() },
		Hooks:      &lm.Hooks{HiddenGrad: func(_ int, g kernels.Mat) error { return keep(&c.grad, g) }},
	})
	if err != nil {
		c.free()
	}

	return c, err
}

// blockGradients takes the sequences back through one block. step is called before each of them.
func (j Job) blockGradients(
	ctx context.Context, l int, runs []*checkpoints, sums Squares, step func(k int),
	give func(l lm.Linear, g []byte) error,
) error {
	linears := j.Model.Linears(l)
	acc, err := sums.open(l, linears)
	if err != nil {
		return err
	}

	hooks := &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
		j.dev().Ops().AddSquare(acc[name], g, gradientScale)
		return nil
	}}

	for k, r := range runs {
		step(k)
		hooks.HiddenGrad = func(state int, g kernels.Mat) error {
			if state == l {
				j.dev().Ops().Convert(r.grad, g)
			}
			return nil
		}

		loss := func(_, grad kernels.Mat) (float64, error) { j.dev().Ops().Convert(grad, r.grad); return 0, nil }
		_, err := j.Model.BackwardBlock(ctx, l, &lm.Hidden{X: r.inputs[l], Lens: r.lens}, loss, lm.BackwardOptions{
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

	j.Model.ReleaseBlock(l, false)

	for _, lin := range linears {
		if give == nil {
			break
		}
		if err := j.giveGradient(lin, acc[lin.Name], give); err != nil {
			return fmt.Errorf("tensor %q: %w", lin.Name, err)
		}
	}

	if give != nil { // nobody reads them any more
		sums.drop(l)
		return nil
	}

	return sums.shut(l)
}

// giveGradient takes the roots of a matrix's sums.
func (j Job) giveGradient(l lm.Linear, sum kernels.Mat, give func(l lm.Linear, g []byte) error) (err error) {
	if l.Transposed {
		if sum, err = hostmat.Transposed(j.dev(), sum); err != nil {
			return err
		}
		defer sum.Buf.Free()
	}

	roots, err := hostmat.F32(j.dev(), sum)
	if err != nil {
		return err
	}

	v := roots.Buf.F32()
	mmapsafe.Split(j.dev().Info().Threads, len(v), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			v[i] = float32(math.Sqrt(float64(v[i])))
		}
	})
	return give(l, roots.Buf.Bytes())
}
