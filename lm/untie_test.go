package lm

import (
	"errors"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// A tied model with a head of its own computes the same until that is changed, and is as it was afterwards; a head that is not the table stays.
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
		if now := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits); m.headBias == nil && slices.ContainsFunc(now, func(v float32) bool { return v != 0 }) {
			t.Error("logits of a head of zeros are not zero")
		}
		undo()
		if now := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits); !slices.Equal(now, before) {
			t.Error("the table has changed")
		}
	})
}
