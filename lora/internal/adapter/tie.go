package adapter

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// Apart reports whether an adapter changes the token table or the head of a tied model, but not both alike:
// then the head becomes a matrix of its own.
func (a *Adapter) Apart(table string) bool {
	if slices.ContainsFunc(a.Low, func(l *Low) bool { return (l.Module.Table || l.Module.Tied) && !a.twins(l) }) {
		return true
	}
	return slices.ContainsFunc(a.Whole, func(w *Whole) bool {
		return !w.Frozen && (w.Tensor == table || w.Head()) &&
			!slices.ContainsFunc(a.Whole, func(o *Whole) bool { return o != w && o.Value == w.Value })
	})
}

// twins reports whether a change of the table or the head has its like on the other side.
func (a *Adapter) twins(l *Low) bool {
	return l.Magnitude == nil && slices.ContainsFunc(a.Low, func(o *Low) bool {
		_, twin := o.Factors.(Twin)
		_, is := l.Factors.(Twin)
		return o.Magnitude == nil && twin != is && (o.Module.Table || o.Module.Tied) && o.Scale == l.Scale &&
			slices.Equal(o.Parameters(), l.Parameters())
	})
}

// Head reports whether a tensor is the head of a model whose head is otherwise its token table.
func (w *Whole) Head() bool { return w.Tensor == TiedHead }

// TiedHead is what the head of a tied model is called, which has no tensor.
const TiedHead = "lm_head.weight"

// Tie lets the head follow the table where the configuration asks for it: a change of one becomes a change of
// both, with the same parameters. What is there for both stays, and shares its parameters if the numbers are
// the same. A model that is not tied is an error that wraps ErrConfig.
func (a *Adapter) Tie(modules []Module) error {
	if !a.Config.Tying {
		return nil
	}

	table := slices.IndexFunc(modules, func(m Module) bool { return m.Table })
	head := slices.IndexFunc(modules, func(m Module) bool { return m.Tied })
	if table < 0 || head < 0 {
		return nil
	}
	if err := a.tieLow(modules[table], modules[head]); err != nil {
		return err
	}

	a.tieWhole(modules[table])
	return nil
}

func (a *Adapter) tieLow(table, head Module) error {
	at, other := a.Find(table.Path), a.Find(head.Path)
	if at == nil && other != nil {
		return fmt.Errorf("%w: ensure_weight_tying, and factors of the head alone", ErrFile)
	}
	if at == nil {
		return nil
	}

	twin := Twin{at.Factors.(Plain)}
	if other == nil {
		if at.Magnitude != nil {
			return fmt.Errorf("%w: ensure_weight_tying with DoRA: table and head have magnitudes of different kinds",
				ErrUnsupported)
		}
		a.Low = append(a.Low, &Low{Module: head, Rank: at.Rank, Alpha: at.Alpha, Scale: at.Scale, Factors: twin})
		return nil
	}

	own, ok := other.Factors.(Plain)
	if ok && other.Rank == at.Rank && turned(own.A, twin.B) && turned(own.B, twin.A) {
		other.Factors = twin
	}

	return nil
}

func (a *Adapter) tieWhole(table Module) {
	var at, head *Whole
	for _, w := range a.Whole {
		switch {
		case w.Frozen:
		case w.Tensor == table.Tensor:
			at = w
		case w.Head():
			head = w
		}
	}

	path := table.Path + ".weight"
	switch {
	case at != nil && head != nil:
		if slices.Equal(at.Value.Data(), head.Value.Data()) {
			head.Value = at.Value
		}
	case at != nil:
		a.Whole = append(a.Whole, &Whole{Tensor: TiedHead, Key: TiedHead, Value: at.Value, Shape: at.Shape})
	case head != nil:
		a.Whole = append(a.Whole, &Whole{Tensor: table.Tensor, Key: path, Value: head.Value, Shape: head.Shape})
		a.Config.WholeModules = append(slices.Clone(a.Config.WholeModules), table.Path)
	}
}

// turned reports whether one parameter is the other, turned around.
func turned(p, q *Param) bool {
	if p.Value.Rows != q.Value.Cols || p.Value.Cols != q.Value.Rows {
		return false
	}
	t := kernels.MatOf(kernels.NewHost(kernels.F32, p.Value.Len()), q.Value.Rows, q.Value.Cols)
	transpose(t, p.Value)
	return slices.Equal(t.Buf.F32(), q.Data())
}
