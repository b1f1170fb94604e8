package delta

import (
	"fmt"
	"sync"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Options of [Attach].
type Options struct {
	Train bool // gradients are wanted
	// Overlay prepares [Runtime.Overlay] instead of letting the adapter act on the whole model. The runtime then needs
	// the adapter no more.
	Overlay bool
}

// Runtime is an adapter at work in a model. With Train it serves one pass at a time.
type Runtime struct {
	m       *lm.Model
	dev     kernels.Device
	ops     *kernels.Ops
	host    bool
	a       *adapter.Adapter
	train   bool
	modules map[string]*module // by tensor name
	copies  []*replaced
	params  []lm.Parameter
	undo    func()
	over    *lm.Overlay
	tied    bool   // the model's head is its token table
	head    string // the head of its own that it has meanwhile; "": none
	tie     func() // puts an end to that

	dropping bool
	mask     rng.Key
	spare    sync.Pool // *workspace
	resident *Resident // nil: the parameters are in host memory
}

// module is one changed matrix of a block.
type module struct {
	low    *adapter.Low
	lin    lm.Linear
	a, bt  kernels.Mat // factors on the device, in the type that wide products want; the scale is in a
	fa, fb kernels.Mat // the same in F32, for skinny products
	bias   kernels.Mat // times the scale; absent: none
	ownA   kernels.Mat // memory of fa and fb where that is not a's and bt's
	ownB   kernels.Mat
	t      *kernels.Buffer // x·aᵀ of the latest forward pass, kept for the backward pass; skinny ones transposed
	key    rng.Key
	dora   *direction

	elements *adapter.Sparse // a sparse change, on the host; nil: there are factors
}

// Attach lets an adapter act on a model until it is detached. Its errors wrap adapter.ErrUnsupported,
// adapter.ErrBase, or are the model's.
func Attach(m *lm.Model, a *adapter.Adapter, o Options) (*Runtime, error) {
	r := &Runtime{
		m: m, dev: m.Device(), ops: m.Device().Ops(), host: m.Device().Info().Host, a: a, train: o.Train,
		modules: map[string]*module{},
	}
	r.spare.New = func() any { return &workspace{dev: r.dev} }

	linears := map[string]lm.Linear{}
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			linears[lin.Name] = lin
		}
	}

	if o.Overlay {
		if err := apart(a); err != nil {
			return nil, err
		}
	}

	// Before anything else: where the adapter gives a tied head a life of its own, the model has one more matrix.
	err := r.separate()
	if err == nil && r.keeps() {
		err = r.keepable()
	}
	if err == nil {
		err = r.collect(linears)
	}
	if err != nil {
		r.Detach()
		return nil, err
	}

	if o.Train {
		for _, p := range a.Trainable() {
			p.Clear()
			r.params = append(r.params, lm.Parameter{Name: p.Name, Value: p.Value, Grad: p.Grad})
		}
	}

	return r, r.start(o)
}

// collect finds out what is to be done where.
func (r *Runtime) collect(linears map[string]lm.Linear) error {
	for _, l := range r.a.Low {
		lin, ok := linears[l.Module.Tensor]
		// No linear: a token table or the head, which is replaced as a whole.
		if !ok {
			if err := r.replaceLow(l); err != nil {
				return err
			}
			continue
		}

		if lin.In != l.Module.In || lin.Out != l.Module.Out {
			return fmt.Errorf("%w: %s has %d × %d channels, the adapter's %d × %d", adapter.ErrBase, lin.Name, lin.In,
				lin.Out, l.Module.In, l.Module.Out)
		}

		// A key of its name: dropout of a module doesn't depend on which others are adapted.
		mod := &module{low: l, lin: lin, key: rng.New(0, lin.Name)}
		if l.Magnitude != nil {
			mod.dora = &direction{}
		}

		// Away from the host the general factors do: they are exact, and large.
		if s, ok := l.Factors.(adapter.Sparse); ok && r.host {
			mod.elements = &s
		}

		r.modules[lin.Name] = mod
	}

	for _, w := range r.a.Whole {
		if err := r.replaceWhole(w); err != nil {
			return err
		}
	}

	for _, rows := range r.a.Rows {
		if err := r.replaceRows(rows); err != nil {
			return err
		}
	}

	return nil
}

// start puts the adapter into the model.
func (r *Runtime) start(o Options) error {
	if err := r.Update(); err != nil {
		r.Detach()
		return err
	}

	// An adapter of tables only has nothing to add to a linear.
	if len(r.modules) == 0 {
		return nil
	}

	// In the adapter's order: that of the map changes from run to run.
	names := make([]string, 0, len(r.modules))
	for _, l := range r.a.Low {
		if r.modules[l.Module.Tensor] != nil {
			names = append(names, l.Module.Tensor)
		}
	}

	if o.Overlay {
		return r.lay(names)
	}

	undo, err := r.m.Attach(linears{r}, names...)
	if err != nil {
		r.Detach()
		return err
	}

	r.undo = undo
	return nil
}

