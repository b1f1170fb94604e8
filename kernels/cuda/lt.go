//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/ebitengine/purego"
)

// The calls of cuBLASLt that are used. Its releases 12 and 13 share them.
const (
	ltCreate = iota
	ltDestroy
	ltMatmul
	ltMatmulDescCreate
	ltMatmulDescDestroy
	ltMatmulDescSetAttribute
	ltMatrixLayoutCreate
	ltMatrixLayoutDestroy
	ltPreferenceCreate
	ltPreferenceDestroy
	ltPreferenceSetAttribute
	ltAlgoGetHeuristic
)

var ltSymbols = [...]string{
	ltCreate: "cublasLtCreate", ltDestroy: "cublasLtDestroy", ltMatmul: "cublasLtMatmul",
	ltMatmulDescCreate:  "cublasLtMatmulDescCreate",
	ltMatmulDescDestroy: "cublasLtMatmulDescDestroy", ltMatmulDescSetAttribute: "cublasLtMatmulDescSetAttribute",
	ltMatrixLayoutCreate: "cublasLtMatrixLayoutCreate", ltMatrixLayoutDestroy: "cublasLtMatrixLayoutDestroy",
	ltPreferenceCreate: "cublasLtMatmulPreferenceCreate", ltPreferenceDestroy: "cublasLtMatmulPreferenceDestroy",
	ltPreferenceSetAttribute: "cublasLtMatmulPreferenceSetAttribute",
	ltAlgoGetHeuristic:       "cublasLtMatmulAlgoGetHeuristic",
}

// ltLibrary is a loaded cuBLASLt.
type ltLibrary struct{ entry [len(ltSymbols)]uintptr }

// libraries are the names under which the library is looked for.
var libraries = []string{"libcublasLt.so.13", "libcublasLt.so.12"}

// ltNames lists the names to load the library by: one that was given, or those of the loader; none if it is "off".
func ltNames(name string) []string {
	if name == "" {
		name = os.Getenv("COMPRESS_CUBLASLT")
	}

	switch name {
	case "":
		return libraries
	case "off":
		return nil
	}

	return []string{name}
}

// loadLt loads cuBLASLt; nil if it is not there or lacks a call.
func loadLt(name string) *ltLibrary {
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil
	}

	l := &ltLibrary{}
	for i, symbol := range ltSymbols {
		if l.entry[i], err = purego.Dlsym(h, symbol); err != nil {
			return nil
		}
	}

	return l
}

// call calls the library; pointers as in driver.call.
//
//go:uintptrescapes
func (l *ltLibrary) call(f int, args ...uintptr) int {
	r, _, _ := purego.SyscallN(l.entry[f], args...)
	return int(int32(r))
}

// Numbers of cuBLASLt's interface.
const (
	realF32      = 0  // CUDA_R_32F
	realBF16     = 14 // CUDA_R_16BF
	computeF32   = 68 // CUBLAS_COMPUTE_32F: no rounding to TF32
	transposeA   = 3  // CUBLASLT_MATMUL_DESC_TRANSA
	isTransposed = 1  // CUBLAS_OP_T
	mostMemory   = 1  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
	alignmentOfA = 5  // CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; those of B, C and D follow
)

// Memory that the library's algorithms may use: so much, on devices with so much in all. It is asked for once;
// where it is refused, algorithms that need none are taken.
const (
	ltWorkspace = 32 << 20
	ltLeast     = 1 << 30
)

// ltChoice mirrors cublasLtMatmulHeuristicResult_t.
type ltChoice struct {
	algo      [8]uint64
	workspace uintptr
	state     int32
	_         float32
	_         [4]int32
}

// ltShape is a product's shape.
type ltShape struct{ m, n, k, strideA, strideB, strideD int }

// ltPlan is what cuBLASLt needs to know of a shape, and the algorithm that it chose; none if it has none for the shape.
type ltPlan struct {
	desc, a, b, d uintptr
	choice        ltChoice
	none          bool
}

// lt is cuBLASLt on one device.
type lt struct {
	lib        *ltLibrary
	handle     uintptr
	preference uintptr // 0 before the first product
	unfit      bool    // the library does not take what algorithms must keep to
	workspace  uintptr // 0 if there is none
	plans      map[ltShape]*ltPlan
	out        [2]uintptr
	scalar     [2]float32
	number     [1]int32
	size       [1]uint64
}

// maxPlans is how many shapes are remembered.
const maxPlans = 256

// start takes the library if there is one.
func (t *lt) start(name string) {
	for _, n := range ltNames(name) {
		l := loadLt(n)
		// release 13 does not start on a driver for 12
		if l != nil && l.call(ltCreate, uintptr(unsafe.Pointer(&t.out[0]))) == 0 {
			t.lib = l
			t.handle = t.out[0]
			t.plans = map[ltShape]*ltPlan{}
			return
		}
	}
}

func (t *lt) stop(d *Device) {
	if t.lib == nil {
		return
	}

	t.forget()
	if t.preference != 0 {
		t.lib.call(ltPreferenceDestroy, t.preference)
	}
	if t.workspace != 0 {
		d.memory.put(d, t.workspace, d.compute)
	}

	t.lib.call(ltDestroy, t.handle)
	t.lib = nil
	t.preference = 0
	t.workspace = 0
}

