package stream

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/linalg"
)

// ErrUndefined: a method has no result for values that are not finite, even where they are allowed.
var ErrUndefined = errors.New("the merge method cannot take values that are not finite")

// check refuses what was counted, unless it is allowed.
func (e *engine) check(items []*run) error {
	if e.o.AllowNonFinite {
		return nil
	}

	for _, r := range items {
		if err := r.refused(); err != nil {
			return err
		}
	}

	return nil
}

// refused is the error about the first input of a tensor in which a value that is not finite was counted.
func (r *run) refused() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, n := range r.bad {
		if n.NaN+n.Inf > 0 {
			return r.named(i)
		}
	}

	return nil
}

// named is what was counted in one of the inputs, with its tensor and model. Counts are given their names in copies,
// since writers and the driver of the group both look at them.
func (r *run) named(input int) NonFinite {
	n := r.bad[input]
	n.Tensor, n.Model = r.Tensor.Name, r.Models[input]
	return n
}

// note reports what was counted in the inputs of tensors and in what became of them.
func (e *engine) note(items []*run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range items {
		e.result.NonFinite = append(e.result.NonFinite, r.lost()...)
	}
}

// lost is what was counted in the inputs of a tensor and in what became of them.
func (r *run) lost() []NonFinite {
	var found []NonFinite
	for i, n := range r.bad {
		if n.NaN+n.Inf == 0 {
			continue
		}

		n = r.named(i)
		n.Output = r.out
		if r.Raw != nil {
			n.Output = n.NaN + n.Inf // copied as they are
		}

		found = append(found, n)
	}
	if len(found) == 0 && r.out > 0 {
		found = append(found, NonFinite{Tensor: r.Tensor.Name, First: -1, Output: r.out})
	}

	return found
}

// sorted lists what was counted by tensors and models, whichever came first.
func sorted(list []NonFinite) []NonFinite {
	slices.SortStableFunc(list, func(a, b NonFinite) int {
		return cmp.Or(cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Model, b.Model))
	})
	return list
}

// lose counts the values of a block of the output that are not finite.
func (r *run) lose(x []float32, limit uint32) {
	n := int64(0)
	for _, v := range x {
		if math.Float32bits(v)&math.MaxInt32 >= limit {
			n++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out += n
}

// undefined says of a matrix operation that met a value that is not finite where the first such value of the inputs is.
func (r *run) undefined(err error) error {
	if !errors.Is(err, linalg.ErrNonFinite) {
		return err
	}

	for i, n := range r.bad {
		if n.NaN+n.Inf > 0 {
			n = r.named(i)
			cols := r.Tensor.Cols()
			return fmt.Errorf("tensor %q of %s: %d NaN and %d infinite values, the first at row %d, column %d: %w",
				n.Tensor, n.Model, n.NaN, n.Inf, n.First/cols, n.First%cols, ErrUndefined)
		}
	}

	return fmt.Errorf("tensor %q: %w", r.Tensor.Name, err)
}
