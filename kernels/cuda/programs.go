//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// Formulas are interpreted until they were used often: then the driver compiles them, beside the work that goes
// on, and what it made is used from then on. Both ways give the same bits.
const (
	// uses before a formula is compiled: an interpreted one takes some tenths of a millisecond more, a
	// compilation as much as hundreds of uses
	compileAfter = 256
	maxCounted   = 4096 // formulas whose uses are counted
	maxPrograms  = 64   // compiled formulas that stay loaded
	maxCompiling = 2    // compilations at a time
)

// programs are formulas that are compiled. All but done is guarded by the device.
type programs struct {
	list      []program      // loaded, those used last at the end
	uses      map[string]int // by key
	compiling map[string]bool
	patience  int // uses before a formula is compiled; 0: at once, and the first use waits for it

	work sync.WaitGroup // compilations that run
	mu   sync.Mutex
	done []program // what they made, until the next use of a formula takes it up
}

// program is a kernel with a formula in it. Where result is not 0 it failed, in a call of the driver.
type program struct {
	key              string
	module, function uintptr
	call, result     int
	err              error
}

// key names a kernel with a formula for matrices of some types.
func programKey(kernel string, f Formula, types []kernels.DType) string {
	key := []byte(kernel)
	for _, i := range f {
		key = append(key, byte(i.Op), byte(i.A), byte(i.B), byte(i.Arg))
	}
	for _, t := range types {
		key = append(key, byte(t))
	}
	return string(key)
}

// get is the kernel with the formula in it, 0 while the formula is to be interpreted. With now it is compiled
// if it was not.
func (p *programs) get(d *Device, kernel string, f Formula, types []kernels.DType, now bool) (uintptr, error) {
	if err := p.adopt(d); err != nil {
		return 0, err
	}

	key := programKey(kernel, f, types)
	if n := slices.IndexFunc(p.list, func(m program) bool { return m.key == key }); n >= 0 {
		m := p.list[n]
		// The latest at the end: what is dropped first was used longest ago.
		p.list = append(slices.Delete(p.list, n, n+1), m)
		return m.function, nil
	}

	// Counters of formulas that were seen once would pile up in a search.
	if p.uses == nil || len(p.uses) >= maxCounted {
		p.uses = map[string]int{}
	}

	p.uses[key]++
	switch {
	case now || p.patience == 0:
		m := build(d.drv, key, kernel, f, types)
		if err := p.take(d, m); err != nil {
			return 0, err
		}
		return m.function, nil
	// Compiled beside the work, by a thread of its own; until then the interpreter computes the same.
	case p.uses[key] > p.patience && len(p.compiling) < maxCompiling && !p.compiling[key]:
		p.start(d, key, kernel, slices.Clone(f), slices.Clone(types))
	}

	return 0, nil
}

// start compiles on a thread of its own.
func (p *programs) start(d *Device, key, kernel string, f Formula, types []kernels.DType) {
	if p.compiling == nil {
		p.compiling = map[string]bool{}
	}

	p.compiling[key] = true
	drv, context := d.drv, d.context
	p.work.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		m := program{key: key, call: cuCtxSetCurrent}
		if m.result = drv.call(cuCtxSetCurrent, context); m.result == 0 {
			m = build(drv, key, kernel, f, types)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.done = append(p.done, m)
	})
}

// build compiles a formula in the context of the thread.
func build(drv *driver, key, kernel string, f Formula, types []kernels.DType) program {
	m := program{key: key, call: cuModuleLoadDataEx}
	text, err := formulaModule(kernel, f, types)
	if err != nil {
		m.err = err
		return m
	}

	// The driver reads PTX as far as a zero.
	image, out := append([]byte(text), 0), new([2]uintptr)
	if m.result = drv.call(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&image[0])), 0,
		0, 0); m.result != 0 {
		return m
	}

	name := append([]byte(kernel), 0)
	if m.result = drv.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&out[1])), out[0],
		uintptr(unsafe.Pointer(&name[0]))); m.result != 0 {
		m.call = cuModuleGetFunction
		drv.call(cuModuleUnload, out[0])
		return m
	}

	m.module, m.function = out[0], out[1]
	return m
}

// adopt takes up what was compiled. Where there was no memory for it the formula goes on being interpreted.
func (p *programs) adopt(d *Device) error {
	p.mu.Lock()
	done := p.done
	p.done = nil
	p.mu.Unlock()

	var errs []error
	for _, m := range done {
		delete(p.compiling, m.key)
		if m.result == outOfMemory {
			p.uses[m.key] = -maxCounted * compileAfter
			continue
		}
		errs = append(errs, p.take(d, m))
	}

	return errors.Join(errs...)
}

// take keeps a program, and unloads the one that was not used for longest if there are too many.
func (p *programs) take(d *Device, m program) error {
	if m.err != nil {
		return m.err
	}
	if m.result != 0 {
		return d.failure(m.call, m.result)
	}

	p.list = append(p.list, m)
	if len(p.list) <= maxPrograms {
		return nil
	}
	if err := d.check(cuStreamSynchronize, d.compute); err != nil { // it may run
		return err
	}

	d.drv.call(cuModuleUnload, p.list[0].module)
	p.list = slices.Delete(p.list, 0, 1)
	return nil
}

// drop waits for what is being compiled and unloads all.
func (p *programs) drop(d *Device) {
	p.work.Wait()
	for _, m := range append(p.list, p.done...) {
		if m.module != 0 {
			d.drv.call(cuModuleUnload, m.module)
		}
	}
	p.list = nil
	p.done = nil
	p.compiling = nil
}

// Programs is the number of formulas that are compiled and loaded; others are interpreted.
func (d *Device) Programs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.programs.list)
}
