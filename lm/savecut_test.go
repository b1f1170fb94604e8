package lm

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/modeltest"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// everyFamily calls f with a folder of every family there is a small checkpoint of, stored or drawn.
func everyFamily(t *testing.T, f func(t *testing.T, dir string)) {
	families(t, f)
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			f(t, recipe{config: config, seed: 7, std: 0.2}.write(t, t.TempDir()))
		})
	}
}

// cutTo writes what a cut leaves of a model and opens it.
func cutTo(t *testing.T, m *Model, k *arch.Cut, o SaveOptions) *Model {
	t.Helper()
	o.Cut = k
	out := filepath.Join(t.TempDir(), "out")
	finish(t, saver(t, m, out, o))
	return load(t, out, m.dev, Options{})
}

// all lists everything, in the words of a cut.
func all(c *Config) *arch.Cut {
	k := &arch.Cut{Layers: entries(nil, c.Layers), Hidden: entries(nil, c.Hidden), Words: entries(nil, c.Vocab)}
	if c.EmbedDim != c.Hidden {
		k.Hidden = nil
	}

	for range c.Layers {
		k.Inner = append(k.Inner, entries(nil, c.Inner))
		k.Heads = append(k.Heads, entries(nil, c.Heads))
		k.KVHeads = append(k.KVHeads, entries(nil, c.KVHeads))
		k.Experts = append(k.Experts, entries(nil, c.Experts))
		if c.SharedInner > 0 {
			k.SharedInner = append(k.SharedInner, entries(nil, c.SharedInner))
		}
		var inner [][]int
		for range c.Experts {
			inner = append(inner, entries(nil, c.ExpertInner))
		}
		k.ExpertInner = append(k.ExpertInner, inner)
	}

	return k
}

// A cut that leaves everything gives the same tensors and the same configuration.
func TestCutNothing(t *testing.T) {
	everyFamily(t, func(t *testing.T, dir string) {
		m := load(t, dir, ref.New(), Options{})
		got := cutTo(t, m, all(m.Config()), SaveOptions{})
		sameTensors(t, m.source, got.dir, m.extra)
		if a, b := fields(t, m.Config()), fields(t, got.Config()); a != b {
			t.Errorf("configuration\n%s\nbefore\n%s", b, a)
		}
	})
}

