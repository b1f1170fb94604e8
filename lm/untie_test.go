package lm

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// A tied model with a head of its own computes the same until that is changed, and is as it was afterwards; a
// head that is not the table stays.
func TestUntie(t *testing.T) {
	eachTiny(t, recipe{}, Options{}, func(t *testing.T, m *Model) {
		ids := tokens(1, 37, 9)
		before := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits)

		name, undo, err := m.Untie()
		if !m.config.Tied {
			if !errors.Is(err, ErrUnknownTensor) {
				t.Fatalf("untied already: %v", err)
			}
			return
		}

		if err != nil {
			t.Fatal(err)
		}

		if now := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits); !slices.Equal(now, before) {
			t.Error("the copy computes something else")
		}

		head, err := m.MutableParam(name)
		if err != nil {
			t.Fatal(err)
		}

		m.ops.Convert(head, kernels.MatOf(kernels.NewHost(kernels.F32, head.Len()), head.Rows, head.Cols))
		head.Buf.Changed()

		if now := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits); m.headBias == nil &&
			slices.ContainsFunc(now, func(v float32) bool { return v != 0 }) {
			t.Error("logits of a head of zeros are not zero")
		}

		undo()
		if now := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits); !slices.Equal(now, before) {
			t.Error("the table has changed")
		}
	})
}

// A widened parameter computes the same, takes changes too small for its stored type, and is as it was afterwards.
func TestWidenParam(t *testing.T) {
	eachTiny(t, recipe{dtype: safetensors.BF16}, Options{}, func(t *testing.T, m *Model) {
		ids := tokens(1, 37, 9)
		logits := func() []float32 { return values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits) }
		before := logits()
		w, undo, err := m.WidenParam(m.head.Name)
		if err != nil {
			t.Fatal(err)
		}

		if w.DType() != kernels.F32 {
			t.Fatalf("%v, want F32", w.DType())
		}

		same := logits() // of another kernel, so not to the last bit
		for i, v := range same {
			if math.Abs(float64(v-before[i])) > 1e-4 {
				t.Fatalf("the copy computes something else: logit %d is %g, not %g", i, v, before[i])
			}
		}

		for i := range w.Rows {
			for j, v := range w.RowF32(i) {
				w.RowF32(i)[j] = v * (1 + 0x1p-12) // less than half a step of BF16
			}
		}

		w.Buf.Changed()
		if slices.Equal(logits(), same) {
			t.Error("a change below the step of the stored type is lost")
		}

		undo()
		if !slices.Equal(logits(), before) {
			t.Error("the parameter is not what it was")
		}
	})
}
