package lm

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

var ctx = context.Background()

// tolPaths is for two ways to the same numbers in float32: the order of sums may differ.
const tolPaths = 2e-6

// eachTiny runs f on a model of every architecture.
func eachTiny(t *testing.T, r recipe, o Options, f func(t *testing.T, m *Model)) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			r.config, r.seed = config, 9
			f(t, load(t, r.write(t, t.TempDir()), cpu.New(cpu.Options{}), o))
		})
	}
}

func forward(t testing.TB, m *Model, ids [][]int32, o ForwardOptions) *Result {
	t.Helper()
	r, err := m.Forward(ctx, ids, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A batch gives what its sequences give alone, whatever their lengths.
func TestBatchEqualsSingle(t *testing.T) {
	eachTiny(t, recipe{}, Options{}, func(t *testing.T, m *Model) {
		ids := tokens(1, 37, 7, 1, 19, 2)
		all := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits)
		for _, seq := range ids {
			n := len(seq) * 37
			near(t, "logits", values(forward(t, m, [][]int32{seq}, ForwardOptions{Logits: true}).Logits), all[:n],
				tolPaths)
			all = all[n:]
		}
	})
}

// Tokens appended to a cache, in pieces of any size and after truncation, give what the whole sequence gives.
func TestCacheEqualsWhole(t *testing.T) {
	seq := tokens(2, 37, 41)[0]
	models, want := map[string]*Model{}, map[string]kernels.Mat{}
	for name, config := range everyTiny() {
		m := load(t, recipe{config: config, seed: 9}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
		if r := m.Config().Rope; r == nil || r.Static() { // others' keys keep the rotation that they were stored with
			models[name], want[name] = m, forward(t, m, [][]int32{seq}, ForwardOptions{Logits: true}).Logits
		}
	}

	names := slices.Sorted(maps.Keys(models))
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "model")
		s, err := models[name].NewSession(SessionOptions{KeepAll: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()

		for cuts := 0; s.Len() < len(seq); {
			if cut := rapid.IntRange(0, 3*s.Len()).Draw(t, "cut"); cut < s.Len() && cuts < 5 {
				cuts++
				if err := s.Truncate(cut); err != nil {
					t.Fatal(err)
				}
			}

			n := rapid.IntRange(1, min(12, len(seq)-s.Len())).Draw(t, "n")
			got, err := s.Append(ctx, seq[s.Len():s.Len()+n])
			if err != nil {
				t.Fatal(err)
			}

			row := want[name].RowF32(s.Len() - 1)
			for i, v := range got {
				if math.Abs(float64(v-row[i])) > 2e-5*10 { // logits are below 10
					t.Fatalf("position %d, logit %d: %g, want %g", s.Len()-1, i, v, row[i])
				}
			}
		}
	})
}

// A cache that drops keys beyond the window stays small and gives the same tokens; truncation past them is refused.
func TestCacheDropsKeysBeyondWindow(t *testing.T) {
	config := tiny()["mistral"]
	config["max_position_embeddings"] = 4096
	m := load(t, recipe{config: config, seed: 3}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})

	seq := tokens(4, 37, 1300)[0]
	want := forward(t, m, [][]int32{seq}, ForwardOptions{Logits: true}).Logits
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	for _, n := range []int{700, 1, 1, 200, 1, 397} {
		got, err := s.Append(ctx, seq[s.Len():s.Len()+n])
		if err != nil {
			t.Fatal(err)
		}
		near(t, "logits", got, want.RowF32(s.Len()-1), 1e-5)
	}

	if rows := s.layers[0].Keys.Rows; rows > 1024 {
		t.Errorf("the cache has %d rows for a window of 5", rows)
	}
	if err := s.Truncate(3); !errors.Is(err, ErrInput) || s.Len() != 1300 {
		t.Errorf("truncation: %v, %d tokens", err, s.Len())
	}
}