// Detach takes the adapter out of the model and gives its memory back. No pass may run meanwhile.
func (r *Runtime) Detach() {
	if r.undo != nil {
		r.undo()
		r.undo = nil
	}

	for _, m := range r.modules {
		for _, b := range []*kernels.Buffer{m.a.Buf, m.bt.Buf, m.ownA.Buf, m.ownB.Buf, m.bias.Buf, m.t} {
			if b != nil && b.Len > 0 { // fb may be bt: what is freed has no length
				b.Free()
			}
		}
	}

	clear(r.modules)
	for _, c := range r.copies {
		c.undo()
	}

	r.copies = nil
	if r.tie != nil { // after the copies: the head that it takes away may be one of them
		r.tie()
		r.tie = nil
	}
}

// Parameters implements [lm.Delta].
func (r *Runtime) Parameters() []lm.Parameter { return r.params }

// ZeroGrad sets all gradients to zero.
func (r *Runtime) ZeroGrad() {
	if r.resident != nil {
		r.resident.clear()
		return
	}
	for _, p := range r.a.Trainable() {
		p.Clear()
	}
}

// Drop turns dropout on, with masks that depend on the key, the module and the element, or off.
func (r *Runtime) Drop(on bool, mask rng.Key) {
	r.dropping, r.mask = on && r.a.Config.Dropout > 0, mask
}

// Update takes over changed parameters. It must be called before the next pass.
func (r *Runtime) Update() error {
	for _, l := range r.a.Low {
		if m := r.modules[l.Module.Tensor]; m != nil {
			if err := r.assemble(m); err != nil {
				return fmt.Errorf("%s: %w", l.Module.Path, err)
			}
		}
	}

	for _, c := range r.copies {
		if err := c.update(); err != nil {
			return err
		}
	}

	return nil
}

// assemble computes a module's factors anew.
func (r *Runtime) assemble(m *module) error {
	if r.resident != nil {
		return r.resident.assemble(m)
	}

	if m.elements != nil { // which are the parameters themselves
		return nil
	}

	l := m.low
	w := r.work()
	defer r.spare.Put(w)

	a, bt := w.host(0, l.Rank, l.Module.In), w.host(1, l.Rank, l.Module.Out)
	l.Assemble(a, bt)
	scale(a, l.Scale)
	if err := r.put(&m.a, a, m.lin.Name); err != nil {
		return err
	}
	if err := r.put(&m.bt, bt, m.lin.Name); err != nil {
		return err
	}

	// Wide products with a BF16 weight in fast precision want BF16 factors; skinny ones, norms and written-out changes
	// want F32, and get copies of their own.
	m.fa, m.fb = m.a, m.bt
	if m.a.DType() != kernels.F32 && (r.skinny(m) || m.dora != nil || r.keeps()) {
		m.fa, m.fb = m.ownA, m.ownB
		if err := r.put(&m.fa, a, ""); err != nil {
			return err
		}
		if err := r.put(&m.fb, bt, ""); err != nil {
			return err
		}

		m.ownA, m.ownB = m.fa, m.fb
	}

	if l.Bias != nil {
		b := w.host(0, 1, l.Module.Out)
		copy(b.RowF32(0), l.Bias.Data())
		scale(b, l.Scale)
		if err := r.put(&m.bias, b, ""); err != nil {
			return err
		}
	}

	if m.dora != nil {
		return r.norms(m, bt)
	}

	return nil
}

// put writes host numbers to a matrix on the device, in the type that products with that weight want.
func (r *Runtime) put(dst *kernels.Mat, src kernels.Mat, weight string) error {
	if err := r.room(dst, src.Rows, src.Cols, weight); err != nil {
		return err
	}

	if r.host {
		r.ops.Convert(*dst, src)
		dst.Buf.Changed()
		return nil
	}

	buf, err := r.dev.Alloc(kernels.F32, src.Len())
	if err != nil {
		return err
	}
	defer buf.Free()

	if err := r.dev.Upload(buf, 0, f32Bytes(src)); err != nil {
		return err
	}

	r.ops.Convert(*dst, kernels.MatOf(buf, src.Rows, src.Cols))
	return r.ops.Sync()
}

// room makes room for a factor on the device, in the type that products with a weight want, or F32 for none,
// unless it is there.
func (r *Runtime) room(dst *kernels.Mat, rows, cols int, weight string) error {
	t := kernels.F32
	if weight != "" && r.m.Precision() == kernels.Fast {
		if info, ok := r.m.Info(weight); ok && info.DType.String() == "BF16" {
			t = kernels.BF16
		}
	}

	if dst.Buf == nil {
		buf, err := r.dev.Alloc(t, rows*cols)
		if err != nil {
			return err
		}
		*dst = kernels.MatOf(buf, rows, cols)
	}

	return nil
}

func f32Bytes(m kernels.Mat) []byte { return m.Buf.Bytes()[4*m.Off : 4*(m.Off+m.Len())] }

func scale(m kernels.Mat, by float64) {
	s := float32(by)
	if s == 1 {
		return
	}

	for i := range m.Rows {
		row := m.RowF32(i)
		for j := range row {
			row[j] *= s
		}
	}
}
