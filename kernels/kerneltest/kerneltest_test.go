package kerneltest

import (
	"math"
	"reflect"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// recorder notes that a test failed instead of failing.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}

// broken is the reference backend with one operation replaced.
type broken struct {
	kernels.Device
	ops kernels.Ops
}

func (b *broken) Ops() *kernels.Ops { return &b.ops }

// faults are ways in which an operation may be wrong. Each is run after the right result was computed, on the
// destination.
var faults = map[string]func(m kernels.Mat, args []reflect.Value){
	"the first element is off": func(m kernels.Mat, _ []reflect.Value) { shift(m.Buf, m.Off) },
	"the last element is off": func(m kernels.Mat, _ []reflect.Value) {
		shift(m.Buf,
			m.Off+(m.Rows-1)*m.Stride+m.Cols-1)
	},
	"a write past the end": func(m kernels.Mat, _ []reflect.Value) {
		shift(m.Buf,
			m.Off+(m.Rows-1)*m.Stride+m.Cols)
	},
	"a write before the start": func(m kernels.Mat, _ []reflect.Value) { shift(m.Buf, max(0, m.Off-1)) },
	"a write between the rows": func(m kernels.Mat, _ []reflect.Value) { shift(m.Buf, m.Off+m.Cols) },
	"an operand is changed": func(_ kernels.Mat, args []reflect.Value) {
		if len(args) < 2 {
			return
		}

		switch a := args[1].Interface().(type) {
		case kernels.Mat:
			if !a.IsZero() {
				shift(a.Buf, a.Off)
			}
		case kernels.Rope:
			if a.Dim > 0 {
				shift(a.Cos.Buf, a.Cos.Off)
			}
		case kernels.Sparse:
			shift(a.Values.Buf, a.Values.Off)
		case kernels.Quantised:
			shift(a.Data.Buf, a.Data.Off)
		case kernels.Score:
			shift(a.X.Buf, a.X.Off)
		}
	},
	"packed data is kept": func(m kernels.Mat, _ []reflect.Value) {
		stale := any(0)
		m.Buf.Packed.Store(&stale)
	},
}

// shift changes an element by a thousandth, or a flag.
func shift(b *kernels.Buffer, i int) {
	v := get(b, i)
	if b.DType == kernels.U8 {
		set(b, i, 1-v)
		return
	}
	set(b, i, v*1.001+0.001)
}

// TestFaultsAreFound runs the suite on devices with one fault in one operation: every case must fail.
func TestFaultsAreFound(t *testing.T) {
	fields := reflect.TypeFor[kernels.Ops]()
	for i := range fields.NumField() {
		op := fields.Field(i)
		if op.Name == "Sync" {
			continue
		}

		for fault, damage := range faults {
			if op.Type.NumOut() > 0 && fault != "the first element is off" {
				continue
			}

			t.Run(op.Name+"/"+fault, func(t *testing.T) {
				d := &broken{Device: ref.New()}
				d.ops = *d.Device.Ops()
				f := reflect.ValueOf(&d.ops).Elem().Field(i)
				f.Set(wrong(reflect.ValueOf(f.Interface()), damage))
				if !fails(op.Name, d) {
					t.Error("the suite did not notice")
				}
			})
		}
	}
}

// wrong is the operation followed by damage to its destination, or with another number as its result.
func wrong(op reflect.Value, damage func(kernels.Mat, []reflect.Value)) reflect.Value {
	return reflect.MakeFunc(op.Type(), func(args []reflect.Value) []reflect.Value {
		out := op.Call(args)
		if len(out) > 0 {
			return []reflect.Value{reflect.ValueOf(int(out[0].Int()) + 1)}
		}
		if m := args[0].Interface().(kernels.Mat); m.Len() > 0 {
			damage(m, args)
		}
		return nil
	})
}

// fails reports whether the case of an operation fails on d.
func fails(name string, d kernels.Device) bool { return failsOn(name, &side{dev: d}) }

func failsOn(name string, sides ...*side) bool {
	rec := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cases[name](newRun(rec, name, ref.New(), sides...))
	}()
	<-done
	return rec.failed
}

// TestEverySideIsTested: a fault on any of several devices is found, and so is a twin whose results are near but not
// the same.
func TestEverySideIsTested(t *testing.T) {
	damaged := func(name string, damage func(kernels.Mat, []reflect.Value)) kernels.Device {
		d := &broken{Device: ref.New()}
		d.ops = *d.Device.Ops()
		f := reflect.ValueOf(&d.ops).Elem().FieldByName(name)
		f.Set(wrong(reflect.ValueOf(f.Interface()), damage))
		return d
	}

	for _, name := range []string{"Add", "RMSNorm", "CountZero"} { // a result that is compared, near one, and a number
		good, bad := ref.New(), damaged(name, faults["the last element is off"])
		if failsOn(name, &side{dev: good}, &side{dev: good}) {
			t.Errorf("%s: two good devices fail", name)
		}
		if !failsOn(name, &side{dev: good}, &side{dev: bad}) {
			t.Errorf("%s: a fault on the second device is not found", name)
		}

		first := &side{dev: good}
		if !failsOn(name, first, &side{dev: bad, like: first}) {
			t.Errorf("%s: a fault on a twin is not found", name)
		}
	}

	near := damaged("RMSNorm", func(m kernels.Mat, _ []reflect.Value) {
		v := m.RowF32(m.Rows - 1)
		v[m.Cols-1] = math.Nextafter32(v[m.Cols-1], 2)
	})
	first := &side{dev: ref.New()}
	if failsOn("RMSNorm", &side{dev: near}) {
		t.Error("a last bit is no fault of a device")
	}
	if !failsOn("RMSNorm", first, &side{dev: near, like: first}) {
		t.Error("a twin with another last bit is not found")
	}
	if !failsOn("RMSNorm", &side{dev: near, same: true}) {
		t.Error("another last bit is not found where bits are compared")
	}
}

// TestEveryOperationIsCovered: fields of Ops, cases and benchmarks agree.
func TestEveryOperationIsCovered(t *testing.T) {
	fields := reflect.TypeFor[kernels.Ops]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if cases[name] == nil {
			t.Errorf("%s has no case", name)
		}
		if len(workloads[name]) == 0 {
			t.Errorf("%s has no benchmark", name)
		}
		if reflect.ValueOf(ref.New().Ops()).Elem().Field(i).IsNil() {
			t.Errorf("%s has no reference", name)
		}
	}

	if n := fields.NumField(); len(cases) != n || len(workloads) != n {
		t.Errorf("%d operations, %d cases, %d benchmarks", n, len(cases), len(workloads))
	}
}
