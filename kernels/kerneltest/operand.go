package kerneltest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// run is the test of one operation: a device, what to compare it with, and the operands of the call at hand.
type run struct {
	tb         testing.TB
	dev, other kernels.Device
	same       bool // demand equal bits
	rng        *rand.Rand
	label      string
	operands   []*operand
}

// operand is a matrix with equal contents on both devices, surrounded by guard values.
type operand struct {
	dev, other kernels.Mat
	before     []byte // contents of the whole buffer
	after      []byte // the same on the device under test, after the call
	written    bool
}

// view gives the matrix of an operand on the device that a call runs on; the zero Mat for nil.
type view func(*operand) kernels.Mat

// fill makes values.
type fill func(*rand.Rand) float64

// uniform fills with values in [-1, 1), which float32 holds exactly.
func uniform(r *rand.Rand) float64 { return float64(float32(2*r.Float64() - 1)) }

// spread fills with values in [-s, s).
func spread(s float64) fill {
	return func(r *rand.Rand) float64 { return float64(float32(s * (2*r.Float64() - 1))) }
}

// begin starts a new call.
func (r *run) begin(format string, args ...any) {
	r.label = fmt.Sprintf(format, args...)
	r.operands = r.operands[:0]
}

func (r *run) fatalf(format string, args ...any) {
	r.tb.Helper()
	r.tb.Fatalf("%s: %s", r.label, fmt.Sprintf(format, args...))
}

// guard is the byte of everything outside an operand's view.
const guard = 0xA5

// mat makes an operand at an odd place: a random offset, gap between rows and rest after the last row.
func (r *run) mat(d kernels.DType, rows, cols int, f fill) *operand {
	gap := []int{0, 0, 1, 3, 16}[r.rng.IntN(5)]
	off := []int{0, 1, 5, 16}[r.rng.IntN(4)]
	n := off + rows*(cols+gap) + 17
	host := kernels.NewHost(d, n)
	for i := range host.Bytes() {
		host.Bytes()[i] = guard
	}

	at := kernels.Mat{Buf: host, Off: off, Rows: rows, Cols: cols, Stride: cols + gap}
	for i := range rows {
		for j := range cols {
			set(host, off+i*at.Stride+j, f(r.rng))
		}
	}

	o := &operand{dev: at, other: at, before: host.Bytes()}
	o.dev.Buf, o.other.Buf = r.upload(r.dev, d, host), r.upload(r.other, d, host)
	r.operands = append(r.operands, o)

	return o
}

func (r *run) f32(rows, cols int) *operand { return r.mat(kernels.F32, rows, cols, uniform) }

func (r *run) upload(d kernels.Device, t kernels.DType, host *kernels.Buffer) *kernels.Buffer {
	b, err := d.Alloc(t, host.Len)
	if err == nil {
		err = d.Upload(b, 0, host.Bytes())
	}
	if err != nil {
		r.fatalf("%v", err)
	}
	return b
}

// do makes the call on both devices and checks that operands without dst keep their bits.
func (r *run) do(f func(o *kernels.Ops, m view), dst ...*operand) {
	r.tb.Helper()

	for _, o := range dst {
		o.written = true
		packed := any("derived from the old contents")
		o.dev.Buf.Packed.Store(&packed)
	}

	f(r.dev.Ops(), func(o *operand) kernels.Mat {
		if o == nil {
			return kernels.Mat{}
		}
		return o.dev
	})

	f(r.other.Ops(), func(o *operand) kernels.Mat {
		if o == nil {
			return kernels.Mat{}
		}
		return o.other
	})

	for _, d := range []kernels.Device{r.dev, r.other} {
		if err := d.Ops().Sync(); err != nil {
			r.fatalf("%v", err)
		}
	}

	for i, o := range r.operands {
		r.download(o)
		r.guards(i, o)
	}
}

func (r *run) download(o *operand) {
	o.after = make([]byte, len(o.before))
	if err := r.dev.Download(o.after, o.dev.Buf, 0); err != nil {
		r.fatalf("%v", err)
	}
}

// guards checks that nothing but the views of destinations changed, and that derived data of those was dropped.
func (r *run) guards(index int, o *operand) {
	r.tb.Helper()
	if o.written && o.dev.Len() > 0 && o.dev.Buf.Packed.Load() != nil {
		r.fatalf("operand %d was written and still holds packed data of its old contents", index)
	}

	m, size := o.dev, o.dev.DType().Size()
	lo := 0
	for i := range m.Rows + 1 {
		hi := (m.Off + i*m.Stride) * size
		if i == m.Rows {
			hi = len(o.before)
		}
		if !bytes.Equal(o.before[lo:hi], o.after[lo:hi]) {
			r.fatalf("operand %d: bytes outside the view changed, before row %d", index, i)
		}

		lo = min(hi+m.Cols*size, len(o.before))
		if !o.written && !bytes.Equal(o.before[hi:lo], o.after[hi:lo]) {
			r.fatalf("operand %d is not a destination and changed in row %d", index, i)
		}
	}
}