// prepare takes the memory of algorithms and says what they must keep to, once; false if the library does not want to.
func (t *lt) prepare(d *Device) bool {
	if t.preference != 0 || t.unfit {
		return !t.unfit
	}

	// Unfit until everything has worked: whatever fails below, the own kernels are used from then on.
	t.unfit = true
	if t.lib.call(ltPreferenceCreate, uintptr(unsafe.Pointer(&t.out[0]))) != 0 {
		return false
	}

	t.preference = t.out[0]
	// A small device needs its memory for tensors; algorithms without a workspace remain.
	if d.memory.total >= ltLeast {
		t.workspace = d.spareMemory(ltWorkspace, "cuBLASLt")
	}

	t.size[0] = 0
	if t.workspace != 0 {
		t.size[0] = ltWorkspace
	}

	ok := t.lib.call(ltPreferenceSetAttribute, t.preference, mostMemory, uintptr(unsafe.Pointer(&t.size[0])), 8) == 0
	// Only multiples of 16 bytes are promised for operands; the library's default is 256.
	t.number[0] = 16

	for m := range uintptr(4) {
		ok = ok && t.lib.call(ltPreferenceSetAttribute, t.preference, alignmentOfA+m,
			uintptr(unsafe.Pointer(&t.number[0])), 4) == 0
	}

	t.unfit = !ok
	return ok
}

// forget destroys all plans.
func (t *lt) forget() {
	for s, p := range t.plans {
		t.destroy(p)
		delete(t.plans, s)
	}
}

func (t *lt) destroy(p *ltPlan) {
	for _, l := range []uintptr{p.a, p.b, p.d} {
		if l != 0 {
			t.lib.call(ltMatrixLayoutDestroy, l)
		}
	}
	if p.desc != 0 {
		t.lib.call(ltMatmulDescDestroy, p.desc)
	}
}

// plan describes d[m,n] = a[m,k]·b[n,k]ᵀ, row by row, as the library sees it: dᵀ = (bᵀ)ᵀ·aᵀ, column by column.
// The library is asked for an algorithm once for every shape.
func (t *lt) plan(d *Device, s ltShape) *ltPlan {
	if p, ok := t.plans[s]; ok {
		return p
	}
	if len(t.plans) >= maxPlans {
		t.forget()
	}

	p := &ltPlan{}
	p.none = !t.prepare(d) || !t.describe(p, s) || !t.choose(p)
	t.plans[s] = p
	return p
}

// describe makes the library's descriptions of a shape.
func (t *lt) describe(p *ltPlan, s ltShape) bool {
	if t.lib.call(ltMatmulDescCreate, uintptr(unsafe.Pointer(&t.out[0])), computeF32, realF32) != 0 {
		return false
	}

	p.desc = t.out[0]
	t.number[0] = isTransposed
	if t.lib.call(ltMatmulDescSetAttribute, p.desc, transposeA, uintptr(unsafe.Pointer(&t.number[0])), 4) != 0 {
		return false
	}

	for _, l := range []struct {
		to                     *uintptr
		kind, rows, cols, lead int
	}{
		// The library thinks in columns: our rows are its columns, so b comes first and the result is transposed by
		// itself.
		{&p.b, realBF16, s.k, s.n, s.strideB},
		{&p.a, realBF16, s.k, s.m, s.strideA},
		{&p.d, realF32, s.n, s.m, s.strideD},
	} {
		if t.lib.call(ltMatrixLayoutCreate, uintptr(unsafe.Pointer(&t.out[0])), uintptr(l.kind), uintptr(l.rows),
			uintptr(l.cols), uintptr(l.lead)) != 0 {
			return false
		}
		*l.to = t.out[0]
	}

	return true
}

// choose asks for the algorithm that the library thinks fastest with the memory there is.
func (t *lt) choose(p *ltPlan) bool {
	t.number[0] = 0
	r := t.lib.call(ltAlgoGetHeuristic, t.handle, p.desc, p.b, p.a, p.d, p.d, t.preference, 1,
		uintptr(unsafe.Pointer(&p.choice)), uintptr(unsafe.Pointer(&t.number[0])))
	return r == 0 && t.number[0] > 0 && p.choice.state == 0 && p.choice.workspace <= uintptr(t.size[0])
}

// smallest is the least number of multiplications for which the library is asked.
const smallest = 1 << 22

// vendor computes a product with cuBLASLt, one call for every pair of planes, if it is there and takes the
// shape. A failure in the first call leaves the work to our own kernel; later ones cannot be undone and are
// kept for Sync.
func (d *Device) vendor(g gemmArgs) bool {
	t := &d.lt
	// the library may read and write 16 bytes at a time, and is not told where a matrix starts
	if (g.a|g.b|g.d.p)%16 != 0 {
		return false
	}
	if t.lib == nil || d.err != nil || d.lost != nil || g.bias != 0 || g.count == 0 ||
		int(g.d.rows)*int(g.d.cols)*int(g.k) < smallest {
		return false
	}

	p := t.plan(d, ltShape{int(g.d.rows), int(g.d.cols), int(g.k), g.strideA, g.strideB, g.d.stride})
	if p.none || d.err != nil {
		return false
	}

	for i := range int(g.count) {
		which := int(g.pairs >> (4 * i))
		a, b := g.a+uintptr(2*(which&3)*g.planeA), g.b+uintptr(2*(which>>2&3)*g.planeB)
		t.scalar = [2]float32{1, float32(flag(i > 0 || g.add != 0))}
		r := t.lib.call(ltMatmul, t.handle, p.desc, uintptr(unsafe.Pointer(&t.scalar[0])), b, p.b, a, p.a,
			uintptr(unsafe.Pointer(&t.scalar[1])), g.d.p, p.d, g.d.p, p.d,
			uintptr(unsafe.Pointer(&p.choice.algo[0])), t.workspace, p.choice.workspace, d.compute)

		if r != 0 && i > 0 {
			d.fail(d.check(cuStreamSynchronize, d.compute)) // if the device is gone, that is the error
			d.fail(fmt.Errorf("cuda:%d: %s: cublasLtMatmul: status %d", d.index, d.op, r))
		}

		if r != 0 {
			return i > 0
		}
	}

	return true
}
