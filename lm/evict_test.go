package lm

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm/corpus"
)

// With as many positions as a text has, or more, nothing is evicted, and it is what it is without a budget.
func TestKVPositionsOfAll(t *testing.T) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			dir := recipe{config: config, seed: 9, std: 0.3}.write(t, t.TempDir())
			full := load(t, dir, cpu.New(cpu.Options{}), Options{})
			m, err := Load(ctx, dir, cpu.New(cpu.Options{}), Options{KVPositions: 40})
			if errors.Is(err, ErrInput) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()

			ids := tokens(3, 37, 40)[0]
			near(t, "logits", appendIDs(t, session(t, m, SessionOptions{}), ids), appendIDs(t,
				session(t, full, SessionOptions{}), ids), matmulTolerance)

			w := corpus.Windows{IDs: tokens(5, 37, 40, 7, 1, 33), SeqLen: 40}
			got, err := m.SequenceLosses(ctx, w, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, err := full.SequenceLosses(ctx, w, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want.Loss {
				if math.Abs(got.Loss[i]-want.Loss[i]) > 1e-4 { // float32 rounding of 40 losses
					t.Errorf("sequence %d: %g, not %g", i, got.Loss[i], want.Loss[i])
				}
			}
		})
	}
}

// TestEviction: never more rows than the budget, in F32 and in bytes, the same bits with other threads and in clones;
// a session that has evicted begins anew. What is kept is tested where it is chosen.
func TestEviction(t *testing.T) {
	config := tiny()["llama"]
	config["num_hidden_layers"] = 1
	dir := recipe{config: config, seed: 9, std: 0.5}.write(t, t.TempDir())
	ids := tokens(3, 37, 30)[0]
	var first []float32
	for _, o := range []Options{{KVPositions: 12}, {KVPositions: 12, KVBits: 8}, {KVPositions: 12}} {
		m := load(t, dir, cpuDevice(t, 1+len(first)%2), o)
		s := session(t, m, SessionOptions{})
		for _, id := range ids {
			appendIDs(t, s, []int32{id})
			if rows := s.layers[0].Rows; rows != min(s.Len(), 12) {
				t.Fatalf("%d rows of %d tokens", rows, s.Len())
			}
		}
		last := slices.Clone(appendIDs(t, s, ids[:1]))
		switch {
		case first == nil:
			first = last
		case o.KVBits == 0 && !slices.Equal(first, last):
			t.Error("other bits with other threads")
		}

		all := appendIDs(t, session(t, load(t, dir, cpuDevice(t, 1), Options{}), SessionOptions{}),
			append(slices.Clone(ids), ids[0]))
		if slices.Equal(last, all) {
			t.Error("nothing was evicted")
		}

		if err := s.Truncate(5); !errors.Is(err, ErrInput) {
			t.Error(err)
		}
		c, err := s.Clone(3)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		want := slices.Clone(appendIDs(t, s, ids[3:5]))
		if got := appendIDs(t, c, ids[3:5]); !slices.Equal(got, want) {
			t.Error("a clone goes another way")
		}
		if s.Keep(ids) != 0 || s.Len() != 0 {
			t.Error("a session that has evicted keeps a part")
		}
		appendIDs(t, s, ids)
	}
}

func TestKVPositionsRefuses(t *testing.T) {
	dir := recipe{config: tiny()["llama"], seed: 9}.write(t, t.TempDir())
	if _, err := Load(ctx, dir, cpu.New(cpu.Options{}), Options{KVPositions: 7}); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	m := load(t, dir, cpu.New(cpu.Options{}), Options{KVPositions: 8})
	if _, err := m.Generate(ctx, []int32{1}, GenerateOptions{Draft: PromptLookup{}}); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
}
