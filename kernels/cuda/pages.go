//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// page is the memory of a buffer: on the device, on the host, or on both with equal contents. A buffer's Addr
// is the number of its page, so that contents can move while buffers are in use.
type page struct {
	addr  uintptr // on the device; 0 if elsewhere
	size  int64
	label string
	host  []byte  // contents; nil if only the device has them
	own   bool    // host is memory of ours: what the caller keeps is not counted
	ready uintptr // an event after transfers that no operation waited for yet
	used  uint64  // number of the last operation
}

// pageStep keeps numbers of pages apart from addresses and from each other.
const pageStep = 1 << 12

// recent is how many operations have an event of their own while contents move.
const recent = 32

// paging moves the contents of buffers to the host, those that were not used for the longest time first, when
// others need room.
type paging struct {
	pages   map[uintptr]*page
	last    uintptr // number of the newest page
	serial  uint64  // number of the operation at hand, or of the last
	busy    bool    // in an operation
	since   uint64  // contents move since this operation; all before are over
	moving  bool
	ends    [recent]uintptr // events after operations, by number
	away    int64           // bytes of ours on the host
	evicted int64           // bytes that left the device
	fetched int64           // bytes that came back
}

// begin numbers an operation.
func (m *memory) begin() {
	m.serial++
	m.busy = true
}

// end marks the end of an operation, for transfers that wait for it.
func (m *memory) end(d *Device) {
	m.busy = false
	if m.moving {
		// after a failure too: a part may have been launched
		d.fail(d.check(cuEventRecord, m.ends[m.serial%recent], d.compute))
	}
}

// contexts counts devices that were opened: numbers of pages are apart from those of others.
var contexts atomic.Uintptr

// newPage makes a page for memory of the device.
func (m *memory) newPage(addr uintptr, size int64, label string) (uintptr, *page) {
	m.last += pageStep
	p := &page{addr: addr, size: size, label: label, used: m.serial}
	m.pages[m.last] = p
	return m.last, p
}

// address is where a buffer lies on the device, which an operation made sure of.
func (d *Device) address(b *kernels.Buffer) uintptr {
	if p := d.memory.pages[b.Addr]; p != nil {
		return p.addr
	}
	return 0
}

// hold brings operands to the device and makes operations wait for the transfers to them. What is written has
// no copy on the host afterwards.
func (d *Device) hold(written, read []kernels.Mat) {
	// First of all, all operands are marked as used now: fetching one must not move out another.
	for _, list := range [][]kernels.Mat{written, read} {
		for _, m := range list {
			if p := d.pageOf(m); p != nil {
				p.used = d.memory.serial
			}
		}
	}

	for i, list := range [][]kernels.Mat{written, read} {
		for _, m := range list {
			p := d.pageOf(m)
			if p == nil && !m.IsZero() {
				d.fail(errFreed)
			}
			if p == nil || d.err != nil || d.lost != nil {
				continue
			}

			err := d.fetch(p)
			if err == nil {
				err = d.await(p)
			}
			if err != nil {
				d.fail(err)
				return
			}

			// A copy on the host would be older than what is about to be written.
			if i == 0 {
				d.forget(p)
			}
		}
	}
}

func (d *Device) pageOf(m kernels.Mat) *page {
	if m.IsZero() {
		return nil
	}
	return d.memory.pages[m.Buf.Addr]
}

// forget drops the copy of a page on the host, which is about to be out of date.
func (d *Device) forget(p *page) {
	if p.own {
		d.memory.away -= p.size
	}
	p.host, p.own = nil, false
}

// fetch brings a page to the device. The transfer runs beside operations.
func (d *Device) fetch(p *page) error {
	if p.addr != 0 {
		return nil
	}

	addr, err := d.take(p.size, p.label, d.copies)
	if err != nil {
		return err
	}

	if err = d.large.send(d, d.copies, addr, p.host); err == nil {
		err = d.mark(p)
	}
	if err != nil {
		d.memory.put(d, addr, d.copies)
		return err
	}

	p.addr = addr
	d.memory.fetched += p.size
	return nil
}

