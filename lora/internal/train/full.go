package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/distil"
	"github.com/modelcompress/compress/lora/internal/sparse"
	"github.com/modelcompress/compress/safetensors"
)

// Full trains every parameter of a model.
type Full struct {
	Model   *lm.Model
	Optim   optim.Optimizer
	Fused   bool  // update each parameter as soon as its gradient is there, and drop that
	Keep    int64 // bytes for kept activations
	Threads int
	NoDecay bool // keep weight decay from vectors
	// KeepZeros lets elements of matrices that are zero stay so: their gradients count as zero, so that no
	// optimiser moves them. On the host only.
	KeepZeros bool
	Distil    *distil.Loss // of a teacher; nil: the cross-entropy

	// Optim where it is on the device, with values and gradients; nil: they are in host memory
	resident *optim.DeviceAdamW
	host     bool // the model is in host memory
	names    []string
	values   map[string]*value
}

// value is a parameter as the optimiser sees it, in host memory unless the optimiser is on the device.
type value struct {
	model  kernels.Mat // the model's own
	host   kernels.Mat // the same where the optimiser can reach it, otherwise a copy
	grad   kernels.Mat // held gradients
	filled bool        // grad is that of this step
}

// NewFull prepares the training of all parameters. An optimiser on the device, if not nil, is used if there is
// room for its state and, where they are held, for the gradients; otherwise the step is the host's, which counts as
// missed by the device.
func NewFull(m *lm.Model, onDevice *optim.DeviceAdamW, held bool) (*Full, error) {
	f := &Full{Model: m, host: m.Device().Info().Host, names: m.Tensors(), values: map[string]*value{}}
	for _, n := range f.names {
		v, err := m.MutableParam(n)
		if err != nil {
			return nil, err
		}
		f.values[n] = &value{model: v, host: v}
	}

	// All or nothing: some values on the device and some on the host would need two kinds of step.
	if onDevice != nil && f.reside(onDevice, held) {
		return f, nil
	}

	kernels.Missed(m.Device(), "Optimizer")

	for _, x := range f.values {
		v := x.model
		// Without a device of its own memory, model and host values are one.
		if !f.host {
			x.host = kernels.MatOf(kernels.NewHost(v.DType(), v.Len()), v.Rows, v.Cols)
			if err := m.Device().Download(x.host.Buf.Bytes(), v.Buf, v.Off); err != nil {
				return nil, err
			}
		}
	}

	return f, nil
}

// reside puts the optimiser's state on the device, and room for gradients, or nothing of it.
func (f *Full) reside(onDevice *optim.DeviceAdamW, held bool) bool {
	for n, v := range f.values {
		err := onDevice.Reserve(n, v.model)
		if err == nil && held {
			v.grad, err = f.alloc(v.model)
		}
		if err != nil {
			f.Free()
			onDevice.Free()
			return false
		}
	}

	f.resident = onDevice
	f.Optim = onDevice
	return true
}

// alloc makes room on the device for a gradient.
func (f *Full) alloc(like kernels.Mat) (kernels.Mat, error) {
	buf, err := f.Model.Device().Alloc(kernels.F32, like.Len())
	if err != nil {
		return kernels.Mat{}, err
	}
	return kernels.MatOf(buf, like.Rows, like.Cols), nil
}

// Free gives back what the training holds on the device besides the model.
func (f *Full) Free() {
	f.Distil.Free()
	for _, v := range f.values {
		if !v.grad.IsZero() {
			v.grad.Buf.Free()
			v.grad = kernels.Mat{}
		}
	}
	if f.resident != nil {
		f.resident.Free()
	}
}

// Step computes the loss of some batches (the mean over counted tokens) and its gradients, and updates with the
// learning rate. A loss or gradient that is not finite is an error that leaves the values as they are.
func (f *Full) Step(ctx context.Context, step int, batches []batches.Batch, counted int,
	lr, clip float64,
) (loss, norm float64, err error) {
	if f.Fused {
		return f.fused(ctx, batches, counted, lr, clip)
	}
	for _, v := range f.values {
		v.filled = false
	}

	loss, err = f.backward(ctx, batches, counted, f.collect)
	if err != nil {
		return loss, 0, err
	}

	// Clipping needs the norm of all gradients before the first value changes.
	params := make([]optim.Param, len(f.names))
	for i, n := range f.names {
		params[i] = f.param(n, f.values[n].grad)
	}

	norm, coefficient, err := f.clip(params, clip)
	if err != nil {
		return loss, norm, fmt.Errorf("%w: %w", lm.ErrNonFinite, err)
	}

	for _, p := range params {
		if err := f.apply(p, optim.Step{LR: lr, GradScale: coefficient}); err != nil {
			// From the first update on, an error leaves a mixture of old and new values.
			return loss, norm, fmt.Errorf("%w: %w", ErrTorn, err)
		}
	}

	if err := f.Model.Device().Ops().Sync(); err != nil {
		return loss, norm, fmt.Errorf("%w: %w", ErrTorn, err)
	}

	return loss, norm, nil
}

