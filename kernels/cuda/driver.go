//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
)

// Ways in which opening or using a device fails.
var (
	// ErrNoDevice is the error of a machine without driver, or without the device asked for.
	ErrNoDevice = errors.New("no such device")
	// ErrDriver is the error of a driver that is too old, or lacks a function.
	ErrDriver = errors.New("unsuitable driver")
	// ErrArchitecture is the error of a device that the kernels were not made for.
	ErrArchitecture = errors.New("unsuitable device")
	// ErrOutOfMemory is the error of an allocation that does not fit.
	ErrOutOfMemory = kernels.ErrMemory
	// ErrLost is the error of a device that stopped working; a new process is needed.
	ErrLost = kernels.ErrLost
)

// The calls of the driver that are used, by exact version, so that one set serves every release since 12.8.
const (
	cuInit = iota
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuGetErrorName
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuMemGetInfo
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuStreamWaitEvent
	cuEventSynchronize
	cuEventElapsedTime
	cuMemAlloc
	cuMemFree
	cuMemAllocAsync
	cuMemFreeAsync
	cuDeviceGetDefaultMemPool
	cuMemPoolSetAttribute
	cuMemPoolTrimTo
	cuMemHostAlloc
	cuMemFreeHost
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyDtoDAsync
	cuMemsetD8Async
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuLaunchKernel
)

var symbols = [...]string{
	cuInit: "cuInit", cuDriverGetVersion: "cuDriverGetVersion", cuDeviceGetCount: "cuDeviceGetCount",
	cuDeviceGet:     "cuDeviceGet",
	cuDeviceGetName: "cuDeviceGetName", cuDeviceTotalMem: "cuDeviceTotalMem_v2",
	cuDeviceGetAttribute: "cuDeviceGetAttribute",
	cuGetErrorName:       "cuGetErrorName", cuDevicePrimaryCtxRetain: "cuDevicePrimaryCtxRetain",
	cuDevicePrimaryCtxRelease: "cuDevicePrimaryCtxRelease_v2", cuCtxSetCurrent: "cuCtxSetCurrent",
	cuMemGetInfo:   "cuMemGetInfo_v2",
	cuStreamCreate: "cuStreamCreate", cuStreamDestroy: "cuStreamDestroy_v2", cuStreamSynchronize: "cuStreamSynchronize",
	cuEventCreate: "cuEventCreate", cuEventDestroy: "cuEventDestroy_v2", cuEventRecord: "cuEventRecord",
	cuStreamWaitEvent: "cuStreamWaitEvent", cuEventSynchronize: "cuEventSynchronize",
	cuEventElapsedTime: "cuEventElapsedTime",
	cuMemAlloc:         "cuMemAlloc_v2", cuMemFree: "cuMemFree_v2", cuMemAllocAsync: "cuMemAllocAsync",
	cuMemFreeAsync:            "cuMemFreeAsync",
	cuDeviceGetDefaultMemPool: "cuDeviceGetDefaultMemPool", cuMemPoolSetAttribute: "cuMemPoolSetAttribute",
	cuMemPoolTrimTo: "cuMemPoolTrimTo", cuMemHostAlloc: "cuMemHostAlloc", cuMemFreeHost: "cuMemFreeHost",
	cuMemcpyHtoDAsync: "cuMemcpyHtoDAsync_v2", cuMemcpyDtoHAsync: "cuMemcpyDtoHAsync_v2",
	cuMemcpyDtoDAsync: "cuMemcpyDtoDAsync_v2",
	cuMemsetD8Async:   "cuMemsetD8Async", cuModuleLoadDataEx: "cuModuleLoadDataEx", cuModuleUnload: "cuModuleUnload",
	cuModuleGetFunction: "cuModuleGetFunction", cuLaunchKernel: "cuLaunchKernel",
}

// Results of the driver that are told apart.
const (
	outOfMemory  = 2
	noDevice     = 100
	deviceBusy   = 46
	eccError     = 214
	linkError    = 220
	contained    = 226
	illegal      = 700
	launchFailed = 719
)

// oldest is the driver version (as cuDriverGetVersion gives it) that reads the embedded PTX.
const oldest = 12080

// driver is a loaded libcuda.
type driver struct {
	entry   [len(symbols)]uintptr
	version int
	count   int
}

// drivers keeps loaded libraries by name: a library is loaded once and never closed.
var drivers struct {
	sync.Mutex
	byName map[string]*driver
}

// loadDriver loads a driver library, "" for the system's, and starts it.
func loadDriver(library string) (*driver, error) {
	if library == "" {
		library = os.Getenv("COMPRESS_CUDA_DRIVER")
	}
	if library == "" {
		library = "libcuda.so.1"
	}

	// Once for each library in a process, however many devices are opened.
	drivers.Lock()
	defer drivers.Unlock()

	if d := drivers.byName[library]; d != nil {
		return d, nil
	}

	// By name at run time: a program with a link to it wouldn't start without a driver.
	h, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, failure.Hinted(fmt.Errorf("%w: no NVIDIA driver (%s cannot be loaded)", ErrNoDevice, library),
			"use --device cpu, or install the driver")
	}

	d := &driver{}
	for i, name := range symbols {
		if d.entry[i], err = purego.Dlsym(h, name); err != nil {
			return nil, failure.Hinted(fmt.Errorf("%w: %s has no %s", ErrDriver, library, name),
				"drivers from release 570 on are supported")
		}
	}

	if err := d.start(); err != nil {
		return nil, err
	}
	if drivers.byName == nil {
		drivers.byName = map[string]*driver{}
	}

	drivers.byName[library] = d
	return d, nil
}

// start initialises the driver and checks its version.
func (d *driver) start() error {
	if r := d.call(cuInit, 0); r != 0 {
		return fmt.Errorf("%w: the NVIDIA driver does not start (cuInit: %s)", ErrNoDevice, d.name(r))
	}

	n := new([2]int32)
	if r := d.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&n[0]))); r != 0 {
		return fmt.Errorf("%w: cuDriverGetVersion: %s", ErrDriver, d.name(r))
	}
	if d.version = int(n[0]); d.version < oldest {
		return failure.Hinted(fmt.Errorf("%w: it supports CUDA %s, the kernels need %s", ErrDriver, dotted(d.version),
			dotted(oldest)), "install release 570 or later, or use --device cpu")
	}
	if r := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n[1]))); r != 0 {
		return fmt.Errorf("%w: cuDeviceGetCount: %s", ErrNoDevice, d.name(r))
	}

	d.count = int(n[1])
	return nil
}

// dotted writes a version of the driver's interface: 12080 is 12.8.
func dotted(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// call calls the driver. Pointers among the arguments are the driver's own, or converted in the call itself:
// what they point to is then of the heap, and lives until the call returns, however long that takes (a
// compilation takes seconds).
//
//go:uintptrescapes
func (d *driver) call(f int, args ...uintptr) int {
	r, _, _ := purego.SyscallN(d.entry[f], args...)
	return int(int32(r))
}

// name is what the driver calls a result.
func (d *driver) name(r int) string {
	p := new(uintptr)
	if d.call(cuGetErrorName, uintptr(r), uintptr(unsafe.Pointer(p))) != 0 || *p == 0 {
		return fmt.Sprintf("error %d", r)
	}

	var s []byte
	for q := *p; len(s) < 100; q++ {
		c := *(*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&q)))
		if c == 0 {
			break
		}
		s = append(s, c)
	}

	return string(s)
}
