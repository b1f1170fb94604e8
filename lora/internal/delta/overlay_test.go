package delta

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// together is a sequence of a batch: a prompt, tokens behind it, and what acts on it.
type together struct {
	prompt, tail []int32
	over         *lm.Overlay
	attached     *adapted // the same; nil: none
}

// run lets sequences take steps together, from now and then on, and gives the logits after the prompt and each token.
func run(t *testing.T, m *lm.Model, list []together, r *rand.Rand) [][][]float32 {
	t.Helper()
	b, err := m.NewBatch(lm.BatchOptions{Memory: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	all := make([][][]float32, len(list))
	open := make([]*lm.Sequence, len(list))
	for left := len(list); left > 0; {
		var work []lm.Work
		var of []int
		for _, i := range r.Perm(len(list)) {
			s, x := open[i], list[i]
			switch {
			case s == nil && r.IntN(2) == 0:
				open[i] = b.Add(string(rune('a' + i)))
				work = append(work, lm.Work{Sequence: open[i], IDs: x.prompt, Prompt: true, Overlay: x.over})
			case s != nil && s.Len() < len(x.prompt)+len(x.tail) && r.IntN(4) > 0:
				at := s.Len() - len(x.prompt)
				work = append(work, lm.Work{Sequence: s, IDs: x.tail[at : at+1], Overlay: x.over})
			default:
				continue
			}
			of = append(of, i)
		}
		if len(work) == 0 {
			continue
		}

		if err := b.Step(t.Context(), work, func(i, _ int, logits []float32) error {
			all[of[i]] = append(all[of[i]], slices.Clone(logits))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, w := range work {
			if x := list[slices.Index(open, w.Sequence)]; w.Sequence.Len() == len(x.prompt)+len(x.tail) {
				left--
			}
		}
	}
	return all
}

// TestOverlays: prompts and single tokens of many adapters and of the base go through one pass, and each sequence has
// the bits that it has alone, which are those of its adapter attached to the whole model but for rounding.
func TestOverlays(t *testing.T) {
	for base, kinds := range map[string][]choice{
		"llama": {
			{rank: 3, targets: []string{"q_proj", "v_proj", "down_proj"}},
			{rank: 5, targets: []string{"q_proj", "o_proj", "up_proj"}},
			{rank: skinny + 4, targets: []string{"k_proj", "gate_proj"}},
			{rank: 2, targets: []string{"q_proj", "down_proj"}, dora: true},
			{rank: 2, targets: []string{"q_proj"}, zeros: true},
		},
		"gpt2": {
			{rank: 2, targets: []string{"c_attn", "mlp.c_proj"}},
			{rank: 4, targets: []string{"c_attn", "c_fc"}, bias: true},
			{rank: 3, targets: []string{"c_fc"}, dora: true},
		},
		"deepseek_v2": {
			{rank: 2, targets: []string{"gate_proj", "down_proj"}},
			{rank: 3, targets: []string{"o_proj", "up_proj"}},
			{rank: 4, targets: []string{"down_proj"}, dora: true},
		},
	} {
		t.Run(base, func(t *testing.T) {
			dir := filepath.Join("..", "..", "testdata", "peft", "base-"+base)
			if base == "deepseek_v2" { // a mixture
				dir = filepath.Join("..", "..", "..", "lm", "testdata", "families", base)
			}
			m := load(t, dir)
			r := rand.New(rand.NewPCG(7, 11))
			var list []together
			for i := range 13 { // more rows than kernels for few rows take at a time
				x := together{prompt: make([]int32, 1+r.IntN(7)), tail: make([]int32, 1+r.IntN(5))}
				for _, ids := range [][]int32{x.prompt, x.tail} {
					for k := range ids {
						ids[k] = int32(r.IntN(30))
					}
				}

				if k := i % (len(kinds) + 1); k < len(kinds) {
					x.attached = kinds[k].make(t, m)
					a, err := Attach(m, x.attached.Adapter, Options{Overlay: true})
					if err != nil {
						t.Fatal(err)
					}
					defer a.Detach()
					x.over = a.Overlay()
					if i > len(kinds) { // two sequences of one adapter
						x.over = list[k].over
					}
				}
				list = append(list, x)
			}

			for seed := range uint64(3) {
				got := run(t, m, list, rand.New(rand.NewPCG(seed, 1)))
				for i, x := range list {
					want := run(t, m, []together{x}, rand.New(rand.NewPCG(0, 0)))[0]
					if !slices.EqualFunc(got[i], want, slices.Equal) {
						t.Errorf("sequence %d of schedule %d has other bits than alone", i, seed)
					}
				}
			}

			for i, x := range list {
				want := whole(t, m, x)
				compare(t, "logits", slices.Concat(run(t, m, list[i:i+1], r)[0]...), want)
			}
		})
	}
}

// TestMemorySize: an overlay tells the bytes of its factors, and what a bias and DoRA add to them.
func TestMemorySize(t *testing.T) {
	m := load(t, filepath.Join("..", "..", "testdata", "peft", "base-gpt2"))
	for _, c := range []choice{
		{rank: 3, targets: []string{"c_attn", "mlp.c_proj"}},
		{rank: 4, targets: []string{"c_attn"}, bias: true},
		{rank: 2, targets: []string{"c_fc"}, dora: true},
	} {
		a := c.make(t, m).Adapter
		want := int64(0)
		for _, l := range a.Low {
			want += 4 * int64(l.Rank) * int64(l.Module.In+l.Module.Out)
			if l.Bias != nil {
				want += 4 * int64(l.Module.Out)
			}
			if l.Magnitude != nil { // squares of norms in float64, norms, gains, and the base's bias
				want += (8 + 4 + 4 + 4) * int64(l.Module.Out)
			}
		}

		r, err := Attach(m, a, Options{Overlay: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Overlay().MemorySize(); got != want {
			t.Errorf("%v: %d bytes, want %d", c.targets, got, want)
		}
		r.Detach()
	}
}

// whole is the logits of a sequence after its prompt and the tokens behind it, with its adapter attached to the model.
func whole(t *testing.T, m *lm.Model, x together) []float64 {
	t.Helper()
	if x.attached != nil {
		a, err := Attach(m, x.attached.Adapter, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Detach()
	}

	r, err := m.Forward(t.Context(), [][]int32{slices.Concat(x.prompt, x.tail)}, lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}
	var list []float64
	for k := len(x.prompt) - 1; k < r.Logits.Rows; k++ {
		list = append(list, wide(r.Logits.RowF32(k))...)
	}
	return list
}

// TestOverlayRefused: what all rows of a pass share cannot be laid over some, and work takes overlays of its model.
func TestOverlayRefused(t *testing.T) {
	m, other := open(t, "llama"), open(t, "llama")
	for name, c := range map[string]choice{
		"head":  {rank: 2, targets: []string{"lm_head"}},
		"table": {rank: 2, targets: []string{"embed_tokens"}},
		"rows":  {rank: 2, targets: []string{"q_proj"}, rows: []int32{5}},
		"whole": {rank: 2, targets: []string{"q_proj"}, whole: "model.norm.weight"},
	} {
		if _, err := Attach(m, c.make(t, m).Adapter, Options{Overlay: true}); !errors.Is(err, adapter.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}

	a, err := Attach(m, choice{rank: 2, targets: []string{"q_proj"}}.make(t, m).Adapter, Options{Overlay: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Detach()
	if pair, ok := a.LowRank(m.Linears(0)[0]); !ok || pair.A.DType() != kernels.F32 {
		t.Error("plain factors are more than a product of low rank")
	}

	b, err := other.NewBatch(lm.BatchOptions{Memory: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = b.Step(t.Context(), []lm.Work{{Sequence: b.Add(""), IDs: []int32{1}, Overlay: a.Overlay()}}, nil)
	if !errors.Is(err, lm.ErrInput) {
		t.Errorf("an overlay of another model: %v", err)
	}
}