// clip measures the gradients where they are.
func (f *Full) clip(params []optim.Param, bound float64) (norm, coefficient float64, err error) {
	if f.resident != nil {
		return optim.ClipOn(f.Model.Device(), params, bound)
	}
	return optim.Clip(params, bound, f.Threads)
}

// squares is Σ g² of a gradient where it is.
func (f *Full) squares(g kernels.Mat) (float64, error) {
	if f.resident != nil {
		return optim.SumSquaresOn(f.Model.Device(), g)
	}
	return optim.SumSquares(g, f.Threads), nil
}

// room lends the memory in which a gradient is held to the pass over the first batch of a step, which computes it.
func (f *Full) room(name string) kernels.Mat {
	v := f.values[name]
	if f.Fused || v.filled || !f.host {
		return kernels.Mat{}
	}
	v.hold()
	return v.grad
}

// collect takes the gradient of the first batch of a step, and adds those of the others.
func (f *Full) collect(name string, g kernels.Mat) error {
	v := f.values[name]
	switch ops := f.Model.Device().Ops(); {
	case g.Buf == v.grad.Buf: // lent
	case f.resident == nil:
		v.collect(g)
	case v.filled:
		ops.Add(v.grad, v.grad, g, 1)
	default:
		ops.Convert(v.grad, g)
	}

	v.filled = true
	return nil
}

// hold makes room for a gradient in host memory.
func (v *value) hold() {
	if v.grad.IsZero() {
		v.grad = kernels.MatOf(kernels.NewHost(kernels.F32, v.host.Len()), v.host.Rows, v.host.Cols)
	}
}

// collect does it in host memory.
func (v *value) collect(g kernels.Mat) {
	v.hold()
	for i := range g.Rows {
		to, from := v.grad.RowF32(i), g.RowF32(i)
		if !v.filled {
			copy(to, from)
			continue
		}

		for j, x := range from {
			to[j] += x
		}
	}
}

// fused updates in the backward pass. Clipping by the norm takes a pass that only measures before it.
func (f *Full) fused(ctx context.Context, batches []batches.Batch, counted int,
	lr, clip float64,
) (loss, norm float64, err error) {
	coefficient, squares := 1.0, 0.0
	measure := func(_ string, g kernels.Mat) error {
		s, err := f.squares(g)
		squares += s
		return err
	}

	if clip > 0 {
		if loss, err = f.backward(ctx, batches, counted, measure); err != nil {
			return loss, 0, err
		}

		norm = math.Sqrt(squares)
		if err := Finite("the norm of the gradients", norm); err != nil {
			return loss, norm, err
		}

		coefficient = optim.ClipCoefficient(norm, clip)
	}

	// A parameter moves as soon as its gradient is there, and the gradient is forgotten: memory holds those of one
	// block. From the first on the step has to come to its end, since half of a step is no state to go on from.
	squares = 0
	began := false
	loss, err = f.backward(context.WithoutCancel(ctx), batches, counted, func(name string, g kernels.Mat) error {
		if err := measure(name, g); err != nil {
			return err
		}
		if err := Finite("the gradient of "+name, squares); err != nil {
			return err
		}
		began = true
		return f.apply(f.param(name, g), optim.Step{LR: lr, GradScale: coefficient})
	})

	err = errors.Join(err, f.Model.Device().Ops().Sync())
	if err != nil && began {
		err = fmt.Errorf("%w: %w", ErrTorn, err)
	}

	return loss, math.Sqrt(squares), err
}

