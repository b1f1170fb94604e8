package delta

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/sparse"
)

// replaced is a tensor of the model that the adapter changes in place.
type replaced struct {
	r       *Runtime
	tensor  string
	value   kernels.Mat                 // the changed one, F32: stored types would round small changes away
	stored  kernels.DType               // of the base's
	before  []byte                      // the base's
	undo    func()                      // gives the model its own value again
	compute func(dst kernels.Mat) error // writes the changed value, F32 in host memory, over the base's
	learn   func(g kernels.Mat) error   // adds to the parameters' gradients
}

// replace prepares a change of a tensor.
func (r *Runtime) replace(tensor string) (*replaced, error) {
	for _, c := range r.copies {
		if c.tensor == tensor {
			return nil, fmt.Errorf("%w: two changes of %s", adapter.ErrUnsupported, tensor)
		}
	}

	v, err := r.m.Param(tensor)
	if err != nil {
		return nil, err
	}

	c := &replaced{r: r, tensor: tensor, stored: v.DType(), before: make([]byte, v.Len()*v.DType().Size())}
	if err := r.dev.Download(c.before, v.Buf, v.Off); err != nil {
		return nil, err
	}
	if c.value, c.undo, err = r.m.WidenParam(tensor); err != nil {
		return nil, err
	}

	r.copies = append(r.copies, c)
	return c, nil
}

// update writes the changed value into the model.
func (c *replaced) update() error {
	h, err := c.base()
	if err != nil {
		return err
	}

	if err := c.compute(h); err != nil {
		return err
	}
	if err := c.clearZeros(h); err != nil {
		return err
	}

	return c.write(h)
}

// clearZeros sets elements of x to zero where the base's are, if the adapter keeps those. Vectors have no
// pattern to keep.
func (c *replaced) clearZeros(x kernels.Mat) error {
	if !c.r.keeps() || c.value.Rows == 1 {
		return nil
	}
	buf, err := kernels.Wrap(c.stored, c.before)
	if err != nil {
		return err
	}
	return sparse.Clear(x, kernels.MatOf(buf, c.value.Rows, c.value.Cols), c.r.dev.Info().Threads)
}

// base is the tensor as it was, F32 in host memory, a copy.
func (c *replaced) base() (kernels.Mat, error) {
	buf, err := kernels.Wrap(c.stored, c.before)
	if err != nil {
		return kernels.Mat{}, err
	}
	h := kernels.MatOf(kernels.NewHost(kernels.F32, c.value.Len()), c.value.Rows, c.value.Cols)
	widen(h, kernels.MatOf(buf, c.value.Rows, c.value.Cols))
	return h, nil
}

// write puts host numbers into the model.
func (c *replaced) write(h kernels.Mat) error {
	if err := c.r.dev.Upload(c.value.Buf, 0, h.Buf.Bytes()); err != nil {
		return err
	}
	c.value.Buf.Changed()
	return c.r.ops.Sync()
}

// Wants reports whether the gradient of a tensor of the base is needed, for lm.BackwardOptions.
func (r *Runtime) Wants(tensor string) bool {
	for _, c := range r.copies {
		if c.tensor == tensor && c.learn != nil {
			return true
		}
	}
	return false
}

// Learn takes the gradient of a tensor of the base, for lm.Hooks.
func (r *Runtime) Learn(tensor string, g kernels.Mat) error {
	for _, c := range r.copies {
		if c.tensor == tensor && c.learn != nil {
			h, err := r.toHost(g)
			if err == nil {
				err = c.clearZeros(h) // of a gradient that nobody else wants
			}
			if err != nil {
				return err
			}
			return c.learn(h)
		}
	}

	return nil
}

// separate gives a tied model a head of its own where the adapter changes the head and the token table apart.
func (r *Runtime) separate() error {
	if !r.m.Config().Tied {
		return nil
	}

	modules, err := adapter.ModulesOf(r.m)
	if err != nil {
		return err
	}

	table := slices.IndexFunc(modules, func(m adapter.Module) bool { return m.Table })
	if r.tied = true; table < 0 || !r.a.Apart(modules[table].Tensor) {
		return nil
	}

	r.head, r.tie, err = r.m.Untie()
	if errors.Is(err, lm.ErrUnknownTensor) {
		return fmt.Errorf("%w: the adapter changes the token table and the head apart, which a %s cannot have",
			adapter.ErrUnsupported, r.m.Config().ModelType)
	}

	return err
}

