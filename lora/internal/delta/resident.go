package delta

import (
	"errors"
	"slices"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// Resident holds the trained parameters of an adapter on the model's device, and their gradients: the factors
// are made of them there, and what the backward pass finds is added there. The parameters in host memory are what
// the last Fetch has brought.
type Resident struct {
	r       *Runtime
	shards  kernels.Assembler // nil: no factors are made of shards
	flat    []*flat
	places  map[*adapter.Param]*param
	zeros   kernels.Mat
	scratch [2]*kernels.Buffer // of most elements
	most    int                // of a factor
	rows    []int32            // 0, 1, …
}

// flat is the parameters that are treated alike, one after the other.
type flat struct {
	name        string
	plain       bool // weight decay leaves them alone
	value, grad kernels.Mat
	params      []*adapter.Param
	size        int
}

// param is where a parameter lies.
type param struct {
	value, grad kernels.Mat
	turned      bool // the transpose is on the device
}

// flatCols is the width of the matrices that parameters lie in, zeroRows how many rows are cleared at a time.
const (
	flatCols = 4096
	zeroRows = 1024
)

// Up is what the optimiser's parameter of all factors on the side of the outputs is called, where they are apart.
const Up = "adapter.B"

// errForm: parameters of an adapter that only the host makes factors of.
var errForm = errors.New("not on the device")

// Reside moves the parameters to the device, if that is away from the host, has room, and can do what the adapter's
// kind needs: factors that are parameters themselves, or shards of pools. nil: they stay, and the device notes it. With
// noDecay, weight decay leaves vectors alone; with apart, factors on the side of the outputs are a parameter of their
// own for the optimiser.
func (r *Runtime) Reside(noDecay, apart bool) (*Resident, error) {
	if r.host {
		return nil, nil
	}

	d := &Resident{r: r, places: map[*adapter.Param]*param{}}
	err := d.plan(noDecay, apart)
	if err == nil {
		err = d.alloc()
	}
	if err != nil {
		d.Free()
		return nil, nil
	}

	r.resident = d
	if err := d.Push(); err != nil {
		return nil, err
	}

	return d, r.Update()
}

// plan decides where parameters lie.
func (d *Resident) plan(noDecay, apart bool) error {
	if len(d.r.copies) > 0 || len(d.r.modules) != len(d.r.a.Low) {
		return errForm
	}

	// All parameters lie one after the other in two long ones, so that an optimiser's step is two calls and not one for
	// each of hundreds of small matrices, whose launches would take longer than their arithmetic.
	decayed, plain := &flat{name: "adapter"}, &flat{name: "adapter.vectors", plain: true}
	up := &flat{name: Up}
	for _, l := range d.r.a.Low {
		turned := false
		switch l.Factors.(type) {
		case adapter.Plain:
			turned = true // B is stored [out, r], and the products want bt
		case mos.Part:
			var ok bool
			if d.shards, ok = kernels.As[kernels.Assembler](d.r.dev); !ok {
				return errForm
			}
		default:
			return errForm
		}

		if l.Bias != nil || l.Magnitude != nil {
			return errForm
		}

		d.most = max(d.most, l.Rank*max(l.Module.In, l.Module.Out))
		for len(d.rows) < l.Rank {
			d.rows = append(d.rows, int32(len(d.rows)))
		}

		for k, p := range l.Parameters() {
			if p.Frozen {
				return errForm
			}
			if d.places[p] != nil { // a pool, which many modules share
				continue
			}

			f := decayed
			switch vector := noDecay && p.Vector(); {
			case vector && apart && p.Up():
				return errForm // nothing that is trained in practice
			case vector:
				f = plain
			case apart && p.Up():
				f = up
			}

			d.places[p] = &param{turned: turned && k == 1}
			f.params = append(f.params, p)
			f.size += room(p)
		}
	}

	for _, f := range []*flat{decayed, plain, up} {
		if f.size > 0 {
			d.flat = append(d.flat, f)
		}
	}

	return nil
}

// alloc makes room, and matrices of the parameters.
func (d *Resident) alloc() error {
	dev, rows := d.r.dev, 0
	matrix := func(rows, cols int) (kernels.Mat, error) {
		b, err := dev.Alloc(kernels.F32, rows*cols)
		if err != nil {
			return kernels.Mat{}, err
		}
		return kernels.MatOf(b, rows, cols), nil
	}

	var err error

	// Parameters lie one after another in one matrix, so that an optimiser's step is one launch for all instead of
	// one each.
	for _, f := range d.flat {
		n := (f.size + flatCols - 1) / flatCols
		rows = max(rows, n)
		if f.value, err = matrix(n, flatCols); err != nil {
			return err
		}
		if f.grad, err = matrix(n, flatCols); err != nil {
			return err
		}

		f.each(func(p *adapter.Param, at int) {
			rows, cols := p.Value.Rows, p.Value.Cols
			if d.places[p].turned {
				rows, cols = cols, rows
			}
			d.places[p].value = kernels.Mat{Buf: f.value.Buf, Off: at, Rows: rows, Cols: cols, Stride: cols}
			d.places[p].grad = kernels.Mat{Buf: f.grad.Buf, Off: at, Rows: rows, Cols: cols, Stride: cols}
		})
	}

	for i := range d.scratch {
		if d.scratch[i], err = dev.Alloc(kernels.F32, d.most); err != nil {
			return err
		}
	}

	// One piece of zeros clears all gradients, a copy at a time.
	d.zeros, err = matrix(min(rows, zeroRows), flatCols)
	return err
}

// Free gives the memory on the device back.
func (d *Resident) Free() {
	free := func(b *kernels.Buffer) {
		if b != nil {
			b.Free()
		}
	}

	for _, f := range d.flat {
		free(f.value.Buf)
		free(f.grad.Buf)
	}

	free(d.scratch[0])
	free(d.scratch[1])
	free(d.zeros.Buf)
	if d.r.resident == d {
		d.r.resident = nil
	}
}

// Params are the parameters for an optimiser on the device: a few long ones.
func (d *Resident) Params() []optim.Param {
	var list []optim.Param
	for _, f := range d.flat {
		list = append(list, optim.Param{Name: f.name, Value: f.value, Grad: f.grad, NoDecay: f.plain})
	}
	return list
}

// Push sends the parameters in host memory to the device.
func (d *Resident) Push() error {
	for _, f := range d.flat {
		all := make([]float32, f.value.Len())
		f.each(func(p *adapter.Param, at int) { d.lay(p, p.Data(), all[at:], true) })
		if err := d.r.dev.Upload(f.value.Buf, 0, kernels.WrapF32(all).Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// Fetch brings the parameters to host memory.
func (d *Resident) Fetch() error {
	for _, f := range d.flat {
		all := make([]float32, f.value.Len())
		if err := d.r.dev.Download(kernels.WrapF32(all).Bytes(), f.value.Buf, 0); err != nil {
			return err
		}

		f.each(func(p *adapter.Param, at int) {
			d.lay(p, p.Data(), all[at:], false)
			p.Value.Buf.Changed()
		})
	}

	return nil
}

// each calls do for the parameters, with where they begin.
func (f *flat) each(do func(p *adapter.Param, at int)) {
	at := 0
	for _, p := range f.params {
		do(p, at)
		at += room(p)
	}
}

// room is the elements that a parameter takes; the next one begins at a multiple of 64.
func room(p *adapter.Param) int { return (p.Value.Len() + 63) / 64 * 64 }

// lay copies a matrix of a parameter's shape to the way it lies on the device, or back.
func (d *Resident) lay(p *adapter.Param, host, onDevice []float32, to bool) {
	rows, cols := p.Value.Rows, p.Value.Cols
	for i := range rows {
		for j := range cols {
			at := i*cols + j
			if d.places[p].turned {
				at = j*rows + i
			}

			if to {
				onDevice[at] = host[i*cols+j]
			} else {
				host[i*cols+j] = onDevice[at]
			}
		}
	}
}

// clear makes the gradients zero.
func (d *Resident) clear() {
	for _, f := range d.flat {
		for lo := 0; lo < f.grad.Rows; lo += d.zeros.Rows {
			part := f.grad.RowRange(lo, min(lo+d.zeros.Rows, f.grad.Rows))
			d.r.ops.Convert(part, d.zeros.RowRange(0, part.Rows))
		}
	}
}

// assemble makes the factors of a module, rounded to float32 where the host rounds.
func (d *Resident) assemble(m *module) error {
	l, ops := m.low, d.r.ops
	if err := d.r.room(&m.a, l.Rank, l.Module.In, m.lin.Name); err != nil {
		return err
	}
	if err := d.r.room(&m.bt, l.Rank, l.Module.Out, m.lin.Name); err != nil {
		return err
	}

	ofA, ofB := lists(l)
	a := d.factor(l.Parameters()[0], ofA, l.Rank, l.Module.In)
	if s := float32(l.Scale); s != 1 {
		scaled := kernels.MatOf(d.scratch[1], a.Rows, a.Cols)
		ops.Gather(scaled, a, d.rows[:a.Rows], s)
		a = scaled
	}

	ops.Convert(m.a, a)
	ops.Convert(m.bt, d.factor(l.Parameters()[1], ofB, l.Rank, l.Module.Out))
	m.fa, m.fb = m.a, m.bt

	return nil
}

// lists are the shards of the factors of a module; nil: the factors are the parameters.
func lists(l *adapter.Low) (a, b []int32) {
	if part, ok := l.Factors.(mos.Part); ok {
		return part.Lists()
	}
	return nil, nil
}

// factor is a parameter, or what is made of its shards in scratch memory.
func (d *Resident) factor(p *adapter.Param, list []int32, rows, cols int) kernels.Mat {
	if list == nil {
		return d.places[p].value
	}
	f := kernels.MatOf(d.scratch[0], rows, cols)
	d.shards.Assemble(f, d.places[p].value, list)
	return f
}

// scatter adds the gradients of a module's factors to those of the parameters.
func (d *Resident) scatter(l *adapter.Low, da, dbt kernels.Mat) {
	p, ops := l.Parameters(), d.r.ops
	ga, gb := d.places[p[0]].grad, d.places[p[1]].grad
	ofA, ofB := lists(l)
	if ofA == nil {
		ops.Add(ga, ga, da, float32(l.Scale))
		ops.Add(gb, gb, dbt, 1)
		return
	}

	scaled := kernels.MatOf(d.scratch[0], da.Rows, da.Cols)
	ops.Gather(scaled, da, d.rows[:da.Rows], float32(l.Scale))
	d.shards.Scatter(ga, scaled, ofA)
	d.shards.Scatter(gb, dbt, ofB)
}

// Apart takes an optimiser's state of Params apart: it is that of the parameters then, as on the host.
func (d *Resident) Apart(state map[string][]float32) map[string][]float32 {
	out := map[string][]float32{}
	for name, x := range state {
		for _, f := range d.flat {
			kind, ok := strings.CutPrefix(name, f.name+".")
			if !ok || strings.Contains(kind, ".") {
				continue
			}

			f.each(func(p *adapter.Param, at int) {
				own := x // the number of steps
				if len(x) > 1 {
					own = make([]float32, p.Value.Len())
					d.lay(p, own, x[at:], false)
				}
				out[p.Name+"."+kind] = own
			})
		}
	}

	return out
}

// Together is the inverse of Apart. What some parameter lacks, or has in another length, is left out.
func (d *Resident) Together(state map[string][]float32) map[string][]float32 {
	out := map[string][]float32{}
	for _, f := range d.flat {
		// The first parameter's entries say which kinds of state there are.
		for name, first := range state {
			kind, ok := strings.CutPrefix(name, f.params[0].Name+".")
			if !ok {
				continue
			}

			all, fits := first, true
			// A state of one number is the step count, which must be the same for all.
			if len(first) > 1 {
				all = make([]float32, f.value.Len())
			}

			f.each(func(p *adapter.Param, at int) {
				own := state[p.Name+"."+kind]
				switch {
				case len(first) == 1:
					fits = fits && slices.Equal(own, first)
				case len(own) != p.Value.Len():
					fits = false
				default:
					d.lay(p, own, all[at:], true)
				}
			})

			if fits {
				out[f.name+"."+kind] = all
			}
		}
	}

	return out
}