// tolerance is how far a result may be from the reference: abs + rel·|reference|.
type tolerance struct{ abs, rel float64 }

// exact demands equal values.
var exact = tolerance{}

// check compares a destination with the other device's.
func (r *run) check(o *operand, tol tolerance) {
	r.tb.Helper()
	r.checkEach(o, func(int, int) tolerance { return tol })
}

// checkEach compares with a tolerance for every element.
func (r *run) checkEach(o *operand, tol func(i, j int) tolerance) {
	r.tb.Helper()
	want := make([]byte, len(o.before))
	if err := r.other.Download(want, o.other.Buf, 0); err != nil {
		r.fatalf("%v", err)
	}

	g, w := wrap(o.dev.DType(), o.after), wrap(o.dev.DType(), want)
	for i := range o.dev.Rows {
		for j := range o.dev.Cols {
			at := o.dev.Off + i*o.dev.Stride + j
			if r.same {
				size := g.DType.Size()
				if !bytes.Equal(g.Bytes()[at*size:(at+1)*size], w.Bytes()[at*size:(at+1)*size]) {
					r.fatalf("element (%d, %d) is %v on one device and %v on the other", i, j, get(g, at), get(w, at))
				}
				continue
			}

			if a, b := get(g, at), get(w, at); !near(a, b, tol(i, j)) {
				r.fatalf("element (%d, %d) of [%d, %d] is %v, want %v (off by %.3g)", i, j, o.dev.Rows, o.dev.Cols, a,
					b, a-b)
			}
		}
	}
}

// near reports whether got is near want; a non-finite want allows any non-finite value unless tol is exact.
func near(got, want float64, tol tolerance) bool {
	switch {
	case math.IsNaN(want) && tol == exact:
		return math.IsNaN(got)
	case got == want:
		return true
	case math.IsNaN(want) || math.IsInf(want, 0):
		return tol != exact && (math.IsNaN(got) || math.IsInf(got, 0))
	}
	return math.Abs(got-want) <= tol.abs+tol.rel*math.Abs(want)
}

// inPlace makes a call with dst apart from the operand and with dst as that operand: the bits must be equal.
func (r *run) inPlace(x *operand, f func(o *kernels.Ops, m view, dst *operand)) {
	r.tb.Helper()
	apart := r.mat(x.dev.DType(), x.dev.Rows, x.dev.Cols, uniform)
	r.do(func(o *kernels.Ops, m view) { f(o, m, apart) }, apart)
	r.do(func(o *kernels.Ops, m view) { f(o, m, x) }, x)

	size := x.dev.DType().Size()
	for i := range x.dev.Rows {
		a, b := (apart.dev.Off+i*apart.dev.Stride)*size, (x.dev.Off+i*x.dev.Stride)*size
		if n := x.dev.Cols * size; !bytes.Equal(apart.after[a:a+n], x.after[b:b+n]) {
			r.fatalf("row %d differs between a destination in place and one apart", i)
		}
	}
}

// panics makes a wrong call, which must panic with a string.
func (r *run) panics(what string, f func(o *kernels.Ops, m view)) {
	r.tb.Helper()
	defer func() {
		r.tb.Helper()
		if _, ok := recover().(string); !ok {
			r.fatalf("%s did not panic with a string", what)
		}
	}()
	f(r.dev.Ops(), func(o *operand) kernels.Mat { return o.dev })
}

func wrap(d kernels.DType, p []byte) *kernels.Buffer {
	b := kernels.NewHost(d, len(p)/d.Size())
	copy(b.Bytes(), p)
	return b
}

func get(b *kernels.Buffer, i int) float64 {
	switch b.DType {
	case kernels.F32:
		return float64(b.F32()[i])
	case kernels.F64:
		return b.F64()[i]
	case kernels.BF16:
		return float64(kernels.FromBF16(b.U16()[i]))
	case kernels.F16:
		return float64(kernels.FromF16(b.U16()[i]))
	}

	return float64(b.U8()[i])
}

func set(b *kernels.Buffer, i int, v float64) {
	switch b.DType {
	case kernels.F32:
		b.F32()[i] = float32(v)
	case kernels.F64:
		b.F64()[i] = v
	case kernels.BF16:
		b.U16()[i] = kernels.ToBF16(float32(v))
	case kernels.F16:
		b.U16()[i] = kernels.ToF16(float32(v))
	default:
		b.U8()[i] = uint8(v)
	}
}