// fields are the values of a configuration as text.
func fields(t *testing.T, c *Config) string {
	t.Helper()
	d := *c
	d.Arch, d.Unknown = nil, nil
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Fewer blocks compute what the remaining ones of the model compute one after the other, to the last bit.
func TestCutLayers(t *testing.T) {
	everyFamily(t, func(t *testing.T, dir string) {
		m := load(t, dir, ref.New(), Options{})
		n := m.Blocks()
		for _, layers := range [][]int{{n - 1}, slices.Delete(entries(nil, n), n/2, n/2+1)} {
			if _, _, _, err := (&arch.Cut{Layers: layers}).Config(m.Config(), read(t, dir)); err != nil {
				if !errors.Is(err, ErrCut) || m.Config().ModelType != "gpt2" {
					t.Error(err)
				}
				continue // its attention scores are divided by the number of the block
			}

			ids := tokens(5, m.Config().Vocab, 12, 7)
			got := cutTo(t, m, &arch.Cut{Layers: layers}, SaveOptions{})
			h, err := m.Embed(ids)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Free()

			for _, l := range layers {
				if err := m.RunBlock(t.Context(), l, h, nil); err != nil {
					t.Fatal(err)
				}
			}
			want, err := m.Logits(h)
			if err != nil {
				t.Fatal(err)
			}
			defer want.Buf.Free()

			have := forward(t, got, ids, ForwardOptions{Logits: true}).Logits
			if !slices.Equal(values(have), values(want)) {
				t.Errorf("blocks %v give other logits than they give in the model", layers)
			}
		}
	})
}

// zeroed makes columns of matrices 0, those that stay apart; nil is for a matrix that stays as it is.
func zeroed(t *testing.T, m *Model, keep func(x Linear) []int) {
	t.Helper()
	for l := range m.Blocks() {
		for _, x := range m.Linears(l) {
			stay := keep(x)
			if stay == nil {
				continue
			}

			w, err := m.MutableParam(x.Name)
			if err != nil {
				t.Fatal(err)
			}
			v := w.Buf.F32()
			for out := range x.Out {
				for in := range x.In {
					at := out*x.In + in
					if x.Transposed {
						at = in*x.Out + out
					}
					if !slices.Contains(stay, in) {
						v[at] = 0
					}
				}
			}
			w.Buf.Changed()
		}
	}
}

// Every second neuron, of each block others, and some of the heads: the same logits as with the columns of what is left
// out at 0 in the matrices behind them. Where queries and keys are normed as a whole, leaving heads out changes the
// norms of the others, too.
func TestCutWidth(t *testing.T) {
	everyFamily(t, func(t *testing.T, dir string) {
		m := load(t, dir, ref.New(), Options{})
		c := m.Config()
		neurons, heads := &arch.Cut{}, &arch.Cut{}
		each := c.Heads / c.KVHeads
		for l := range c.Layers {
			neurons.Inner = append(neurons.Inner, everySecond(c.Inner, l))
			var inner [][]int
			for e := range c.Experts {
				inner = append(inner, everySecond(c.ExpertInner, l+e))
			}
			neurons.ExpertInner = append(neurons.ExpertInner, inner)
			if n := c.SharedInner; n > 0 && n%c.ExpertInner == 0 { // in some families it has to be a multiple
				neurons.SharedInner = append(neurons.SharedInner, entries(nil, n)[n-n/c.ExpertInner*len(inner[0]):])
			}

			switch {
			case c.KVHeads > 1: // a head of keys and values with all of its queries
				heads.KVHeads = append(heads.KVHeads, []int{l % c.KVHeads})
			default: // one of the queries of the only one
				heads.Heads = append(heads.Heads, []int{l % each})
			}
		}

		ids := tokens(5, c.Vocab, 12, 7)
		compare := func(what string, k *arch.Cut, keep func(x Linear) []int) {
			got := cutTo(t, m, k, SaveOptions{})
			whole := load(t, dir, ref.New(), Options{})
			zeroed(t, whole, keep)
			want := forward(t, whole, ids, ForwardOptions{Logits: true}).Logits
			have := forward(t, got, ids, ForwardOptions{Logits: true}).Logits
			near(t, what, values(have), values(want), 2e-5)
		}

		compare("neurons", neurons, func(x Linear) []int {
			switch {
			case x.Role == arch.SharedDown:
				return neurons.Kept(c, "shared_inner", x.Block, -1)
			case x.Role == arch.Down && x.Expert >= 0:
				return neurons.Kept(c, "expert_inner", x.Block, x.Expert)
			case x.Role == arch.Down:
				return neurons.Kept(c, "inner", x.Block, -1)
			}
			return nil
		})

		if _, _, _, err := heads.Config(c, read(t, dir)); errors.Is(err, arch.ErrCut) {
			t.Log(err)
			return
		}
		if c.QKNorm == arch.PerRow {
			cutTo(t, m, heads, SaveOptions{})
			return
		}
		compare("heads", heads, func(x Linear) []int {
			switch {
			case x.Role != arch.O:
				return nil
			case c.KVRank > 0:
				return heads.Kept(c, "v", x.Block, -1)
			}
			return heads.Kept(c, "q", x.Block, -1)
		})
	})
}

func everySecond(n, from int) []int {
	if n == 0 {
		return nil
	}
	var list []int
	for i := from % 2; i < n-n%2; i += 2 {
		list = append(list, i)
	}
	return list
}

func read(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Experts that lie in one tensor stay so, and the smaller model is that of separate ones.
func TestCutFusedExperts(t *testing.T) {
	dir := recipe{config: everyTiny()["olmoe"], seed: 3}.write(t, t.TempDir())
	separate := load(t, dir, ref.New(), Options{})
	fused := load(t, modeltest.FuseExperts(t, dir), ref.New(), Options{})
	c := separate.Config()
	k := &arch.Cut{Layers: []int{1}, Experts: make([][]int, c.Layers), ExpertInner: make([][][]int, c.Layers)}
	k.Experts[1] = entries(nil, c.Experts)[1:]
	for e := range c.Experts {
		k.ExpertInner[1] = append(k.ExpertInner[1], everySecond(c.ExpertInner, e))
	}

	a, b := cutTo(t, separate, k, SaveOptions{}), cutTo(t, fused, k, SaveOptions{})
	if len(b.source.Names()) >= len(a.source.Names()) {
		t.Errorf("%d tensors, %d of separate experts", len(b.source.Names()), len(a.source.Names()))
	}
	for _, name := range a.Tensors() {
		x, y := valueOf(t, a, name), valueOf(t, b, name)
		if !slices.Equal(values(x), values(y)) {
			t.Errorf("%s differs", name)
		}
	}
}

func valueOf(t *testing.T, m *Model, name string) kernels.Mat {
	t.Helper()
	w, err := m.Param(name)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A changed matrix is cut as it is in memory, in another type if asked for; what was saved is read back with zeros
// where nothing stays.
func TestCutChanged(t *testing.T) {
	dir := recipe{config: tiny()["llama"], dtype: safetensors.BF16, seed: 3}.write(t, t.TempDir())
	m := load(t, dir, ref.New(), Options{})
	c := m.Config()
	k := &arch.Cut{Layers: []int{0, 2}, Inner: [][]int{everySecond(c.Inner, 0), nil, everySecond(c.Inner, 1)}}
	down := m.Linears(2)[len(m.Linears(2))-1]
	if err := negate(m, down.Name); err != nil {
		t.Fatal(err)
	}

	s := saver(t, m, filepath.Join(t.TempDir(), "out"), SaveOptions{Cut: k, DType: safetensors.F32})
	gone := m.Linears(1)[0].Name
	if !s.Done(gone) || s.Done(down.Name) {
		t.Error("what does not stay is done, and nothing else")
	}
	if err := s.Save(down.Name, gone); err != nil {
		t.Fatal(err)
	}
	if err := s.LoadDone(down.Name); err != nil {
		t.Fatal(err)
	}

	back := values(valueOf(t, m, down.Name))
	for i, v := range back {
		if stays := slices.Contains(k.Inner[2], i%c.Inner); stays != (v != 0) {
			t.Fatalf("element %d is %g", i, v)
		}
	}

	finish(t, s)
	got := load(t, s.Dir(), ref.New(), Options{})
	w := values(valueOf(t, got, strings.Replace(down.Name, ".2.", ".1.", 1)))
	for i, v := range w {
		row, col := i/(c.Inner/2), k.Inner[2][i%(c.Inner/2)]
		if v != back[row*c.Inner+col] {
			t.Fatalf("element %d is %g, %g was saved", i, v, back[row*c.Inner+col])
		}
	}
}

// What no runtime has a form for is refused.
func TestCutRefused(t *testing.T) {
	tests := map[string]struct {
		model string
		cut   arch.Cut
		want  string
	}{
		"no layer":       {"llama", arch.Cut{Layers: []int{}}, "layers: cannot be cut: none of 3 stays"},
		"unknown layer":  {"llama", arch.Cut{Layers: []int{1, 3}}, "layers: cannot be cut: there is no 3 among 3"},
		"order":          {"llama", arch.Cut{Layers: []int{1, 0}}, "layers: cannot be cut: 0 stands behind 1"},
		"sizes by block": {"llama", arch.Cut{Inner: [][]int{{1, 2}, {1}, {2}}}, "2 stay in block 0, 1 in block 1"},
		"a block unsaid": {"llama", arch.Cut{Inner: [][]int{{1}, nil, {2}}}, "nothing is said of block 1"},
		"heads by group": {
			"llama", arch.Cut{Heads: [][]int{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}}, "key/value head 0 keeps 2 of 2",
		},
		"no size of heads": {"gpt2", arch.Cut{Heads: [][]int{{0}, {0}}}, "config.json of a gpt2 cannot say it"},
	}

	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			m := load(t, recipe{config: everyTiny()[x.model]}.write(t, t.TempDir()), ref.New(), Options{})
			_, err := m.NewSaver(filepath.Join(t.TempDir(), "out"), SaveOptions{Cut: &x.cut})
			if !errors.Is(err, ErrCut) || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want %q", err, x.want)
			}
		})
	}
}
