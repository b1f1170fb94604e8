package kerneltest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// run is the test of one operation: devices, what to compare them with, and the operands of the call at hand.
type run struct {
	tb       testing.TB
	sides    []*side
	other    kernels.Device
	rng      *rand.Rand
	label    string
	operands []*operand
}

// side is a device under test. Its results are near those of the other device, or have the same bits; those of a side
// that is like another one have the bits of that.
type side struct {
	name  string
	dev   kernels.Device
	same  bool
	like  *side
	index int
}

// operand is a matrix with equal contents on all devices, surrounded by guard values.
type operand struct {
	at      kernels.Mat       // where it lies in its buffers; Buf is that of the other device
	bufs    []*kernels.Buffer // those of the sides
	before  []byte            // contents of the whole buffer
	after   [][]byte          // the same on each side, after the call
	written bool
}

// on is the matrix of an operand on a side.
func (o *operand) on(s *side) kernels.Mat {
	m := o.at
	m.Buf = o.bufs[s.index]
	return m
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

	return r.place(at)
}

// place makes an operand of host memory as it is.
func (r *run) place(m kernels.Mat) *operand {
	o := &operand{at: m, bufs: make([]*kernels.Buffer, len(r.sides)), after: make([][]byte, len(r.sides))}
	r.replace(o, m.Buf)
	r.operands = append(r.operands, o)
	return o
}

// replace gives an operand the contents of host.
func (r *run) replace(o *operand, host *kernels.Buffer) {
	o.before = host.Bytes()
	o.at.Buf = r.upload(r.other, host)
	for i, s := range r.sides {
		o.bufs[i] = r.upload(s.dev, host)
	}
}

func (r *run) f32(rows, cols int) *operand { return r.mat(kernels.F32, rows, cols, uniform) }

func (r *run) upload(d kernels.Device, host *kernels.Buffer) *kernels.Buffer {
	b, err := d.Alloc(host.DType, host.Len)
	if err == nil {
		err = d.Upload(b, 0, host.Bytes())
	}
	if err != nil {
		r.fatalf("%v", err)
	}
	return b
}

// do makes the call on every side and then on the other device, and checks that operands without dst keep their bits.
func (r *run) do(f func(o *kernels.Ops, m view), dst ...*operand) {
	r.tb.Helper()

	for _, o := range dst {
		o.written = true
		for _, b := range o.bufs {
			packed := any("derived from the old contents")
			b.Packed.Store(&packed)
		}
	}

	for _, s := range r.sides {
		r.call(s.dev, f, func(o *operand) kernels.Mat { return o.on(s) })
	}

	r.call(r.other, f, func(o *operand) kernels.Mat { return o.at })

	for _, s := range r.sides {
		for i, o := range r.operands {
			o.after[s.index] = make([]byte, len(o.before))
			if err := s.dev.Download(o.after[s.index], o.bufs[s.index], 0); err != nil {
				r.fatalf("%v", err)
			}
			r.guards(s, i, o)
		}
	}
}

// call makes a call on one device, and waits for it.
func (r *run) call(d kernels.Device, f func(o *kernels.Ops, m view), at view) {
	r.tb.Helper()
	f(d.Ops(), func(o *operand) kernels.Mat {
		if o == nil {
			return kernels.Mat{}
		}
		return at(o)
	})

	if err := d.Ops().Sync(); err != nil {
		r.fatalf("%v", err)
	}
}

// guards checks that nothing but the views of destinations changed on a side, and that derived data of those was
// dropped.
func (r *run) guards(s *side, index int, o *operand) {
	r.tb.Helper()
	m := o.on(s)
	if o.written && m.Len() > 0 && m.Buf.Packed.Load() != nil {
		r.fatalf("%soperand %d was written and still holds packed data of its old contents", s, index)
	}

	size, after := m.DType().Size(), o.after[s.index]
	lo := 0
	for i := range m.Rows + 1 {
		hi := (m.Off + i*m.Stride) * size
		if i == m.Rows {
			hi = len(o.before)
		}
		if !bytes.Equal(o.before[lo:hi], after[lo:hi]) {
			r.fatalf("%soperand %d: bytes outside the view changed, before row %d", s, index, i)
		}

		lo = min(hi+m.Cols*size, len(o.before))
		if !o.written && !bytes.Equal(o.before[hi:lo], after[hi:lo]) {
			r.fatalf("%soperand %d is not a destination and changed in row %d", s, index, i)
		}
	}
}

// String begins what is said of a side.
func (s *side) String() string {
	if s.name == "" {
		return ""
	}
	return s.name + ": "
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
	if err := r.other.Download(want, o.at.Buf, 0); err != nil {
		r.fatalf("%v", err)
	}

	for _, s := range r.sides {
		wanted := want
		if s.like != nil {
			wanted = o.after[s.like.index]
		}
		for i := range o.at.Rows {
			r.checkRow(s, o, i, wanted, tol)
		}
	}
}

// checkRow compares a row of a side with that of a buffer. Equal bits need no tolerance.
func (r *run) checkRow(s *side, o *operand, i int, want []byte, tol func(i, j int) tolerance) {
	r.tb.Helper()
	t := o.at.DType()
	size := t.Size()
	lo := (o.at.Off + i*o.at.Stride) * size
	hi := lo + o.at.Cols*size
	if bytes.Equal(o.after[s.index][lo:hi], want[lo:hi]) {
		return
	}

	g, w := wrap(t, o.after[s.index][lo:hi]), wrap(t, want[lo:hi])
	for j := range o.at.Cols {
		a, b := get(g, j), get(w, j)
		if s.same || s.like != nil {
			if !bytes.Equal(g.Bytes()[j*size:(j+1)*size], w.Bytes()[j*size:(j+1)*size]) {
				r.fatalf("%selement (%d, %d) is %v on one device and %v on the other", s, i, j, a, b)
			}
			continue
		}

		if !near(a, b, tol(i, j)) {
			r.fatalf("%selement (%d, %d) of [%d, %d] is %v, want %v (off by %.3g)", s, i, j, o.at.Rows, o.at.Cols, a, b,
				a-b)
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
	apart := r.mat(x.at.DType(), x.at.Rows, x.at.Cols, uniform)
	r.do(func(o *kernels.Ops, m view) { f(o, m, apart) }, apart)
	r.do(func(o *kernels.Ops, m view) { f(o, m, x) }, x)

	size := x.at.DType().Size()
	for _, s := range r.sides {
		for i := range x.at.Rows {
			a, b := (apart.at.Off+i*apart.at.Stride)*size, (x.at.Off+i*x.at.Stride)*size
			if n := x.at.Cols * size; !bytes.Equal(apart.after[s.index][a:a+n], x.after[s.index][b:b+n]) {
				r.fatalf("%srow %d differs between a destination in place and one apart", s, i)
			}
		}
	}
}

// panics makes a wrong call, which must panic with a string on every side.
func (r *run) panics(what string, f func(o *kernels.Ops, m view)) {
	r.tb.Helper()
	for _, s := range r.sides {
		func() {
			defer func() {
				r.tb.Helper()
				if _, ok := recover().(string); !ok {
					r.fatalf("%s%s did not panic with a string", s, what)
				}
			}()
			f(s.dev.Ops(), func(o *operand) kernels.Mat {
				if o == nil {
					return kernels.Mat{}
				}
				return o.on(s)
			})
		}()
	}
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
