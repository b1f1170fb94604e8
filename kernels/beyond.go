package kernels

import (
	"errors"
	"fmt"
)

// As finds what a device can do beyond [Ops]: an interface such as [Scorer], [Solver], [Merger], [Stepper] or
// [Assembler], of the device itself or of one that it wraps (its method Unwrap). Of these the
// devices of the host have none, because packages compute such things there themselves; they are [Attender].
func As[T any](dev Device) (t T, ok bool) {
	for dev != nil {
		if t, ok = dev.(T); ok {
			return t, true
		}

		w, wraps := dev.(interface{ Unwrap() Device })
		if !wraps {
			break
		}

		dev = w.Unwrap()
	}

	return t, false
}

// Missed tells a device away from the host that the host computes something instead of it, for want of an
// operation, memory or a form that the operation takes. The device counts it with the operations that it lacks,
// if it keeps count.
func Missed(dev Device, what string) {
	if dev == nil || dev.Info().Host {
		return
	}
	if c, ok := As[interface{ Missed(what string) }](dev); ok {
		c.Missed(what)
	}
}

// Ways in which a device away from the host fails in the middle of work that the host could do.
var (
	// ErrMemory is the error of a device that has no memory for the operands of one operation, or for a buffer.
	ErrMemory = errors.New("out of memory")
	// ErrLost is the error of a device that stopped working; a new process is needed to use it again.
	ErrLost = errors.New("device lost")
)

// ErrNotPositive is the error of a matrix that has no Cholesky factor.
var ErrNotPositive = errors.New("matrix is not positive definite")

// PivotError is the error of a factorisation on a device that met a pivot that is not positive. It unwraps to
// [ErrNotPositive].
type PivotError struct{ Pivot int }

// Error implements error.
func (e *PivotError) Error() string { return fmt.Sprintf("%v: pivot %d", ErrNotPositive, e.Pivot) }

// Unwrap returns [ErrNotPositive].
func (e *PivotError) Unwrap() error { return ErrNotPositive }

// Solver is a device with factorisations and solves in F64.
type Solver interface {
	// Cholesky replaces the lower triangle of the symmetric matrix a, F64 [n, n], by its factor L with L·Lᵀ =
	// a. What lies above the diagonal is not read; it may be written. It waits for the result; a pivot that is
	// not positive is a [*PivotError].
	Cholesky(a Mat) error
	// SolveLower replaces b, F64 [n, m], by the solution y of L·y = b, or if transposed of Lᵀ·y = b, with the
	// lower triangle L of l, F64 [n, n]. Failures are reported by Sync.
	SolveLower(l, b Mat, transposed bool)
}

// ErrMerge is the error of models that cannot be merged on a device.
var ErrMerge = errors.New("bad merge")

// MaxModels is the most models of one merge on a device.
const MaxModels = 16

// Source is one model of a merge.
type Source struct {
	M      Mat
	Weight float32
	// Keep is how many differences to the base stay, the largest by magnitude, of equal ones the first (TIES);
	// 0 keeps all.
	Keep int
	// Share, if above 0, is the chance times 2³² with which each difference stays (DARE), drawn by number from
	// the sequence that A and B key. Restoring the norm is up to Weight.
	Share, A, B uint32
}

// Arithmetic describes task arithmetic:
//
//	v_t = Weight_t · kept(M_t - base);  out = base + Lambda · Σ v_t (/ Σ Weight_t if Normalise)
//
// With Consensus, only the v_t count whose sign is that of Σ v_t (a sum of 0 is positive), element by element,
// and only their weights.
type Arithmetic struct {
	Lambda               float32
	Consensus, Normalise bool
}

// Conflicts are counts over the elements of models' kept differences.
type Conflicts struct {
	// [p][n]: elements with p positive and n negative differences; [0][0] is not counted
	Signs     [MaxModels + 1][MaxModels + 1]uint64
	Mass, Net float64 // Σ Σ|δ| and Σ |Σ δ|
}

// Merger is a device with task arithmetic. Errors that the methods return wrap [ErrMerge].
type Merger interface {
	// Merge writes task arithmetic of models to out, a weight of base's shape, in one pass after the cuts were
	// found. Failures of the device are reported by Sync.
	Merge(out, base Mat, list []Source, a Arithmetic) error
	// Conflicts counts the signs of models' kept differences to the base. It waits for the result.
	Conflicts(base Mat, list []Source) (Conflicts, error)
}

// AdamStep holds the numbers of one step of AdamW:
//
//	g = Scale·g;  p = p·Decay;  m += Rise1·(g - m);  v = Beta2·v + Rise2·g²;  p += Step·m / (√v/Root2 + Eps)
type AdamStep struct {
	Scale, Decay, Rise1, Beta2, Rise2, Root2, Eps, Step float32
}

// Stepper is a device with an optimiser's step.
type Stepper interface {
	// AdamW makes one step on p with the gradient g and the moments m and v, F32 without gaps and of one
	// length. Products and sums are rounded one by one, as on the host.
	AdamW(p, m, v, g Mat, s AdamStep)
}

// Assembler is a device that joins shards to matrices: a row of dst, F32 [r, l·w], is l rows of pool, F32 [n,
// w], side by side, those that the next l numbers of ids name. Mixture of Shards makes the factors of its
// adapters so.
type Assembler interface {
	// Assemble writes dst. ids has r·l row numbers of pool.
	Assemble(dst, pool Mat, ids []int32)
	// Scatter adds the shards of src, which lie as those of dst, to the rows of pool that ids names: the
	// gradient of Assemble. A number may come several times; its shards are added one after the other, in the
	// order of ids, with the same bits on every device.
	Scatter(pool, src Mat, ids []int32)
}

// SequenceAttention is [Attention] of one sequence of several. Its keys and values, F32, lie in parts, one after the
// other: part i of V has the rows of part i of K.
type SequenceAttention struct {
	Attention
	Dst, Q Mat   // [tq, Heads·HeadDim]
	K, V   []Mat // parts [rows, KVHeads·HeadDim]
}

// Attender is a device that computes attention of several sequences faster together than one after the other.
type Attender interface {
	// Attentions computes [Ops].Attention for each, with the bits that it has alone. No Dst may be what another reads.
	Attentions(list []SequenceAttention)
}