// evict moves the contents of pages to the host until so many bytes of the device are free; false if there is
// nothing to move. The operands of an operation that is being launched stay.
func (d *Device) evict(size int64) (bool, error) {
	m := &d.memory
	if !d.enough(size) { // what the pool keeps for later looks taken
		m.settle(d)
		if !d.enough(size) {
			return false, nil
		}
	}

	if !m.moving {
		if err := d.startMoving(); err != nil {
			return false, err
		}
	}

	moved := false
	for size > 0 {
		p := m.oldest()
		if p == nil {
			break
		}
		if err := d.moveOut(p); err != nil {
			return false, err
		}

		moved = true
		size -= p.size
	}

	return moved, nil
}

// enough reports whether an allocation would fit if everything moved that can.
func (d *Device) enough(size int64) bool {
	if d.drv.call(cuMemGetInfo, uintptr(unsafe.Pointer(&d.out[0])), uintptr(unsafe.Pointer(&d.out[1]))) == 0 {
		size -= int64(d.out[0])
	}
	for _, p := range d.memory.pages {
		if d.memory.movable(p) {
			size -= p.size
		}
	}
	return size <= 0
}

// movable reports whether the memory of a page can be taken: not while an operation that uses it is being launched.
func (m *memory) movable(p *page) bool { return p.addr != 0 && (!m.busy || p.used != m.serial) }

// oldest is the page on the device that was not used for the longest time; of several the one that was made first.
func (m *memory) oldest() *page {
	var best *page
	var number uintptr
	for n, p := range m.pages {
		if !m.movable(p) {
			continue
		}
		if best == nil || p.used < best.used || p.used == best.used && n < number {
			best, number = p, n
		}
	}

	return best
}

// startMoving makes the events that moving needs, and says that it begins. All operations so far are over.
func (d *Device) startMoving() error {
	m := &d.memory
	for i := range m.ends {
		if m.ends[i] != 0 {
			continue
		}

		e, err := d.event()
		if err != nil {
			return err
		}
		m.ends[i] = e
	}

	if err := d.check(cuStreamSynchronize, d.compute); err != nil {
		return err
	}

	// Whatever ran before is over, so no page has to wait for it; an operation that is being prepared still counts.
	m.since, m.moving = m.serial, true
	if m.busy {
		m.since--
	}

	if d.note != nil {
		d.note(fmt.Sprintf("cuda:%d: memory is full: tensors that were not used for the longest time wait on the "+
			"host and are sent again for every use; this is slower", d.index))
	}

	return nil
}

// moveOut moves the contents of a page to the host, unless they are there, and frees its memory on the device after the
// operations that use it.
func (d *Device) moveOut(p *page) error {
	m := &d.memory
	if p.host == nil {
		if err := d.await(p); err != nil {
			return err
		}

		host := make([]byte, p.size)
		if err := d.large.receive(d, host, p.addr); err != nil {
			return err
		}

		p.host, p.own = host, true
		m.away += p.size
	}

	if p.ready != 0 {
		m.events = append(m.events, p.ready)
		p.ready = 0
	}

	// Another tensor may get the memory: not before the last operation that uses this one is over.
	if e := m.endOf(p.used); e != 0 {
		if err := d.check(cuStreamWaitEvent, d.copies, e, 0); err != nil {
			return err
		}
	}

	m.put(d, p.addr, d.copies)
	m.evicted += p.size
	p.addr = 0

	return nil
}

// endOf is an event at or after the end of an operation; 0 if that is known to be over.
func (m *memory) endOf(serial uint64) uintptr {
	if serial <= m.since {
		return 0
	}
	if serial+recent < m.serial {
		serial = m.serial - recent + 1
	}
	return m.ends[serial%recent]
}

// Keep implements [kernels.Keeper]. In the list that [ErrOutOfMemory] comes with, b is among the weights from now on.
func (d *Device) Keep(b *kernels.Buffer, src []byte) {
	d.enter()
	defer d.leave()

	p := d.memory.pages[b.Addr]
	if p == nil || int64(len(src)) != p.size {
		return
	}

	d.forget(p)
	p.host = src
	if p.addr != 0 {
		d.memory.rename(p, "weights")
	}
}

// rename gives a page on the device another label.
func (m *memory) rename(p *page, label string) {
	if m.held[p.label] -= p.size; m.held[p.label] == 0 {
		delete(m.held, p.label)
	}
	p.label = label
	m.held[label] += p.size
	m.blocks[p.addr] = block{p.size, label}
}

// Moved is how many bytes were moved to the host for want of memory, and how many came back.
func (d *Device) Moved() (out, in int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.memory.evicted, d.memory.fetched
}
