package lora

import (
	"fmt"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/sparse"
)

// Zeros counts the elements that are zero in the matrices that a training changes.
type Zeros struct {
	Kept     bool   `json:"kept"`   // see Options.KeepZeros
	Pruned   int    `json:"pruned"` // matrices with at least 30 % zeros before
	Elements int64  `json:"elements"`
	Before   int64  `json:"before"`
	After    *int64 `json:"after,omitempty"` // of kind full; an adapter leaves the base as it is

	names []string
}

// zeros counts the zeros of the matrices that an adapter changes, nil for all matrices of the model, and says
// where a pruned model is about to lose its pattern. nil: there are none, or they are not known.
func (o Options) zeros(m *lm.Model, a *adapter.Adapter) (*Zeros, error) {
	if o.KeepZeros && !m.Device().Info().Host {
		return nil, failure.Hinted(fmt.Errorf("%w: keeping zeros is computed on the CPU only", ErrUnsupported),
			"--device cpu")
	}
	if m.Packed() && !o.KeepZeros {
		return nil, nil // counting would expand the matrices, beside which the packed ones stay
	}

	z := &Zeros{Kept: o.KeepZeros, names: changed(m, a)}
	for _, name := range z.names {
		n, of, err := count(m, name)
		if err != nil {
			return nil, err
		}

		z.Before += n
		z.Elements += of
		if float64(n) >= sparse.Pruned*float64(of) {
			z.Pruned++
		}
	}

	if z.Before == 0 {
		return nil, nil
	}

	if z.Pruned > 0 && !z.Kept && o.Remark != nil {
		what := "training fills their zeros"
		if a != nil {
			what = "folding the adapter into the model fills their zeros"
		}
		o.Remark(fmt.Sprintf("%d of %d matrices are pruned, and %s (%.1f %% now)",
			z.Pruned, len(z.names), what, percent(z.Before, z.Elements)))
	}

	return z, nil
}

// unmasked is the remark about an adapter in PEFT's form that keeps zeros.
const unmasked = "PEFT does not know that the adapter keeps zeros of the base, and changes them too"

// recount counts the zeros after the training.
func (z *Zeros) recount(m *lm.Model) error {
	after := int64(0)
	for _, name := range z.names {
		n, _, err := count(m, name)
		if err != nil {
			return err
		}
		after += n
	}

	z.After = &after
	return nil
}

// changed lists the matrices that an adapter changes, in the order of the model; nil stands for a training of all.
func changed(m *lm.Model, a *adapter.Adapter) []string {
	touched := map[string]bool{}
	if a != nil {
		for _, l := range a.Low {
			touched[l.Module.Tensor] = true
		}
		for _, w := range a.Whole {
			touched[w.Tensor] = true
		}
		for _, r := range a.Rows {
			touched[r.Module.Tensor] = true
		}
	}

	var names []string
	for _, name := range m.Tensors() {
		info, ok := m.Info(name)
		if ok && len(info.Shape) > 1 && (a == nil || touched[name]) {
			names = append(names, name)
		}
	}

	return names
}

// count gives the zeros and the elements of a matrix; 0 and 0 where it is kept in fewer bits than it is stored in.
func count(m *lm.Model, name string) (zeros, elements int64, err error) {
	v, err := m.Param(name)
	if err != nil {
		return 0, 0, err
	}

	if t := v.DType(); t != kernels.F32 && t != kernels.BF16 && t != kernels.F16 {
		return 0, 0, nil
	}

	if dev := m.Device(); !dev.Info().Host {
		h := kernels.MatOf(kernels.NewHost(v.DType(), v.Len()), v.Rows, v.Cols)
		if err := dev.Download(h.Buf.Bytes(), v.Buf, v.Off); err != nil {
			return 0, 0, err
		}
		v = h
	}

	zeros, err = sparse.Count(v, m.Device().Info().Threads)
	return zeros, int64(v.Len()), err
}
