//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
)

// memory hands out the device's memory: from the driver's stream-ordered pool, or where that is missing from
// blocks kept by size.
type memory struct {
	pooled int   // the driver has a pool
	total  int64 // bytes of the device
	pool   uintptr
	label  string
	blocks map[uintptr]block
	held   map[string]int64
	spare  map[int64][]spare // without a pool: blocks given back, by size
	events []uintptr         // made and not in use
	all    []uintptr         // every event made
	paging
}

// block is memory in use.
type block struct {
	size  int64
	label string
}

// spare is memory that may be used again after an event.
type spare struct {
	addr, event uintptr
}

func (m *memory) init() {
	m.label, m.last = "tensors", contexts.Add(1)<<40
	m.blocks = map[uintptr]block{}
	m.held = map[string]int64{}
	m.spare = map[int64][]spare{}
	m.pages = map[uintptr]*page{}
}

// start takes the driver's pool and lets it keep what is given back.
func (m *memory) start(d *Device) error {
	if err := d.check(cuMemGetInfo, uintptr(unsafe.Pointer(&d.out[0])),
		uintptr(unsafe.Pointer(&d.out[1]))); err != nil {
		return err
	}

	m.total = int64(d.out[1])
	if m.pooled == 0 {
		return nil
	}
	if err := d.check(cuDeviceGetDefaultMemPool, uintptr(unsafe.Pointer(&d.out[0])), d.handle); err != nil {
		return err
	}

	m.pool = d.out[0]
	// bytes to keep: all
	d.out[1] = 1 << 40
	return d.check(cuMemPoolSetAttribute, m.pool, releaseThreshold, uintptr(unsafe.Pointer(&d.out[1]))) // read at once
}

// releaseThreshold is the attribute of a pool that says how many bytes it keeps.
const releaseThreshold = 4

// stop gives back all memory and events. The streams are idle.
func (m *memory) stop(d *Device) {
	for addr := range m.blocks {
		m.put(d, addr, d.compute)
	}
	clear(m.pages)
	d.drv.call(cuStreamSynchronize, d.compute)
	m.trim(d)
	for _, e := range m.all {
		d.drv.call(cuEventDestroy, e)
	}
}

// Label names what is allocated from now on, for the list that [ErrOutOfMemory] comes with, and returns the
// name before. It is "tensors" at first.
func (d *Device) Label(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.memory.label
	d.memory.label = name
	return before
}

// Alloc implements [kernels.Device].
func (d *Device) Alloc(t kernels.DType, n int) (*kernels.Buffer, error) {
	if n < 0 || n > maxAlloc/t.Size() {
		return nil, fmt.Errorf("cuda:%d: %d elements of %s are more than memory can hold", d.index, n, t)
	}

	d.enter()
	defer d.leave()

	if err := d.usable(); err != nil {
		return nil, err
	}

	d.op = "Alloc"
	// The driver refuses to allocate nothing.
	size := int64(max(n, 1) * t.Size())
	addr, err := d.take(size, d.memory.label, d.copies)
	if err != nil {
		return nil, err
	}

	// Zeroed, as memory on the host is.
	if err := d.check(cuMemsetD8Async, addr, 0, uintptr(size), d.copies); err != nil {
		d.memory.put(d, addr, d.copies)
		return nil, err
	}

	number, p := d.memory.newPage(addr, size, d.memory.label)
	if err := d.mark(p); err != nil {
		return nil, err
	}

	return kernels.NewDevice(t, n, number, func() { d.free(number) }), nil
}

// maxAlloc keeps a size in bytes inside an int.
const maxAlloc = 1 << 62

// usable is the error of a device that is closed or lost.
func (d *Device) usable() error {
	if d.closed {
		return errClosed
	}
	return d.lost
}

// take allocates for use in a stream. When memory runs short, what is kept for later is given back first; then
// buffers that were not used for long move to the host.
func (d *Device) take(size int64, label string, stream uintptr) (uintptr, error) {
	m := &d.memory
	addr, r := m.get(d, size, stream)
	if r == outOfMemory && !m.moving {
		addr, r = m.retry(d, size, stream)
	}

	for r == outOfMemory {
		moved, err := d.evict(size)
		if err != nil {
			return 0, err
		}

		if addr, r = m.get(d, size, stream); r == outOfMemory {
			addr, r = m.retry(d, size, stream)
		}

		// Nothing was left to move, and it still doesn't fit.
		if !moved {
			break
		}
	}

	switch {
	case r == outOfMemory:
		return 0, d.shortage(size, label)
	case r != 0:
		return 0, d.failure(cuMemAlloc, r)
	}

	m.blocks[addr] = block{size, label}
	m.held[label] += size
	return addr, nil
}

// spareMemory is memory that can be done without: nothing moves to the host for it, and it is 0 where there is none.
func (d *Device) spareMemory(size int64, label string) uintptr {
	m := &d.memory
	addr, r := m.get(d, size, d.compute)
	switch {
	case r == outOfMemory:
		return 0
	case r != 0:
		d.fail(d.failure(cuMemAlloc, r))
		return 0
	}

	m.blocks[addr] = block{size, label}
	m.held[label] += size
	return addr
}

// retry gives what is kept for later back, after everything that runs, and attempts to allocate.
func (m *memory) retry(d *Device, size int64, stream uintptr) (uintptr, int) {
	m.settle(d)
	return m.get(d, size, stream)
}

