//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// ring is pinned memory in slots, through which transfers pass: while the device reads one slot the next is filled.
type ring struct {
	size int
	list []slot
	next int
}

type slot struct {
	memory []byte
	event  uintptr // after the last transfer of the slot
	used   bool
}

func (r *ring) start(d *Device, slots, size int) error {
	r.size = size
	for range slots {
		if err := d.check(cuMemHostAlloc, uintptr(unsafe.Pointer(&d.out[0])), uintptr(size), 0); err != nil {
			return err
		}

		s := slot{memory: unsafe.Slice(*(**byte)(unsafe.Pointer(&d.out[0])), size)}
		r.list = append(r.list, s)
		if err := d.check(cuEventCreate, uintptr(unsafe.Pointer(&d.out[0])), 2); err != nil {
			return err
		}

		r.list[len(r.list)-1].event = d.out[0]
	}

	return nil
}

func (r *ring) stop(d *Device) {
	for _, s := range r.list {
		if s.event != 0 {
			d.drv.call(cuEventDestroy, s.event)
		}
		d.drv.call(cuMemFreeHost, uintptr(unsafe.Pointer(&s.memory[0])))
	}
	r.list = nil
}

// take is the next slot, after its last transfer.
func (r *ring) take(d *Device) (*slot, error) {
	s := &r.list[r.next]
	r.next = (r.next + 1) % len(r.list)
	if s.used {
		if err := d.check(cuEventSynchronize, s.event); err != nil {
			return nil, err
		}
	}
	s.used = true
	return s, nil
}

// send copies host memory to the device in a stream. The host memory may change when it returns.
func (r *ring) send(d *Device, stream, addr uintptr, src []byte) error {
	for len(src) > 0 {
		s, err := r.take(d)
		if err != nil {
			return err
		}

		n := spread(s.memory, src)
		if err := d.check(cuMemcpyHtoDAsync, addr, uintptr(unsafe.Pointer(&s.memory[0])), uintptr(n),
			stream); err != nil {
			return err
		}
		if err := d.check(cuEventRecord, s.event, stream); err != nil {
			return err
		}

		src, addr = src[n:], addr+uintptr(n)
	}

	return nil
}

// Parts of a copy in host memory: one thread moves less than a bus of the fourth generation does.
const (
	spreadSize  = 1 << 20
	spreadParts = 8
)

// spread is copy, by several threads where it is worth it. A fault of a mapped file panics here, where the
// caller can recover.
func spread(dst, src []byte) int {
	n := min(len(dst), len(src))
	parts := min(n/spreadSize, spreadParts, runtime.GOMAXPROCS(0))
	if parts < 2 {
		return copy(dst, src[:n])
	}

	var g sync.WaitGroup
	var faults [spreadParts]any
	for k := range parts {
		lo, hi := n*k/parts, n*(k+1)/parts
		g.Go(func() {
			// A recover catches panics of its own goroutine only; the fault is raised again where the caller can
			// see it.
			defer func() { faults[k] = recover() }()
			debug.SetPanicOnFault(true)
			copy(dst[lo:hi], src[lo:hi])
		})
	}

	g.Wait()

	for _, fault := range faults {
		if fault != nil {
			panic(fault)
		}
	}

	return n
}

// receive copies device memory to the host after what the compute stream holds; one transfer runs while the one
// before is copied.
func (r *ring) receive(d *Device, dst []byte, addr uintptr) error {
	type part struct {
		s   *slot
		dst []byte
	}

	var last part
	finish := func() error {
		if last.s == nil {
			return nil
		}
		err := d.check(cuEventSynchronize, last.s.event)
		if err == nil {
			spread(last.dst, last.s.memory)
		}
		return err
	}

	for len(dst) > 0 {
		s, err := r.take(d)
		if err != nil {
			return err
		}

		n := min(len(dst), r.size)
		if err := d.check(cuMemcpyDtoHAsync, uintptr(unsafe.Pointer(&s.memory[0])), addr, uintptr(n),
			d.compute); err != nil {
			return err
		}
		if err := d.check(cuEventRecord, s.event, d.compute); err != nil {
			return err
		}
		if err := finish(); err != nil {
			return err
		}

		last = part{s, dst[:n]}
		dst, addr = dst[n:], addr+uintptr(n)
	}

	return finish()
}

// Upload implements [kernels.Device]. It returns when src may change; the transfer may still run, beside
// operations on other buffers.
func (d *Device) Upload(b *kernels.Buffer, off int, src []byte) error {
	if err := d.fits("upload", b, off, len(src)); err != nil {
		return err
	}

	d.enter()
	defer d.leave()

	if err := d.usable(); err != nil || len(src) == 0 {
		return err
	}

	d.op = "Upload"
	p := d.memory.pages[b.Addr]
	if p == nil {
		return errFreed
	}
	if err := d.fetch(p); err != nil {
		return err
	}

	// A copy on the host is out of date.
	d.forget(p)

	// Operations that read the old contents must be over; a buffer that is being filled has waited already.
	if p.ready == 0 {
		e, err := d.event()
		if err != nil {
			return err
		}

		d.memory.events = append(d.memory.events, e)
		if err := d.check(cuEventRecord, e, d.compute); err != nil {
			return err
		}
		if err := d.check(cuStreamWaitEvent, d.copies, e, 0); err != nil {
			return err
		}
	}

	p.used = d.memory.serial
	if err := d.large.send(d, d.copies, p.addr+uintptr(off*b.DType.Size()), src); err != nil {
		return err
	}

	b.Changed()
	return d.mark(p)
}

// Download implements [kernels.Device].
func (d *Device) Download(dst []byte, b *kernels.Buffer, off int) error {
	if err := d.fits("download", b, off, len(dst)); err != nil {
		return err
	}

	d.enter()
	defer d.leave()

	if err := d.usable(); err != nil || len(dst) == 0 {
		return err
	}

	d.op = "Download, or an operation before"
	p := d.memory.pages[b.Addr]
	if p == nil {
		return errFreed
	}

	// It was moved out to make room; there is no need to bring it back for this.
	if p.host != nil && d.err == nil {
		copy(dst, p.host[off*b.DType.Size():])
		return nil
	}

	if d.err == nil {
		d.fail(d.await(p))
	}

	if d.err != nil {
		return d.err
	}

	return d.large.receive(d, dst, p.addr+uintptr(off*b.DType.Size()))
}

func (d *Device) fits(what string, b *kernels.Buffer, off, size int) error {
	if off < 0 || off > b.Len || size > (b.Len-off)*b.DType.Size() {
		return fmt.Errorf("cuda:%d: %s of %d bytes at element %d does not fit a buffer of %d %s", d.index, what, size,
			off, b.Len, b.DType)
	}
	return nil
}
