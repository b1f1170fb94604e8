//go:build linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"math"
	"strings"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// ptx holds the compiled kernels, one module for every source file. kernels/_gen/cuda writes them.
//
//go:embed ptx/*.ptx.gz
var ptx embed.FS

// moduleText is the PTX of a module.
func moduleText(name string) ([]byte, error) {
	packed, err := ptx.ReadFile("ptx/" + name + ".ptx.gz")
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// function finds a kernel, "module.name", and loads its module on first use: the driver compiles it then, and
// keeps the result.
func (d *Device) function(name string) uintptr {
	if f, ok := d.functions[name]; ok {
		return f
	}

	unit, entry, _ := strings.Cut(name, ".")
	m, ok := d.modules[unit]
	if !ok {
		text, err := moduleText(unit)
		if err == nil {
			m, err = d.load(text)
		}
		if err != nil {
			d.fail(fmt.Errorf("module %s: %w", unit, err))
			return 0
		}

		d.modules[unit] = m
	}

	f, err := d.entry(m, entry)
	if err != nil {
		d.fail(fmt.Errorf("kernel %s: %w", name, err))
		return 0
	}

	d.functions[name] = f
	return f
}

// load makes a module of PTX.
func (d *Device) load(text []byte) (uintptr, error) {
	text = append(text, 0)
	err := d.check(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&d.out[0])), uintptr(unsafe.Pointer(&text[0])), 0, 0, 0)
	return d.out[0], err
}

// entry finds a kernel of a module.
func (d *Device) entry(module uintptr, name string) (uintptr, error) {
	c := append([]byte(name), 0)
	err := d.check(cuModuleGetFunction, uintptr(unsafe.Pointer(&d.out[0])), module, uintptr(unsafe.Pointer(&c[0])))
	return d.out[0], err
}

// grid is the number of blocks in each direction, and of threads in a block.
type grid struct{ x, y, z, threads int }

// launch runs a kernel with a copy of args, which mirrors the struct of the source.
func launch[T any](d *Device, name string, g grid, args *T) {
	if d.err != nil || d.lost != nil {
		return
	}
	if f := d.function(name); f != 0 {
		start(d, f, g, args)
	}
}

// start runs a loaded kernel.
func start[T any](d *Device, f uintptr, g grid, args *T) {
	*(*T)(unsafe.Pointer(&d.params)) = *args
	d.pointer[0] = uintptr(unsafe.Pointer(&d.params))
	d.do(cuLaunchKernel, f, uintptr(g.x), uintptr(g.y), uintptr(max(g.z, 1)), uintptr(g.threads), 1, 1, 0, d.compute,
		uintptr(unsafe.Pointer(&d.pointer[0])), 0)
}

// maxY is the most blocks in the second direction.
const maxY = 65535

// plane is a grid of blocks of 256 threads over the elements of a matrix, each of them for about per of a row.
// Kernels go on where the grid ends.
func plane(rows, cols, per int) grid {
	return grid{x: min((cols+per-1)/per, 4096), y: min(rows, maxY), threads: 256}
}

// lines is a grid with one block for every row.
func lines(rows int) grid { return grid{x: min(rows, 1<<20), y: 1, threads: 256} }

// view is a matrix on the device.
type view struct {
	p          uintptr
	stride     int
	rows, cols int
	t          kernels.DType
}

// of is the matrix of an operand, which is on the device until the operation ends; the zero view if it is
// absent. Kernels count rows and columns in 32 bits.
func (d *Device) of(m kernels.Mat) view {
	if m.IsZero() {
		return view{}
	}
	need(m.Rows <= math.MaxInt32 && m.Cols <= math.MaxInt32, "cuda: a matrix has more than 2³¹ rows or columns")
	return view{d.address(m.Buf) + uintptr(m.Off*m.DType().Size()), m.Stride, m.Rows, m.Cols, m.DType()}
}

// rowRange views rows [lo, hi).
func (v view) rowRange(lo, hi int) view {
	v.p += uintptr(lo * v.stride * v.t.Size())
	v.rows = hi - lo
	return v
}

// colRange views columns [lo, hi).
func (v view) colRange(lo, hi int) view {
	v.p += uintptr(lo * v.t.Size())
	v.cols = hi - lo
	return v
}

// mat mirrors the sources' Mat.
type mat struct {
	p          uintptr
	stride     int
	rows, cols int32
}

func (v view) mat() mat { return mat{v.p, v.stride, int32(v.rows), int32(v.cols)} }

// aligned reports whether every row starts at 16 bytes.
func (v view) aligned() bool {
	return v.p%16 == 0 && (v.stride*v.t.Size()%16 == 0 || v.rows <= 1)
}

// flat makes one row of matrices without gaps, so that a kernel need not step from row to row.
func flat(list ...*view) {
	n := list[0].rows * list[0].cols
	for _, v := range list {
		if v.p != 0 && v.rows > 1 && v.stride != v.cols || n > math.MaxInt32 {
			return
		}
	}

	for _, v := range list {
		v.rows = 1
		v.cols = n
		v.stride = n
	}
}

// operation runs f, which may write every operand, with the device taken, after the transfers to the operands.
// Nothing runs after a failure that Sync has not reported.
func (d *Device) operation(name string, f func(), operands ...kernels.Mat) {
	d.operate(name, f, operands)
}

// operate is operation with operands that f writes and those that it reads.
func (d *Device) operate(name string, f func(), written []kernels.Mat, read ...kernels.Mat) {
	d.enter()
	defer d.leave()

	if d.closed {
		d.fail(errClosed)
		return
	}

	d.op = name
	d.memory.begin()
	d.hold(written, read)
	if d.err == nil && d.lost == nil {
		f()
	}

	d.memory.end(d)
	if d.eager {
		d.do(cuStreamSynchronize, d.compute)
	}
}

// scratch is memory for one operation; give it back with drop at its end. It is 0 after a failure.
func (d *Device) scratch(size int) uintptr {
	if d.err != nil || d.lost != nil {
		return 0
	}
	addr, err := d.take(int64(max(size, 1)), "scratch of "+d.op, d.compute)
	d.fail(err)
	return addr
}

// drop gives scratch memory back, after what was launched so far.
func (d *Device) drop(addr uintptr) {
	if addr != 0 {
		d.memory.put(d, addr, d.compute)
	}
}

// ints copies numbers to scratch memory.
func (d *Device) ints(list []int32) uintptr { return sent(d, list) }

// floats copies numbers to scratch memory.
func (d *Device) floats(list []float32) uintptr { return sent(d, list) }

func sent[T any](d *Device, list []T) uintptr {
	if len(list) == 0 {
		return d.scratch(1)
	}
	size := len(list) * int(unsafe.Sizeof(list[0]))
	addr := d.scratch(size)
	if addr != 0 {
		d.fail(d.small.send(d, d.compute, addr, unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), size)))
	}
	return addr
}

// need panics when a precondition of an operation does not hold, which is a bug of the caller.
func need(ok bool, msg string) {
	if !ok {
		panic(msg)
	}
}

// same reports whether all matrices have as many rows and columns as m.
func same(m kernels.Mat, others ...kernels.Mat) bool {
	for _, o := range others {
		if o.Rows != m.Rows || o.Cols != m.Cols {
			return false
		}
	}
	return true
}

// changed drops what backends derived from the old contents of destinations.
func changed(list ...kernels.Mat) {
	for _, m := range list {
		if !m.IsZero() {
			m.Buf.Changed()
		}
	}
}

// flag is 1 for true.
func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// typeName is a type in the name of a kernel.
func typeName(t kernels.DType) string { return strings.ToLower(t.String()) }