// settle gives what is kept for later back to the driver, after everything that runs.
func (m *memory) settle(d *Device) {
	d.drv.call(cuStreamSynchronize, d.copies)
	d.drv.call(cuStreamSynchronize, d.compute)
	m.trim(d)
}

// get is one attempt to allocate.
func (m *memory) get(d *Device, size int64, stream uintptr) (uintptr, int) {
	if m.pooled != 0 {
		r := d.drv.call(cuMemAllocAsync, uintptr(unsafe.Pointer(&d.out[0])), uintptr(size), stream)
		return d.out[0], r
	}

	if list := m.spare[size]; len(list) > 0 {
		s := list[len(list)-1]
		m.spare[size] = list[:len(list)-1]
		m.events = append(m.events, s.event)
		return s.addr, d.drv.call(cuStreamWaitEvent, stream, s.event, 0)
	}

	r := d.drv.call(cuMemAlloc, uintptr(unsafe.Pointer(&d.out[0])), uintptr(size))
	return d.out[0], r
}

// put gives a block back, after what a stream holds.
func (m *memory) put(d *Device, addr, stream uintptr) {
	b := m.blocks[addr]
	delete(m.blocks, addr)
	if m.held[b.label] -= b.size; m.held[b.label] == 0 {
		delete(m.held, b.label)
	}

	if m.pooled != 0 {
		d.fail(d.check(cuMemFreeAsync, addr, stream))
		return
	}

	e, err := d.event()
	if err == nil {
		err = d.check(cuEventRecord, e, stream)
	}
	if err != nil {
		d.fail(err)
		return
	}

	m.spare[b.size] = append(m.spare[b.size], spare{addr, e})
}

// trim gives what is kept for later back to the driver.
func (m *memory) trim(d *Device) {
	if m.pooled != 0 {
		d.drv.call(cuMemPoolTrimTo, m.pool, 0)
	}

	for size, list := range m.spare {
		for _, s := range list {
			m.events = append(m.events, s.event)
			d.drv.call(cuMemFree, s.addr)
		}
		delete(m.spare, size)
	}
}

// idle is the memory that is kept for later without the driver's knowledge.
func (m *memory) idle() int64 {
	n := int64(0)
	for size, list := range m.spare {
		n += size * int64(len(list))
	}
	return n
}

// shortage is the error of an allocation that does not fit: what was asked for, what is free and what is held.
func (d *Device) shortage(size int64, label string) error {
	var list []string
	held := d.memory.held
	names := make([]string, 0, len(held))
	for name := range held {
		names = append(names, name)
	}

	// The largest holder first: that is what could be made smaller. Equal ones by name, as maps have no order.
	slices.SortFunc(names, func(a, b string) int {
		if held[a] != held[b] {
			// Clamped: the difference of two sizes doesn't fit an int everywhere.
			return int(min(max(held[b]-held[a], -1), 1))
		}
		return strings.Compare(a, b)
	})

	for _, name := range names {
		list = append(list, name+" "+sizeText(held[name]))
	}
	if list == nil {
		list = []string{"nothing"}
	}

	free := "an unknown amount"
	if d.drv.call(cuMemGetInfo, uintptr(unsafe.Pointer(&d.out[0])), uintptr(unsafe.Pointer(&d.out[1]))) == 0 {
		free = sizeText(int64(d.out[0])) + " of " + sizeText(int64(d.out[1]))
	}
	if d.memory.away > 0 {
		list = append(list, "moved to the host "+sizeText(d.memory.away))
	}

	return failure.Hinted(fmt.Errorf("cuda:%d: %s: %w: %s asked for by %s, %s free, held by this process: %s",
		d.index, d.op, ErrOutOfMemory, sizeText(size), label, free, strings.Join(list, ", ")),
		"take fewer tokens at a time, or use --device cpu")
}

// sizeText writes a number of bytes.
func sizeText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}

// free is the free function of a buffer.
func (d *Device) free(number uintptr) {
	d.enter()
	defer d.leave()

	p := d.memory.pages[number]
	if d.closed || p == nil {
		return
	}

	delete(d.memory.pages, number)
	d.forget(p)

	if p.addr != 0 {
		d.fail(d.await(p))
		d.memory.put(d, p.addr, d.compute)
	}
}

// event takes an event that nobody uses, or makes one.
func (d *Device) event() (uintptr, error) {
	m := &d.memory
	if n := len(m.events); n > 0 {
		e := m.events[n-1]
		m.events = m.events[:n-1]
		return e, nil
	}

	if err := d.check(cuEventCreate, uintptr(unsafe.Pointer(&d.out[0])), 2); err != nil { // 2: no timing
		return 0, err
	}

	m.all = append(m.all, d.out[0])
	return d.out[0], nil
}

// mark notes that the transfers so far must be over before an operation uses a page.
func (d *Device) mark(p *page) error {
	if p.ready == 0 {
		e, err := d.event()
		if err != nil {
			return err
		}
		p.ready = e
	}
	return d.check(cuEventRecord, p.ready, d.copies)
}

// await makes operations wait for the transfers to a page.
func (d *Device) await(p *page) error {
	if p.ready == 0 {
		return nil
	}
	if err := d.check(cuStreamWaitEvent, d.compute, p.ready, 0); err != nil {
		return err
	}
	d.memory.events = append(d.memory.events, p.ready)
	p.ready = 0
	return nil
}
