//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
)

// Options of [Open] and [Count].
type Options struct {
	BLAS    string // cuBLASLt; "" means $COMPRESS_CUBLASLT, or what the loader finds; "off" none
	Library string // the driver; "" means $COMPRESS_CUDA_DRIVER, or libcuda.so.1 where the loader finds it

	// Note, if not nil, is told in one line when memory is full for the first time and buffers begin to move to
	// the host. It must not use the device.
	Note func(string)
}

// Device is one graphics processor.
type Device struct {
	drv     *driver
	index   int
	handle  uintptr
	context uintptr
	model   string
	major   int
	minor   int
	procs   int // multiprocessors
	ops     kernels.Ops

	mu      sync.Mutex
	err     error // first failure since the last Sync
	lost    error // a failure that no later call survives
	closed  bool
	eager   bool // wait for the end of every operation
	op      string
	note    func(string)
	compute uintptr // stream of operations
	copies  uintptr // stream of transfers to the device
	out     [4]uintptr
	params  [paramWords]uint64
	pointer [1]uintptr

	modules   map[string]uintptr
	functions map[string]uintptr
	memory    memory
	large     ring // transfers
	small     ring // row numbers and the like, on the compute stream
	programs  programs
	lt        lt
}

// paramWords holds the largest argument of a kernel.
const paramWords = 96

// Count is the number of devices of the machine. Without a driver it is 0 and the error is [ErrNoDevice].
func Count(o Options) (int, error) {
	d, err := loadDriver(o.Library)
	if err != nil {
		return 0, err
	}
	return d.count, nil
}

// Open opens the device with a number, from 0.
func Open(index int, o Options) (*Device, error) {
	drv, err := loadDriver(o.Library)
	if err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", index, err)
	}

	if index < 0 || index >= drv.count {
		return nil, fmt.Errorf("cuda:%d: %w: the machine has %d", index, ErrNoDevice, drv.count)
	}

	d := &Device{
		drv: drv, index: index, eager: os.Getenv("COMPRESS_CUDA_SYNC") == "1", op: "open", note: o.Note,
		modules: map[string]uintptr{}, functions: map[string]uintptr{},
	}

	d.memory.init()
	d.programs.patience = compileAfter

	// Contexts are current to a thread of the system, and a goroutine may move.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	if err := d.start(); err != nil {
		d.stop()
		return nil, err
	}

	d.lt.start(o.BLAS)
	d.fill()
	return d, nil
}

// start looks at the device and makes what operations need.
func (d *Device) start() error {
	if err := d.look(); err != nil {
		return err
	}
	if err := d.check(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&d.out[0])), d.handle); err != nil {
		return err
	}

	d.context = d.out[0]
	if err := d.check(cuCtxSetCurrent, d.context); err != nil {
		return err
	}

	for _, s := range []*uintptr{&d.compute, &d.copies} {
		// 1: does not wait for the default stream
		if err := d.check(cuStreamCreate, uintptr(unsafe.Pointer(&d.out[0])), 1); err != nil {
			return err
		}
		*s = d.out[0]
	}

	if err := d.memory.start(d); err != nil {
		return err
	}
	if err := d.large.start(d, 4, 8<<20); err != nil {
		return err
	}

	return d.small.start(d, 4, 256<<10)
}

// look reads what the device is, and refuses one that the kernels were not made for.
func (d *Device) look() error {
	if err := d.check(cuDeviceGet, uintptr(unsafe.Pointer(&d.out[0])), uintptr(d.index)); err != nil {
		return err
	}

	d.handle = uintptr(uint32(d.out[0]))
	name := make([]byte, 100)
	if err := d.check(cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)-1), d.handle); err != nil {
		return err
	}

	for i, c := range name {
		if c == 0 {
			d.model = string(name[:i])
			break
		}
	}

	// By the driver's numbers: compute capability (major, minor), multiprocessors, and whether memory pools are
	// there.
	for _, a := range []struct {
		attribute uintptr
		value     *int
	}{{75, &d.major}, {76, &d.minor}, {16, &d.procs}, {115, &d.memory.pooled}} {
		d.out[0] = 0
		if err := d.check(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&d.out[0])), a.attribute, d.handle); err != nil {
			return err
		}
		*a.value = int(int32(d.out[0]))
	}

	if d.major < 8 {
		return failure.Hinted(fmt.Errorf("cuda:%d: %w: %s has compute capability %d.%d, the kernels need 8.0", d.index,
			ErrArchitecture, d.model, d.major, d.minor), "use --device cpu")
	}

	return nil
}