// replaceWhole lets a trained copy stand for a tensor.
func (r *Runtime) replaceWhole(w *adapter.Whole) error {
	tensor := w.Tensor
	if r.tied && w.Head() {
		tensor = r.head
	}
	if w.Frozen || tensor == "" {
		return nil // the base's own, saved along; or what the table says too
	}

	c, err := r.replace(tensor)
	if err != nil {
		return err
	}

	if c.value.Rows != w.Value.Value.Rows || c.value.Cols != w.Value.Value.Cols {
		return fmt.Errorf("%w: %s is [%d, %d], the adapter's [%d, %d]", adapter.ErrBase, w.Tensor, c.value.Rows,
			c.value.Cols, w.Value.Value.Rows, w.Value.Value.Cols)
	}

	c.compute = func(dst kernels.Mat) error {
		copy(dst.Buf.F32(), w.Value.Data())
		return nil
	}

	c.learn = func(g kernels.Mat) error {
		add(w.Value.Grad, g)
		return nil
	}
	return nil
}

// replaceRows lets trained rows stand for those of a token table, in both its uses.
func (r *Runtime) replaceRows(rows *adapter.Rows) error {
	tensor := rows.Module.Tensor
	if rows.Module.Tied && r.head != "" {
		tensor = r.head
	}

	if rows.Module.Table && r.head != "" {
		return fmt.Errorf("%w: trained rows of %s, whose head the adapter takes apart from it", adapter.ErrUnsupported,
			rows.Module.Path)
	}

	c, err := r.replace(tensor)
	if err != nil {
		return err
	}

	for _, id := range rows.IDs {
		if id < 0 || int(id) >= c.value.Rows {
			return fmt.Errorf("%w: token %d; %s has %d rows", adapter.ErrBase, id, c.tensor, c.value.Rows)
		}
	}

	c.compute = func(dst kernels.Mat) error {
		for i, id := range rows.IDs {
			copy(dst.RowF32(int(id)), rows.Value.Value.RowF32(i))
		}
		return nil
	}

	c.learn = func(g kernels.Mat) error {
		// The gradient of the whole table is computed; only that of the trained rows is learnt from.
		for i, id := range rows.IDs {
			addRow(rows.Value.Grad.RowF32(i), g.RowF32(int(id)), 1)
		}
		return nil
	}

	return nil
}

// replaceLow changes a matrix outside of the blocks by its low-rank change.
func (r *Runtime) replaceLow(l *adapter.Low) error {
	if l.Module.Block >= 0 {
		return fmt.Errorf("%w: %s: %s is no matrix of the model's blocks", adapter.ErrBase, l.Module.Path,
			l.Module.Tensor)
	}
	if l.Bias != nil {
		return fmt.Errorf("%w: %s: a trained bias outside of the blocks", adapter.ErrUnsupported, l.Module.Path)
	}

	tensor := l.Module.Tensor
	if l.Module.Tied {
		if tensor = r.head; tensor == "" {
			return nil // follows the table
		}
	}

	c, err := r.replace(tensor)
	if err != nil {
		return err
	}

	w := &outside{r: r, low: l, turned: l.Module.Table || l.Module.Transposed}
	if rows, cols := w.shape(); rows != c.value.Rows || cols != c.value.Cols {
		return fmt.Errorf("%w: %s is [%d, %d], the adapter expects [%d, %d]", adapter.ErrBase, c.tensor, c.value.Rows,
			c.value.Cols, rows, cols)
	}

	c.compute, c.learn = w.compute, w.learn
	return nil
}

func add(dst, x kernels.Mat) {
	for i := range x.Rows {
		addRow(dst.RowF32(i), x.RowF32(i), 1)
	}
}