// Blocks one by one are the whole; copies leave the source alone; logits and losses of pieces agree.
func TestPiecesEqualForward(t *testing.T) {
	eachTiny(t, recipe{dtype: safetensors.BF16}, Options{}, func(t *testing.T, m *Model) {
		ids := tokens(5, 37, 9, 14)
		want := forward(t, m, ids, ForwardOptions{Logits: true, Hidden: true})
		h, err := m.Embed(ids)
		if err != nil {
			t.Fatal(err)
		}

		for l := range m.Blocks() {
			next, err := m.CopyHidden(h)
			if err != nil {
				t.Fatal(err)
			}

			if err := m.RunBlockTo(ctx, l, next, h, nil); err != nil {
				t.Fatal(err)
			}

			near(t, "untouched", values(h.X), values(want.Hidden[l]), 0)
			near(t, "block", values(next.X), values(want.Hidden[l+1]), 0)
			h.Free()
			h = next
		}

		losses, err := m.Loss(ctx, h, ids)
		if err != nil || !slices.Equal(losses, slices.Concat(want.LossPerToken...)) {
			t.Errorf("losses differ (%v)", err)
		}

		some, err := m.Logits(h, 3, 20)
		if err != nil {
			t.Fatal(err)
		}

		near(t, "logits", values(some), slices.Concat(want.Logits.RowF32(3), want.Logits.RowF32(20)), tolPaths)
	})
}

// What hooks see of a block whose output nobody wants is what they see otherwise, and the source stays as it is.
func TestPeekBlock(t *testing.T) {
	ctx := context.Background()
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 9, std: 0.2}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
		h, err := m.Embed(tokens(3, 37, 7, 4))
		if err != nil {
			t.Fatal(err)
		}
		defer h.Free()
		dst, err := m.CopyHidden(h)
		if err != nil {
			t.Fatal(err)
		}
		defer dst.Free()

		before := values(h.X)
		for l := range m.Blocks() {
			type runner func(context.Context, int, *Hidden, *Hidden, *Hooks) error
			see := func(run runner, outputs *int) (seen [][]float32) {
				keep := func(x kernels.Mat) { seen = append(seen, values(x)) }
				hooks := &Hooks{
					LinearInput: func(_ Linear, x kernels.Mat) { keep(x) },
					Expert:      func(r Routed) { keep(r.Y) },
				}
				if outputs != nil {
					hooks.BlockOutput = func(int, kernels.Mat) { *outputs++ }
				}
				if err := run(ctx, l, dst, h, hooks); err != nil {
					t.Fatal(err)
				}
				return seen
			}

			outputs := 0
			want, got := see(m.RunBlockTo, nil), see(m.PeekBlock, nil)
			if whole := see(m.PeekBlock, &outputs); outputs != 1 || len(whole) != len(want) {
				t.Errorf("block %d: the output came %d times", l, outputs)
			}
			if !slices.EqualFunc(got, want, slices.Equal[[]float32]) || len(want) < 4 {
				t.Errorf("block %d: hooks see something else", l)
			}
			if !slices.Equal(values(h.X), before) {
				t.Fatalf("block %d: the source has changed", l)
			}
			if err := m.RunBlock(ctx, l, h, nil); err != nil {
				t.Fatal(err)
			}
			before = values(h.X)
		}
	})
}

// The number of threads, shards and passes, streaming and concurrency change no bit.
func TestSameBits(t *testing.T) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			r := recipe{config: config, seed: 11, dtype: safetensors.BF16}
			whole := r.write(t, t.TempDir())
			r.shard = 2000

			sharded := r.write(t, t.TempDir())
			ids := tokens(6, 37, 12, 5)
			var want []float32
			for _, v := range []struct {
				dir     string
				threads int
				o       Options
			}{
				{whole, 1, Options{}},
				{whole, 3, Options{}},
				{sharded, 2, Options{}},
				{whole, 2, Options{Stream: true}},
			} {
				m := load(t, v.dir, cpu.New(cpu.Options{Threads: v.threads}), v.o)
				for range 2 {
					got := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits)
					if want == nil {
						want = got
					}
					near(t, "logits", got, want, 0)
				}

				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						r, err := m.Forward(ctx, ids, ForwardOptions{Logits: true})
						if err != nil || !slices.Equal(values(r.Logits), want) {
							t.Errorf("concurrent pass differs (%v)", err)
						}
					})
				}

				wg.Wait()
			}
		})
	}
}

