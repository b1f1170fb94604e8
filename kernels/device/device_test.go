package device_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest"
	"github.com/modelcompress/compress/kernels/ref"
)

func TestOpen(t *testing.T) {
	for name, want := range map[string]string{"": "cpu", "auto": "cpu", "cpu": "cpu", "ref": "ref"} {
		d, err := device.Open(name, device.Options{Threads: 3})
		if err != nil {
			t.Fatal(err)
		}

		if i := d.Info(); i.Name != want || (want == "cpu" && i.Threads != 3) {
			t.Errorf("%q opens %+v", name, i)
		}
		if f := device.Fallbacks(d); len(f) != 0 {
			t.Errorf("%q lacks %v", name, f)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Setenv("COMPRESS_CUDA_DRIVER", "libcuda-that-is-not-there.so")

	for name, want := range map[string]error{
		"cuda:0": device.ErrNoDevice, "cuda": device.ErrNoDevice, "cuda:17": device.ErrNoDevice,
		"cuda:": device.ErrUnknown, "cuda:-1": device.ErrUnknown, "cuda:01": device.ErrUnknown,
		"cuda:x": device.ErrUnknown,
		"gpu":    device.ErrUnknown, "CPU": device.ErrUnknown, "cpu:0": device.ErrUnknown,
	} {
		_, err := device.Open(name, device.Options{})
		if !errors.Is(err, want) {
			t.Errorf("%q gives %v, want %v", name, err, want)
		}

		if want == device.ErrUnknown && !strings.Contains(fmt.Sprint(err), "auto, cpu, ref, cuda:N") {
			t.Errorf("%q: %v does not list the known names", name, err)
		}
	}

	if _, err := device.Open("cpu", device.Options{Threads: -1}); err == nil {
		t.Error("-1 threads were accepted")
	}
}

// remote is a device whose memory the host cannot see: buffers have addresses only. It has the operations it is given.
type remote struct {
	memory map[uintptr]*kernels.Buffer
	next   uintptr
	ops    kernels.Ops
	broken error // what transfers fail with
}

func newRemote() *remote {
	return &remote{memory: map[uintptr]*kernels.Buffer{}, ops: kernels.Ops{Sync: func() error { return nil }}}
}

func (r *remote) Info() kernels.Info { return kernels.Info{Name: "remote:0"} }
func (r *remote) Ops() *kernels.Ops  { return &r.ops }
func (r *remote) Close() error       { return nil }

func (r *remote) Alloc(d kernels.DType, n int) (*kernels.Buffer, error) {
	r.next += 4096
	r.memory[r.next] = kernels.NewHost(d, n)
	return kernels.NewDevice(d, n, r.next, nil), nil
}

func (r *remote) Upload(b *kernels.Buffer, off int, src []byte) error {
	copy(r.memory[b.Addr].Bytes()[off*b.DType.Size():], src)
	b.Changed()
	return r.broken
}

func (r *remote) Download(dst []byte, b *kernels.Buffer, off int) error {
	copy(dst, r.memory[b.Addr].Bytes()[off*b.DType.Size():])
	return r.broken
}

// TestFallbackThroughTransfers runs the whole suite on a device that has no operation of its own.
func TestFallbackThroughTransfers(t *testing.T) {
	d := device.Complete(newRemote())
	kerneltest.Run(t, d)
	calls := device.Fallbacks(d)
	if want := reflect.TypeFor[kernels.Ops]().NumField() - 1; len(calls) != want {
		t.Errorf("%d operations are listed, want %d", len(calls), want)
	}

	for name, n := range calls {
		if n == 0 {
			t.Errorf("%s was never counted", name)
		}
	}
}

// partial is a host device that lacks two operations.
type partial struct {
	kernels.Device
	ops kernels.Ops
}

func (p *partial) Ops() *kernels.Ops { return &p.ops }

func TestFallbackOnHost(t *testing.T) {
	p := &partial{Device: ref.New()}
	p.ops = *p.Device.Ops()
	p.ops.Softmax, p.ops.Add = nil, nil
	d := device.Complete(p)

	x := kernels.WrapF32([]float32{1, 1})
	m := kernels.MatOf(x, 1, 2)
	d.Ops().Softmax(m, m)
	d.Ops().Softmax(m, m)
	d.Ops().Gate(m, m, m, kernels.ReLU)

	if got, want := device.Fallbacks(d), map[string]int64{"Softmax": 2, "Add": 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("fallbacks are %v, want %v", got, want)
	}
	if x.F32()[0] != 0.25 {
		t.Errorf("two equal values have the softmax %v, squared", x.F32()[0])
	}
	if first := d.Ops(); first != d.Ops() {
		t.Error("Ops changes from call to call")
	}
}

func TestFailedTransferIsReportedBySync(t *testing.T) {
	r := newRemote()
	d := device.Complete(r)
	b, err := d.Alloc(kernels.F32, 4)
	if err != nil {
		t.Fatal(err)
	}

	m := kernels.MatOf(b, 2, 2)
	r.broken = errors.New("the bus is gone")
	d.Ops().Softmax(m, m)
	d.Ops().NonFinite(m)
	r.broken = nil
	if err := d.Ops().Sync(); err == nil || !strings.Contains(err.Error(), "the bus is gone") {
		t.Errorf("Sync gives %v", err)
	}
	if err := d.Ops().Sync(); err != nil {
		t.Errorf("the failure is reported twice: %v", err)
	}
}

func ExampleOpen() {
	d, err := device.Open("ref", device.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()

	x := kernels.MatOf(kernels.WrapF32([]float32{3, 4}), 1, 2)
	ones := kernels.MatOf(kernels.WrapF32([]float32{1, 1}), 1, 2)
	sum := kernels.MatOf(kernels.NewHost(kernels.F32, 1), 1, 1)
	d.Ops().MatMulNT(sum, x, ones, kernels.MatMul{})
	fmt.Println(d.Info().Name, sum.RowF32(0)[0])
	// Output: ref 7
}
