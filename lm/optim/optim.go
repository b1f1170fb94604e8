// Package optim changes parameters by their gradients: AdamW and SGD, which compute what torch.optim computes; LOMO and
// AdaLomo, which keep next to no state; learning-rate schedules; clipping by the global norm.
//
// An optimiser is applied to one parameter at a time. A training loop may hold all gradients and apply them after the
// backward pass, or apply each as soon as the pass delivers it and drop it then, so that no full set of gradients ever
// exists. Both give the same bits, as do all numbers of threads.
//
// Values are F32, BF16 or F16, gradients F32, both in host memory. What is not F32 is updated in float32 and rounded to
// nearest even, from a float32 master copy if the optimiser keeps one: without it, steps below half a unit in the last
// place of a value are lost.
//
// # Use
//
//	opt, err := optim.NewAdamW(optim.AdamWOptions{WeightDecay: 0.01})
//	rate, err := optim.NewSchedule("cosine", 10, 200)          // 10 steps of warm-up, 200 in all
//	_, scale, err := optim.Clip(params, 1, 0)                  // to a norm of 1
//	err = opt.Apply(p, optim.Step{LR: 2e-4 * rate(step), GradScale: scale})
package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// Ways of failing; each is wrapped with the parameter's name.
var (
	// ErrState is the error of state that does not belong to the parameters or to the optimiser.
	ErrState = errors.New("optimiser state does not fit")
	// ErrNonFinite is the error of a gradient with a NaN or an infinity.
	ErrNonFinite = errors.New("gradient is not finite")
	// ErrShape is the error of a value and a gradient of different shapes, with gaps between rows, or of types
	// that cannot be trained.
	ErrShape = errors.New("parameter cannot be updated")
)

// Param is one trainable matrix and its gradient. Vectors are [1, n].
type Param struct {
	Name    string
	Value   kernels.Mat // F32, BF16 or F16, without gaps between rows
	Grad    kernels.Mat // F32, of the same shape; it is read only
	NoDecay bool        // weight decay leaves it alone, as is usual for norms and biases
	LRScale float64     // factor on the learning rate; 0 means 1
}

// Step holds what changes from one step of training to the next.
type Step struct {
	LR        float64 // learning rate
	GradScale float64 // factor on gradients, such as the coefficient of [ClipCoefficient]; 0 means 1
}

// Optimizer is what training loops need of an optimiser. It is not safe for use by several goroutines at once.
type Optimizer interface {
	// Apply changes the value of one parameter; the first call for a name makes its state. Every parameter
	// counts its own steps. The error wraps ErrShape or ErrState, and nothing has changed then.
	Apply(p Param, s Step) error
	// State lists the state by name: "<parameter>.step" with one value, and what the optimiser keeps, such as
	// "<parameter>.exp_avg". The slices are the optimiser's own, to be saved before the next Apply.
	State() map[string][]float32
	// Restore replaces the state by a copy of one that State has returned; after it, training goes on with the
	// same bits. Parameters that it does not know are refused by Apply from then on. The error wraps ErrState.
	Restore(state map[string][]float32) error
}

var (
	_ Optimizer = (*AdamW)(nil)
	_ Optimizer = (*SGD)(nil)
	_ Optimizer = (*LOMO)(nil)
	_ Optimizer = (*AdaLomo)(nil)
)

func (p Param) check() error {
	if err := p.shaped(); err != nil {
		return err
	}
	if v := p.Value; v.Len() > 0 && (v.Buf.Bytes() == nil || p.Grad.Buf.Bytes() == nil) {
		return p.fault("not in host memory")
	}
	return nil
}

func (p Param) fault(what string) error { return fmt.Errorf("%s: %w: %s", p.Name, ErrShape, what) }

// shaped checks types and shapes.
func (p Param) shaped() error {
	fault, v, g := p.fault, p.Value, p.Grad
	switch {
	case v.IsZero() || g.IsZero():
		return fault("no value or no gradient")
	case v.Rows != g.Rows || v.Cols != g.Cols:
		return fault(fmt.Sprintf("value is [%d, %d], gradient [%d, %d]", v.Rows, v.Cols, g.Rows, g.Cols))
	case g.DType() != kernels.F32:
		return fault("gradient is " + g.DType().String() + ", want F32")
	case !slices.Contains([]kernels.DType{kernels.F32, kernels.BF16, kernels.F16}, v.DType()):
		return fault("value is " + v.DType().String() + ", want F32, BF16 or F16")
	case !v.Dense() || !g.Dense():
		return fault("gaps between rows")
	}

	return nil
}

// grad is the gradient as a slice.
func (p Param) grad() []float32 { return p.Grad.Buf.F32()[p.Grad.Off:][:p.Grad.Len()] }

// rate is the learning rate of this parameter.
func (p Param) rate(s Step) float64 {
	if p.LRScale == 0 {
		return s.LR
	}
	return s.LR * p.LRScale
}

// scale is the factor on gradients.
func (s Step) scale() float32 {
	if s.GradScale == 0 {
		return 1
	}
	return float32(s.GradScale)
}

// decay is the weight decay of this parameter.
func (p Param) decay(w float64) float64 {
	if p.NoDecay {
		return 0
	}
	return w
}

// number returns v, or otherwise where v is 0, and complains unless lo ≤ v < hi.
func number(name string, v, otherwise, lo, hi float64, errs *[]error) float64 {
	if v == 0 {
		v = otherwise
	}
	if !(v >= lo && v < hi) {
		*errs = append(*errs, fmt.Errorf("%s %g: want at least %g and less than %g", name, v, lo, hi))
	}
	return v
}

var inf = math.Inf(1)