// stop gives everything back, as far as it was made. Failures on the way out have nobody to tell.
func (d *Device) stop() {
	if d.context == 0 {
		return
	}

	d.drv.call(cuCtxSetCurrent, d.context)

	// Nothing may be unloaded or freed that an operation still uses.
	for _, s := range []uintptr{d.copies, d.compute} {
		if s != 0 {
			d.drv.call(cuStreamSynchronize, s)
		}
	}

	d.programs.drop(d)
	d.lt.stop(d)
	for _, m := range d.modules {
		d.drv.call(cuModuleUnload, m)
	}

	d.large.stop(d)
	d.small.stop(d)
	d.memory.stop(d)

	for _, s := range []uintptr{d.copies, d.compute} {
		if s != 0 {
			d.drv.call(cuStreamDestroy, s)
		}
	}

	// The primary context is shared with other libraries of the process: it is released, not destroyed.
	d.drv.call(cuDevicePrimaryCtxRelease, d.handle)
	d.context = 0
}

// Info implements [kernels.Device]. Features are the architecture, the driver's version, and cuBLASLt
// where it is used.
func (d *Device) Info() kernels.Info {
	i := kernels.Info{
		Name: fmt.Sprintf("cuda:%d", d.index), Model: d.model,
		Features: []string{fmt.Sprintf("sm_%d%d", d.major, d.minor), "cuda-" + dotted(d.drv.version)},
		Fast:     true, Bytes: true,
	}

	d.enter()
	defer d.leave()

	if d.lt.lib != nil {
		i.Features = append(i.Features, "cublaslt")
	}

	if !d.closed && d.drv.call(cuMemGetInfo, uintptr(unsafe.Pointer(&d.out[0])),
		uintptr(unsafe.Pointer(&d.out[1]))) == 0 {
		i.Free, i.Total = int64(d.out[0])+d.memory.idle(), int64(d.out[1])
	}

	return i
}

// Ops implements [kernels.Device].
func (d *Device) Ops() *kernels.Ops { return &d.ops }

// Close implements [kernels.Device].
func (d *Device) Close() error {
	d.enter()
	defer d.leave()
	if d.closed {
		return nil
	}
	err := d.pending()
	d.stop()
	d.closed = true
	return err
}

// enter takes the device for one call and binds its context to the thread.
func (d *Device) enter() {
	d.mu.Lock()
	runtime.LockOSThread()
	if !d.closed {
		d.drv.call(cuCtxSetCurrent, d.context)
	}
}

func (d *Device) leave() {
	runtime.UnlockOSThread()
	d.mu.Unlock()
}

// check calls the driver and makes an error of its result, which names the operation at hand.
//
//go:uintptrescapes
func (d *Device) check(f int, args ...uintptr) error {
	r := d.drv.call(f, args...)
	if r == 0 {
		return nil
	}
	return d.failure(f, r)
}

// failure is the error of a driver's call.
func (d *Device) failure(f, r int) error {
	err := fmt.Errorf("cuda:%d: %s: %s: %s", d.index, d.op, symbols[f], d.drv.name(r))
	switch {
	case r == outOfMemory:
		return fmt.Errorf("%w (%w)", err, ErrOutOfMemory)
	case r == deviceBusy:
		return fmt.Errorf("%w: another process has the device for itself", err)
	case r >= illegal && r <= launchFailed && r != 701 || r == eccError || r == linkError || r == contained:
		if d.lost == nil {
			d.lost = fmt.Errorf("%w (%w; later calls fail too)", err, ErrLost)
			if !d.eager {
				d.lost = failure.Hinted(d.lost, "with COMPRESS_CUDA_SYNC=1 the failing operation is named")
			}
		}

		return d.lost
	}

	return err
}

// fail keeps the first error for the next Sync.
func (d *Device) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// do calls the driver as a part of an operation: after a failure nothing more is done.
//
//go:uintptrescapes
func (d *Device) do(f int, args ...uintptr) {
	if d.err == nil && d.lost == nil {
		d.fail(d.check(f, args...))
	}
}

// errFreed is the error of a transfer with a buffer that was freed, or is another device's.
var errFreed = errors.New("cuda: the buffer is not one of this device")

// errClosed is the error of a device after Close.
var errClosed = errors.New("cuda: the device is closed")

// pending waits for both streams and returns the first failure.
func (d *Device) pending() error {
	for _, s := range []uintptr{d.copies, d.compute} {
		d.do(cuStreamSynchronize, s)
	}
	err := d.err
	if d.err = nil; err == nil {
		err = d.lost
	}
	return err
}

// sync implements Ops.Sync.
func (d *Device) sync() error {
	d.enter()
	defer d.leave()
	if d.closed {
		return errClosed
	}
	if !d.eager {
		d.op = "an operation up to " + d.op
	}
	return d.pending()
}