// Fast products stay near the exact ones: activations are rounded to 8 bits of precision.
func TestFastPrecision(t *testing.T) {
	r := recipe{config: tiny()["llama"], seed: 2, dtype: safetensors.BF16}
	dir := r.write(t, t.TempDir())
	ids := tokens(7, 37, 30)
	exact := forward(t, load(t, dir, cpu.New(cpu.Options{}), Options{}), ids, ForwardOptions{Logits: true})
	fast := forward(t, load(t, dir, cpu.New(cpu.Options{}), Options{Precision: kernels.Fast}), ids,
		ForwardOptions{Logits: true})
	near(t, "logits", values(fast.Logits), values(exact.Logits), 0.05)
}

// Labels: -100 is skipped, the mean counts the rest; what is kept or not does not change the losses.
func TestLabels(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"]}.write(t, t.TempDir()), ref.New(), Options{})
	ids := tokens(8, 37, 10, 1, 6)
	all := forward(t, m, ids, ForwardOptions{})
	labels := [][]int32{slices.Clone(ids[0]), {5}, slices.Clone(ids[2])}
	for _, i := range []int{1, 4, 5} {
		labels[0][i] = IgnoreLabel
	}

	for _, keep := range []bool{false, true} {
		r := forward(t, m, ids, ForwardOptions{Labels: labels, Logits: keep})
		sum := 0.0
		for s, seq := range r.LossPerToken {
			for i, l := range seq {
				want := all.LossPerToken[s][i]
				if labels[s][i+1] == IgnoreLabel {
					want = 0
				}
				if l != want {
					t.Errorf("sequence %d, position %d: %g, want %g", s, i, l, want)
				}

				sum += want
			}
		}

		if r.Counted != 11 || math.Abs(r.Loss-sum/11) > 1e-12 {
			t.Errorf("mean %g of %d", r.Loss, r.Counted)
		}
	}

	none := forward(t, m, [][]int32{{1}}, ForwardOptions{})
	if none.Loss != 0 || none.Counted != 0 || len(none.LossPerToken[0]) != 0 {
		t.Errorf("%+v", none)
	}
}

// Hooks see every matrix once, with its own input: multiplying it gives what the model goes on with.
func TestHooks(t *testing.T) {
	eachTiny(t, recipe{}, Options{}, func(t *testing.T, m *Model) {
		seen := map[string]int{}
		blocks := 0
		tokensOf := map[string]int{}
		forward(t, m, tokens(9, 37, 15), ForwardOptions{Hooks: &Hooks{
			LinearInput: func(l Linear, x kernels.Mat) {
				seen[l.Name]++
				tokensOf[l.Name] = x.Rows
				if x.Cols != l.In {
					t.Errorf("%s gets %d columns, has %d inputs", l.Name, x.Cols, l.In)
				}
			},
			BlockOutput: func(int, kernels.Mat) { blocks++ },
		}})

		if blocks != m.Blocks() {
			t.Errorf("%d block outputs", blocks)
		}

		for l := range m.Blocks() {
			routed := 0
			for _, e := range m.Linears(l) {
				if e.Expert < 0 && seen[e.Name] != 1 || seen[e.Name] > 1 {
					t.Errorf("%s: %d calls", e.Name, seen[e.Name])
				}
				if e.Expert >= 0 && e.Role == arch.Down {
					routed += tokensOf[e.Name]
				}

				w, err := m.Param(e.Name)
				if err != nil || e.Transposed && (w.Rows != e.In || w.Cols != e.Out) ||
					!e.Transposed && (w.Rows != e.Out || w.Cols != e.In) {
					t.Errorf("%s is [%d, %d] (%v)", e.Name, w.Rows, w.Cols, err)
				}
			}

			if m.Router(l) != "" && routed != 15*m.Config().TopK {
				t.Errorf("block %d: %d tokens reach experts", l, routed)
			}
		}
	})
}

