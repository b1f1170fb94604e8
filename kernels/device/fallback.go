package device

import (
	"errors"
	"maps"
	"reflect"
	"sync"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// completed is a device whose missing operations come from the reference backend.
type completed struct {
	kernels.Device
	ops kernels.Ops

	mu    sync.Mutex
	calls map[string]int64
	err   error // first failed transfer since the last Sync
}

// Ops implements [kernels.Device].
func (d *completed) Ops() *kernels.Ops { return &d.ops }

// Unwrap gives the device itself; see [kernels.As].
func (d *completed) Unwrap() kernels.Device { return d.Device }

// Missed counts what the host computed instead of the device; see [kernels.Missed].
func (d *completed) Missed(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[what]++
}

// narrow is a device whose attention serves heads of so many channels at most.
type narrow interface{ WidestHead() int }

// Complete fills the operations that dev lacks from the reference backend: directly where buffers are host
// memory, through a download and an upload elsewhere. Attention with wider heads than dev has kernels for (its
// method WidestHead) goes there too. A device that lacks nothing is returned as it is.
func Complete(dev kernels.Device) kernels.Device {
	d := &completed{Device: dev, ops: *dev.Ops(), calls: map[string]int64{}}
	have, fill := reflect.ValueOf(&d.ops).Elem(), reflect.ValueOf(ref.New().Ops()).Elem()
	host := dev.Info().Host
	for i := range have.NumField() {
		if f := have.Field(i); f.IsNil() {
			name := have.Type().Field(i).Name
			d.calls[name] = 0
			f.Set(d.fallback(name, fill.Field(i), host))
		}
	}

	limited, ok := dev.(narrow)
	if ok {
		for _, name := range []string{"Attention", "AttentionBackward"} {
			d.widen(name, have.FieldByName(name), fill.FieldByName(name), limited.WidestHead())
		}
	}

	if len(d.calls) == 0 && !ok {
		return dev
	}

	if !host {
		d.wrapSync()
	}

	return d
}

// widen lets the reference operation do what is wider than the device's own serves. It is counted from its
// first call on.
func (d *completed) widen(name string, own, other reflect.Value, widest int) {
	if _, lacking := d.calls[name]; lacking {
		return
	}

	narrow, wide := reflect.ValueOf(own.Interface()), d.fallback(name, other, d.Info().Host)
	own.Set(reflect.MakeFunc(own.Type(), func(args []reflect.Value) []reflect.Value {
		if args[len(args)-1].Interface().(kernels.Attention).HeadDim > widest {
			return wide.Call(args)
		}
		return narrow.Call(args)
	}))
}

// Fallbacks lists the operations that dev lacks, each with how often it was computed by the reference backend
// instead, and those that were left to it for their sizes. It is empty for a device that has everything.
func Fallbacks(dev kernels.Device) map[string]int64 {
	d, ok := dev.(*completed)
	if !ok {
		return map[string]int64{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.calls)
}

// fallback counts a call of the reference operation op and makes it.
func (d *completed) fallback(name string, op reflect.Value, host bool) reflect.Value {
	return reflect.MakeFunc(op.Type(), func(args []reflect.Value) []reflect.Value {
		d.mu.Lock()
		d.calls[name]++
		d.mu.Unlock()
		if host {
			return op.Call(args)
		}

		m := mirror{dev: d.Device, spans: map[*kernels.Buffer]*span{}}
		results, err := m.call(op, args)
		d.fail(err)
		return results
	})
}

// fail keeps the first error for the next Sync.
func (d *completed) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
}

// wrapSync makes Sync report failed transfers too.
func (d *completed) wrapSync() {
	sync := d.ops.Sync
	d.ops.Sync = func() error {
		err := sync()
		d.mu.Lock()
		defer d.mu.Unlock()
		err, d.err = errors.Join(d.err, err), nil
		return err
	}
}

// mirror runs one operation on host copies of a device's buffers.
type mirror struct {
	dev   kernels.Device
	spans map[*kernels.Buffer]*span
}

// span is the part of a device buffer that an operation's views cover, and its host copy.
type span struct {
	lo, hi int
	host   *kernels.Buffer
}

var matType = reflect.TypeFor[kernels.Mat]()

// call downloads what the operands view, runs op on the copies and uploads those that it wrote: operations drop
// the packed data of their destinations. After a failed download op does not run and the results are zero.
func (m *mirror) call(op reflect.Value, args []reflect.Value) ([]reflect.Value, error) {
	for _, a := range args {
		eachMat(a, m.cover)
	}

	for b, s := range m.spans {
		s.host = kernels.NewHost(b.DType, s.hi-s.lo)
		if err := m.dev.Download(s.host.Bytes(), b, s.lo); err != nil {
			return zeros(op.Type()), err
		}
		s.host.Packed.Store(&untouched)
	}

	hosted := make([]reflect.Value, len(args))
	for i, a := range args {
		hosted[i] = reflect.New(a.Type()).Elem()
		hosted[i].Set(a)
		if listed(a.Type()) { // whose elements are the caller's
			hosted[i].Set(reflect.MakeSlice(a.Type(), a.Len(), a.Len()))
			reflect.Copy(hosted[i], a)
		}
		eachMat(hosted[i], m.redirect)
	}

	results := op.Call(hosted)
	var err error
	for b, s := range m.spans {
		if s.host.Packed.Load() == nil {
			err = errors.Join(err, m.dev.Upload(b, s.lo, s.host.Bytes()))
		}
	}

	return results, err
}

// untouched is the packed data of host copies that were not written.
var untouched any = "not written"

// listed reports whether a type is a list of structs, which may have matrices.
func listed(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// eachMat calls f for every present matrix in v, which is a matrix, a struct of options, a list of such, or something
// without matrices.
func eachMat(v reflect.Value, f func(reflect.Value)) {
	if v.Type() == matType {
		if !v.Interface().(kernels.Mat).IsZero() {
			f(v)
		}
		return
	}

	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			eachMat(v.Field(i), f)
		}
	case listed(v.Type()):
		for i := range v.Len() {
			eachMat(v.Index(i), f)
		}
	}
}

// cover widens the span of a matrix's buffer to hold the matrix.
func (m *mirror) cover(v reflect.Value) {
	a := v.Interface().(kernels.Mat)
	lo, hi := a.Off, a.Off
	if a.Rows > 0 {
		hi += (a.Rows-1)*a.Stride + a.Cols
	}

	if s := m.spans[a.Buf]; s != nil {
		s.lo, s.hi = min(s.lo, lo), max(s.hi, hi)
		return
	}

	m.spans[a.Buf] = &span{lo: lo, hi: hi}
}

// redirect points a matrix at the host copy of its buffer.
func (m *mirror) redirect(v reflect.Value) {
	a := v.Interface().(kernels.Mat)
	s := m.spans[a.Buf]
	a.Buf, a.Off = s.host, a.Off-s.lo
	v.Set(reflect.ValueOf(a))
}

// zeros are the zero results of a function type.
func zeros(t reflect.Type) []reflect.Value {
	out := make([]reflect.Value, t.NumOut())
	for i := range out {
		out[i] = reflect.Zero(t.Out(i))
	}
	return out
}
