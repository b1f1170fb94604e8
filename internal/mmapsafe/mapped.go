// Package mmapsafe turns the loss of a mapped file's pages into an error.
//
// A file that is shortened while a program computes from its mapping, or whose disk fails, makes the next
// access of such a page a memory fault, on whichever goroutine it happens, and in assembly too. Go ends the
// program then, unless that goroutine has asked for a panic instead. So every goroutine that may touch a
// mapping is started by a [Group] or [Errors], or runs its work within [Do]; they carry the fault to the
// goroutine that waits, until a [Do] above gives it as the error that the mapping's owner has for it. All other
// panics go their way.
package mmapsafe

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sync/errgroup"
)

// mapping is a stretch of memory that a file stands behind.
type mapping struct {
	first, end uintptr
	describe   func(at int64) error
}

// table has the mappings of the process: those in use, and those that are gone but had lost pages, since a
// fault may unwind the goroutine that closes the file.
var table struct {
	sync.Mutex
	live, torn []mapping
}

// Add enters a mapping. describe is the error of a fault at one of its bytes; it is called from any goroutine.
func Add(data []byte, describe func(at int64) error) {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	table.Lock()
	defer table.Unlock()
	table.live = append(table.live, mapping{first, first + uintptr(len(data)), describe})
}

// Remove takes a mapping out, before it is unmapped. A torn one has lost pages, and faults that they have
// caused may still be on their way.
func Remove(data []byte, torn bool) {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	table.Lock()
	defer table.Unlock()

	i := slices.IndexFunc(table.live, func(m mapping) bool { return m.first == first })
	if i < 0 {
		return
	}
	if torn {
		table.torn = append(table.torn, table.live[i])
	}

	table.live = slices.Delete(table.live, i, i+1)
}

// find gives the mapping that an address is in; those in use go first.
func find(at uintptr) (mapping, bool) {
	table.Lock()
	defer table.Unlock()

	for _, list := range [][]mapping{table.live, table.torn} {
		for _, m := range slices.Backward(list) {
			if m.first <= at && at < m.end {
				return m, true
			}
		}
	}

	return mapping{}, false
}

// Error is the error of a recovered panic that is a fault in a mapping; nil for any other.
func Error(r any) error {
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		return nil
	}

	m, ok := find(fault.Addr())
	if !ok {
		return nil
	}

	return m.describe(int64(fault.Addr() - m.first))
}

// Do runs f and gives its error, or that of a fault in a mapping, by which f is left.
func Do(f func() error) (err error) {
	if fault := Catch(func() { err = f() }); fault != nil {
		return Error(fault)
	}
	return err
}

// Catch runs f and gives the panic of a fault in a mapping, by which f is left; nil if there was none. It is
// for those that pass the panic on to another goroutine.
func Catch(f func()) (fault any) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if Error(r) == nil {
				panic(r)
			}
			fault = r
		}
	}()

	f()
	return nil
}

// First keeps the first of the faults of several goroutines. The zero value is ready.
type First struct{ fault atomic.Pointer[any] }

// Keep takes what Catch gave.
func (k *First) Keep(fault any) {
	if fault != nil {
		k.fault.CompareAndSwap(nil, &fault)
	}
}

// Kept reports whether there is a fault.
func (k *First) Kept() bool { return k.fault.Load() != nil }

// Raise panics with the fault, if there is one.
func (k *First) Raise() {
	if fault := k.fault.Load(); fault != nil {
		panic(*fault)
	}
}

// Group is a [sync.WaitGroup] that carries a fault in a mapping to the goroutine that waits. The zero value is ready.
type Group struct {
	wait  sync.WaitGroup
	first First
}

// Go calls f in a new goroutine. What f waits for must not depend on others of the group, since any of them may
// be left by a fault.
func (g *Group) Go(f func()) {
	g.wait.Go(func() { g.first.Keep(Catch(f)) })
}

// Wait waits for all, and panics with the first fault.
func (g *Group) Wait() {
	g.wait.Wait()
	g.first.Raise()
}

// Errors is an [errgroup.Group] of which a fault in a mapping is an error like any other.
type Errors struct{ *errgroup.Group }

// NewErrors makes a group that stops nothing after an error.
func NewErrors() Errors { return Errors{new(errgroup.Group)} }

// WithContext makes a group whose first error ends the context that comes with it.
func WithContext(ctx context.Context) (Errors, context.Context) {
	g, ctx := errgroup.WithContext(ctx)
	return Errors{g}, ctx
}

// Go calls f in a new goroutine.
func (e Errors) Go(f func() error) {
	e.Group.Go(func() error { return Do(f) })
}