// A changed parameter takes effect at once and does not reach the file; a tied table counts once.
func TestMutableParam(t *testing.T) {
	eachTiny(t, recipe{dtype: safetensors.F16}, Options{}, func(t *testing.T, m *Model) {
		ids := tokens(10, 37, 8)
		before := forward(t, m, ids, ForwardOptions{})
		name := m.Linears(0)[0].Name
		stored, err := m.Source().Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		kept := bytes.Clone(stored)
		w, err := m.MutableParam(name)
		if err != nil {
			t.Fatal(err)
		}

		again, err := m.MutableParam(name)
		if err != nil || again.Buf != w.Buf {
			t.Error("a second call copies again")
		}

		clear(w.Buf.U16())
		w.Buf.Changed()
		if after := forward(t, m, ids, ForwardOptions{}); after.Loss == before.Loss {
			t.Error("the change has no effect")
		}
		if !bytes.Equal(stored, kept) {
			t.Error("the file has changed")
		}

		m.ReleaseBlock(0, true)
		if same, err := m.Param(name); err != nil || same.Buf != w.Buf {
			t.Error("releasing a block has lost an unsaved change")
		}
	})
}

// double is a delta that adds as much again.
type double struct{ calls int }

func (d *double) Forward(_ Linear, _, y kernels.Mat) error {
	d.calls++
	for i := range y.Rows {
		for j, v := range y.RowF32(i) {
			y.RowF32(i)[j] = 2 * v
		}
	}
	return nil
}
func (*double) Backward(Linear, kernels.Mat, kernels.Mat, kernels.Mat) error { return nil }
func (*double) Parameters() []Parameter                                      { return nil }

// A delta that doubles an output equals a doubled matrix; undo restores every bit.
func TestAttach(t *testing.T) {
	eachTiny(t, recipe{}, Options{}, func(t *testing.T, m *Model) {
		ids := tokens(11, 37, 9, 4)
		plain := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits)
		for _, role := range []arch.Role{arch.O, arch.Down} {
			var names []string
			for l := range m.Blocks() {
				for _, e := range m.Linears(l) {
					if e.Role == role {
						names = append(names, e.Name)
					}
				}
			}

			d := &double{}
			undo, err := m.Attach(d, names...)
			if err != nil {
				t.Fatal(err)
			}

			changed := values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits)
			if d.calls == 0 || slices.Equal(changed, plain) {
				t.Errorf("%s: the delta has no effect", role)
			}

			undo()
			near(t, "after undo", values(forward(t, m, ids, ForwardOptions{Logits: true}).Logits), plain, 0)
			near(t, "doubled", values(forward(t, doubled(t, m, names), ids, ForwardOptions{Logits: true}).Logits),
				changed, 1e-5)
		}

		if _, err := m.Attach(&double{}, "nothing"); !errors.Is(err, ErrUnknownTensor) {
			t.Errorf("unknown linear: %v", err)
		}
	})
}

// doubled is the same model with doubled matrices and biases.
func doubled(t *testing.T, m *Model, names []string) *Model {
	t.Helper()
	c := load(t, m.Path(), m.Device(), Options{})
	for _, n := range names {
		for _, part := range []string{n, strings.TrimSuffix(n, ".weight") + ".bias"} {
			if c.params[part] == nil {
				continue
			}

			w, err := c.MutableParam(part)
			if err != nil {
				t.Fatal(err)
			}

			for i, v := range w.Buf.F32() {
				w.Buf.F32()[i] = 2 * v
			}

			w.Buf.Changed()
		}
	}

	return c
}

