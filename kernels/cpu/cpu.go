// Package cpu is the blocked, multi-threaded backend for ordinary processors. Kernels come in several versions
// (AMX, AVX-512, AVX2, on Arm Advanced SIMD, in assembly, and portable Go); the best one that the processor has is
// chosen when the device opens. The build tag noasm leaves the assembly out, and the environment variable
// COMPRESS_CPU_DISABLE (a comma-separated list of avx2, avxvnni, avx512, avx512bf16, avx512vnni, amx, and of neon,
// dotprod, i8mm, bf16, bfmmla) switches instruction sets off at run time. Results do not depend on the number of
// threads: work is cut into pieces whose bounds depend on the shapes alone.
//
// # Use
//
//	dev := cpu.New(cpu.Options{Threads: 4})
//	dev.Ops().MatMulNT(dst, x, w, kernels.MatMul{}) // dst [tokens, out] = x [tokens, in] · wᵀ, w [out, in]
//
// Programs mostly open it by name, with kernels/device, and hand it to lm.Load.
package cpu

import (
	"fmt"
	"runtime"

	"github.com/modelcompress/compress/internal/isa"
	"github.com/modelcompress/compress/internal/memlimit"
	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/kernels"
)

// Device is the processor the program runs on.
type Device struct {
	threads int
	isa     features
	ops     kernels.Ops
	crew    crew
}

// Options of [New].
type Options struct {
	Threads int // CPU threads; 0: one for each processor
}

// features lists the instruction sets that kernels may use.
type features struct {
	isa.Sets

	// fastDot says that a bfloat16 dot product takes as long as a float32 multiply-add, and so pays: Intel's
	// takes twice as long.
	fastDot bool
}

// without drops the instruction sets named in the comma-separated list, and those that build on them.
func (f features) without(list string) features {
	f.Sets = f.Without(list)
	f.fastDot = f.fastDot && f.AVX512BF16
	return f
}

// New opens the processor as a device.
func New(o Options) *Device {
	d := &Device{threads: o.Threads, isa: detect(isa.Disabled())}
	if d.threads <= 0 {
		d.threads = runtime.GOMAXPROCS(0)
	}

	d.matmulOps(&d.ops)
	d.layerOps(&d.ops)
	d.backwardOps(&d.ops)
	d.selectOps(&d.ops)
	d.sparseOps(&d.ops)
	d.quantOps(&d.ops)
	d.ops.Sync = func() error { return nil }
	return d
}

// Info implements [kernels.Device].
func (d *Device) Info() kernels.Info {
	total, free := memory()
	return kernels.Info{
		Name: "cpu", Model: model(), Features: d.isa.Names(), Host: true, Threads: d.threads, Total: total, Free: free,
		Fast: matmulKernels(d.isa).fastBF16.run != nil, Bytes: quantKernelsOf(d.isa).roundFew != nil,
	}
}

// Alloc implements [kernels.Device].
func (d *Device) Alloc(t kernels.DType, n int) (*kernels.Buffer, error) {
	if err := roomFor(t, n); err != nil {
		return nil, err
	}
	return kernels.NewHost(t, n), nil
}

// AllocApart is Alloc in memory that the collector does not manage: it does not count as heap, after whose size the
// collector decides how much garbage may pile up, and goes back to the system at [kernels.Buffer.Free], which nothing
// else does for it. What is small comes from the heap nevertheless.
func (d *Device) AllocApart(t kernels.DType, n int) (*kernels.Buffer, error) {
	if n < 1 || n > maxAlloc/t.Size() || n*t.Size() < apartFrom {
		return d.Alloc(t, n)
	}
	if err := roomFor(t, n); err != nil {
		return nil, err
	}
	data, err := system.Anonymous(n * t.Size())
	if err != nil {
		return nil, fmt.Errorf("cpu: %d elements of %s: %w", n, t, err)
	}
	return kernels.NewMapped(t, data, func() { _ = system.Unmap(data) }), nil // fails for what is not mapped alone
}

// apartFrom is how many bytes are worth pages of their own.
const apartFrom = 1 << 20

// roomFor refuses what memory cannot hold.
func roomFor(t kernels.DType, n int) error {
	if n < 0 || (t.Size() > 0 && n > maxAlloc/t.Size()) {
		return fmt.Errorf("cpu: %d elements of %s are more than memory can hold", n, t)
	}
	if size := n * t.Size(); size >= memlimit.Large {
		if err := memlimit.Check(float64(size)); err != nil {
			return fmt.Errorf("cpu: %d elements of %s: %w", n, t, err)
		}
	}
	return nil
}

// maxAlloc keeps a size in bytes, with the alignment slack, inside an int.
const maxAlloc = 1<<62 - 128

// Upload implements [kernels.Device].
func (d *Device) Upload(b *kernels.Buffer, off int, src []byte) error {
	if o := off * b.DType.Size(); o < 0 || o+len(src) > len(b.Bytes()) {
		return fmt.Errorf("cpu: upload of %d bytes at element %d does not fit a buffer of %d %s", len(src), off, b.Len,
			b.DType)
	}
	copy(b.Bytes()[off*b.DType.Size():], src)
	b.Changed()
	return nil
}

// Download implements [kernels.Device].
func (d *Device) Download(dst []byte, b *kernels.Buffer, off int) error {
	if o := off * b.DType.Size(); o < 0 || o+len(dst) > len(b.Bytes()) {
		return fmt.Errorf("cpu: download of %d bytes at element %d does not fit a buffer of %d %s", len(dst), off,
			b.Len, b.DType)
	}
	copy(dst, b.Bytes()[off*b.DType.Size():])
	return nil
}

// Ops implements [kernels.Device].
func (d *Device) Ops() *kernels.Ops { return &d.ops }

// Close implements [kernels.Device].
func (d *Device) Close() error { return nil }
