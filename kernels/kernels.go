// Package kernels is the vocabulary that every compute backend speaks: element types, buffers, matrix views, the Device
// interface and Ops, the table of operations a backend fills in.
//
// Shapes are row major. A [Mat] is a view of a [Buffer]: activations are [tokens, channels], a linear weight is
// [out, in] as checkpoints store it. Weights keep the element type they are stored in (F32, BF16, F16); activations are
// F32; sums are carried in F32 or better, and reductions that decide something (norms, losses, statistics) in F64.
//
// # Use
//
//	dev, err := device.Open("auto", device.Options{}) // kernels/device knows the backends
//	a, b := kernels.MatOf(kernels.WrapF32(x), rows, in), kernels.MatOf(kernels.WrapF32(w), out, in)
//	name := dev.Info().Name
//
// Programs seldom call operations themselves: package lm does. A new backend fills in [Ops] as far as it goes
// (kernels/device takes the rest from kernels/ref) and shows with kernels/kerneltest that it computes the same.
//
// Operations do not return errors: a wrong shape is a caller's bug and panics with a constant string, a failing device
// is reported by the next [Ops].Sync. On host backends every operation is complete when the call returns.
package kernels

// Device is one place where buffers live and operations run.
type Device interface {
	// Info describes the device; the memory figures are read anew at every call.
	Info() Info
	// Alloc returns n zeroed elements, or an error that says how much was asked for and how much was free.
	Alloc(d DType, n int) (*Buffer, error)
	// Upload copies host bytes into b, starting at element off.
	Upload(b *Buffer, off int, src []byte) error
	// Download copies elements from b, starting at element off, into host bytes, after all earlier operations.
	Download(dst []byte, b *Buffer, off int) error
	// Ops is the device's operation table; the same pointer at every call.
	Ops() *Ops
	// Close frees what the device holds. Buffers are dead afterwards.
	Close() error
}

// Info describes a device to people and to reports.
type Info struct {
	Name     string   `json:"name"`               // "cpu", "ref", "cuda:0"
	Model    string   `json:"model,omitempty"`    // processor or board name
	Features []string `json:"features,omitempty"` // instruction sets in use, e.g. "avx512", "amx-bf16"
	// buffers are ordinary memory: [Buffer].Bytes works and [Wrap] is allowed
	Host    bool `json:"host"`
	Threads int  `json:"threads,omitempty"` // CPU threads of a host device
	// it has instructions that [Fast] products with weights in BF16 make use of, or with quantised ones; otherwise such
	// products are as [Exact] ones
	Fast  bool  `json:"-"`
	Bytes bool  `json:"-"`
	Total int64 `json:"memory_total_bytes"` // bytes
	Free  int64 `json:"memory_free_bytes"`  // bytes
}

// Precision says how a product may be computed.
type Precision uint8

const (
	// Exact keeps F32 accuracy: activations are not rounded and every product is exact or F32.
	Exact Precision = iota
	// Fast may round activations to BF16 where the weight is BF16, and both factors of [Ops].MatMulTN, so that
	// dot-product instructions apply; sums stay F32. Beside quantised weights it may round activations to 8 bits,
	// see [Ops].MatMulQuantised.
	Fast
)

// String gives "exact" or "fast".
func (p Precision) String() string {
	if p == Fast {
		return "fast"
	}
	return "exact"
}