// Older checkpoints: names without the prefix, mask buffers, a stored head of a tied model, F64 and mixed types.
func TestOlderCheckpoints(t *testing.T) {
	r := recipe{config: tiny()["gpt2"], seed: 4}
	ids := tokens(12, 37, 10)
	want := forward(t, load(t, r.write(t, t.TempDir()), ref.New(), Options{}), ids, ForwardOptions{})
	r.rename = func(s string) string { return strings.TrimPrefix(s, "transformer.") }
	r.extra = []safetensors.Info{
		{Name: "h.0.attn.bias", DType: safetensors.BOOL, Shape: []int64{1, 1, 3, 3}},
		{Name: "h.1.attn.masked_bias", DType: safetensors.F32, Shape: []int64{}},
	}

	m := load(t, r.write(t, t.TempDir()), ref.New(), Options{})
	if got := forward(t, m, ids, ForwardOptions{}); got.Loss != want.Loss || len(m.Extra()) != 2 ||
		slices.Contains(m.Tensors(), "h.0.attn.bias") {
		t.Errorf("loss %g, want %g; extra %v", got.Loss, want.Loss, m.Extra())
	}

	r = recipe{config: tiny()["gpt2"], seed: 4, dtype: safetensors.F64}
	if got := forward(t, load(t, r.write(t, t.TempDir()), ref.New(), Options{}), ids,
		ForwardOptions{}); math.Abs(got.Loss-want.Loss) > 1e-9 {
		t.Errorf("loss %g from float64, want %g", got.Loss, want.Loss)
	}
}

// Samples depend on seed and position alone; limits hold; greedy is the limit of them all.
func TestGenerate(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"]}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	prompt := tokens(13, 37, 5)[0]
	generate := func(o GenerateOptions) []int32 {
		t.Helper()
		out, err := m.Generate(ctx, prompt, o)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	greedy := generate(GenerateOptions{MaxTokens: 20})
	warm := GenerateOptions{MaxTokens: 20, Temperature: 1.5, Seed: 3}
	a, b := generate(warm), generate(warm)
	if len(greedy) != 20 || len(a) != 20 || !slices.Equal(a, b) || slices.Equal(a, greedy) {
		t.Errorf("greedy %v, sampled %v and %v", greedy, a, b)
	}

	warm.Seed = 4
	if slices.Equal(generate(warm), a) {
		t.Error("the seed has no effect")
	}

	for _, o := range []GenerateOptions{{TopK: 1, Temperature: 2}, {TopP: 1e-9, Temperature: 2}, {Temperature: 1e-3}} {
		if o.MaxTokens = 20; !slices.Equal(generate(o), greedy) {
			t.Errorf("%+v is not greedy", o)
		}
	}

	stop := generate(GenerateOptions{MaxTokens: 20, Stop: []int32{greedy[3]}})
	if at := slices.Index(greedy, greedy[3]); !slices.Equal(stop, greedy[:at+1]) {
		t.Errorf("stopped after %v", stop)
	}

	seen := 0
	generate(GenerateOptions{MaxTokens: 20, Each: func(int32) bool { seen++; return seen < 4 }})
	if seen != 4 {
		t.Errorf("Each was called %d times", seen)
	}

	for _, o := range []GenerateOptions{
		{MaxTokens: -1},
		{Temperature: -1},
		{TopK: -1},
		{TopP: 2},
		{Temperature: math.NaN()},
	} {
		if _, err := m.Generate(ctx, prompt, o); !errors.Is(err, ErrInput) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Learned positions end a text.
func TestGenerateLimits(t *testing.T) {
	m := load(t, recipe{config: tiny()["gpt2"]}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	out, err := m.Generate(ctx, []int32{1, 2, 3}, GenerateOptions{MaxTokens: 100})
	if err != nil || len(out) != 62 { // the last token needs no position
		t.Errorf("%d tokens (%v)", len(out), err)
	}
}