// backward gives the gradients of all parameters of some batches to take.
func (f *Full) backward(ctx context.Context, batches []batches.Batch, counted int,
	take func(name string, g kernels.Mat) error,
) (float64, error) {
	loss := 0.0
	for _, b := range batches {
		objective, err := f.Distil.Objective(ctx, f.Model, b, counted)
		if err != nil {
			return loss, err
		}

		o := lm.BackwardOptions{
			Labels: b.Labels, Denominator: float64(counted), Objective: objective, Keep: f.Keep, Room: f.room,
		}
		o.Hooks = &lm.Hooks{
			WeightGrad: func(name string, g kernels.Mat) error {
				h, err := f.toHost(g)
				if err != nil {
					return err
				}

				// A pruned weight without a gradient has no momentum either, and stays zero. Vectors were never
				// pruned.
				if v := f.values[name].host; f.KeepZeros && v.Rows > 1 {
					if err := sparse.Clear(h, v, f.Threads); err != nil {
						return err
					}
				}

				return take(name, h)
			},
		}

		r, err := f.Model.Backward(ctx, b.IDs, o)
		if err != nil {
			return loss, err
		}

		// Losses are means over a batch's own tokens; the step's is one over all of them.
		loss += r.Loss * float64(r.Counted) / float64(counted)
	}

	return loss, Finite("the loss", loss)
}

func (f *Full) toHost(g kernels.Mat) (kernels.Mat, error) {
	if f.resident != nil || f.host {
		return g, nil
	}
	h := kernels.MatOf(kernels.NewHost(kernels.F32, g.Len()), g.Rows, g.Cols)
	return h, f.Model.Device().Download(h.Buf.Bytes(), g.Buf, g.Off)
}

func (f *Full) param(name string, g kernels.Mat) optim.Param {
	v := f.values[name].host
	return optim.Param{Name: name, Value: v, Grad: g, NoDecay: f.NoDecay && v.Rows == 1}
}

// apply updates a parameter in the model.
func (f *Full) apply(p optim.Param, s optim.Step) error {
	if err := f.Optim.Apply(p, s); err != nil {
		return err
	}
	return f.changed(f.values[p.Name])
}

// changed brings a value to the device, if that has it in memory of its own.
func (f *Full) changed(v *value) error {
	v.host.Buf.Changed()
	if v.model.Buf == v.host.Buf {
		return nil
	}
	defer v.model.Buf.Changed()
	return f.Model.Device().Upload(v.model.Buf, v.model.Off, v.host.Buf.Bytes())
}

// Eval is the sum of the losses of a batch, and how many there are.
func (f *Full) Eval(ctx context.Context, b batches.Batch) (float64, int, error) {
	return eval(ctx, f.Model, b)
}

// Save writes all values and the optimiser's state, with progress (as JSON) in the header; with best only the values.
func (f *Full) Save(path string, progress any, best bool) error {
	var list []entry
	for _, n := range f.names {
		v := f.values[n].host
		list = append(list, entry{n, dtype.Stored(v.DType()), v.Len(), func(scratch []byte) ([]byte, error) {
			if f.resident != nil {
				return scratch, f.Model.Device().Download(scratch, v.Buf, v.Off)
			}
			return v.Buf.Bytes()[v.Off*v.DType().Size():][:v.Len()*v.DType().Size()], nil
		}})
	}

	if !best {
		if f.resident != nil {
			if err := f.resident.Fetch(); err != nil {
				return err
			}
		}
		list = append(list, optimizerEntries(f.Optim.State())...)
	}

	return writeState(path, list, progress)
}

// read takes a value from a file.
func (f *Full) read(file *safetensors.File, name string, size int64) error {
	v := f.values[name]
	var raw []byte
	if f.resident != nil {
		raw = make([]byte, size)
	} else {
		raw = v.host.Buf.Bytes()[v.host.Off*v.host.DType().Size():][:size]
	}

	if _, err := file.ReadAt(name, raw, 0); err != nil {
		return err
	}
	if f.resident == nil {
		return f.changed(v)
	}
	defer v.model.Buf.Changed()

	return f.Model.Device().Upload(v.model.Buf, v.model.Off, raw)
}

// Restore takes over what Save has written.
func (f *Full) Restore(path string, best bool) error {
	file, err := readState(path, new(struct{}))
	if err != nil {
		return err
	}
	defer file.Close()

	for _, n := range f.names {
		v := f.values[n]
		info, ok := file.Info(n)
		if !ok || info.DType != dtype.Stored(v.host.DType()) ||
			!slices.Equal(info.Shape, []int64{int64(v.host.Len())}) {
			return fmt.Errorf("%s: %w: tensor %.200q is missing or of another size", path, ErrState, n)
		}

		if err := f.read(file, n, info.Size); err != nil {
			return err
		}
	}

	// The best state is the end of a run: nothing is continued from it.
	if best {
		return nil
	}

	state, err := optimizerState(file)
	if err == nil {
		err = f.Optim.Restore(state)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	return nil
}
