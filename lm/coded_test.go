package lm

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/modeltest"
	"github.com/modelcompress/compress/internal/weights/weightstest"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// wide is a llama whose rows are whole blocks of every GGUF type.
func wide(t *testing.T) string { return llama(t, 2, 256, 512) }

// llama is one of random weights, with the tokenizer of nano.
func llama(t *testing.T, blocks, hidden, inner int) string {
	t.Helper()
	dir := recipe{config: map[string]any{
		"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": blocks,
		"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 768,
		"max_position_embeddings": 256, "tie_word_embeddings": true, "rms_norm_eps": 1e-5,
		"rope_parameters": map[string]any{"rope_theta": 10000.0, "rope_type": "default"},
	}, seed: 5}.write(t, t.TempDir())

	text, err := os.ReadFile(filepath.Join(nanoBase, "tokenizer.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// form is a quantised model, the same values as floats, and the formats of matrices that stay in their bits.
type form struct {
	name, path, plain string
	kept              map[string]int
}

// forms are quantised models of all kinds.
func forms(t *testing.T) (list []form) {
	t.Helper()
	dir := wide(t)
	for _, kind := range []gguf.Type{
		gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.IQ4_NL,
	} {
		// Tables and queries are in another type, as mixtures of types have it.
		path, plain := weightstest.GGUFOf(t, dir, func(name string) gguf.Type {
			if name == "token_embd.weight" {
				return gguf.Q6_K
			}
			return kind
		})
		kept := map[string]int{"Q6_K": 1}
		kept[kind.String()] += 14
		list = append(list, form{kind.String(), path, plain, kept})
	}

	for name, kept := range map[string]int{"int-quantized": 28, "awq": 28, "pack-quantized": 28, "gptq": 0, "nf4": 0} {
		path, plain := weightstest.Quantise(t, nanoBase, name)
		f := form{name, path, plain, map[string]int{}}
		if kept > 0 {
			f.kept[name] = kept
		}
		list = append(list, f)
	}
	return list
}

// TestKept: a model that stays in its bits computes what its decoded values do but for the order of sums, forward,
// backward and token by token, the same bits with any number of threads, streamed or not.
func TestKept(t *testing.T) {
	ids := tokens(2, 768, 40, 5)
	all := ForwardOptions{Logits: true}
	for _, f := range forms(t) {
		t.Run(f.name, func(t *testing.T) {
			want := load(t, f.plain, cpuDevice(t, 2), Options{})
			got := load(t, f.path, cpuDevice(t, 2), Options{})
			if r := got.Residence(); !maps.Equal(r.Kept, f.kept) {
				t.Errorf("kept: %v, want %v", r, f.kept)
			}

			p := pathOf(want, 40)
			first, plain := forward(t, got, ids, all), forward(t, want, ids, all)
			near(t, "logits", values(first.Logits), values(plain.Logits), p.Logits())
			nearGradients(t, got, want, ids, p.Gradients(45))
			nearSession(t, got, plain, ids[0], p.Logits())

			for _, o := range []Options{{}, {Stream: true}} {
				for _, threads := range []int{1, 3} {
					again := load(t, f.path, cpuDevice(t, threads), o)
					sameBits(t, f.name, forward(t, again, ids, all), first)
					sameBits(t, f.name, forward(t, again, ids, all), first) // after the blocks were given back
				}
			}
		})
	}
}

// TestKeptFamilies: models of all architectures compute with their matrices in bytes, those of experts too, what the
// decoded ones do; matrices that are stored transposed are decoded.
func TestKeptFamilies(t *testing.T) {
	ids := tokens(2, 30, 9, 4)
	some := false
	for name, config := range newer() {
		dir := recipe{config: config, seed: 4}.write(t, t.TempDir())
		path, _ := weightstest.Quantise(t, dir, "int-quantized")
		got, want := load(t, path, cpuDevice(t, 2), Options{}), load(t, path, cpuDevice(t, 2), Options{Decode: true})
		for l := range got.Blocks() {
			for _, x := range got.Linears(l) {
				stored, _ := got.dense.Place(x.Name)
				if kept := got.params[x.Name].kept; kept != (got.source.Matrix(stored) != nil && !x.Transposed) {
					t.Errorf("%s: %s is kept: %v, transposed: %v", name, x.Name, kept, x.Transposed)
				}
			}
		}
		some = some || len(got.Residence().Kept) > 0

		p := pathOf(want, 9)
		all := ForwardOptions{Logits: true}
		near(t, name, values(forward(t, got, ids, all).Logits), values(forward(t, want, ids, all).Logits), p.Logits())
	}
	if !some {
		t.Error("no model is quantised")
	}
}

// nearGradients compares the gradients of all parameters.
func nearGradients(t *testing.T, got, want *Model, ids [][]int32, fraction float64) {
	t.Helper()
	grads := [2]map[string][]float32{{}, {}}
	for i, m := range []*Model{got, want} {
		hooks := &Hooks{WeightGrad: func(name string, g kernels.Mat) error {
			grads[i][name] = values(g)
			return nil
		}}
		if _, err := m.Backward(ctx, ids, BackwardOptions{Hooks: hooks}); err != nil {
			t.Fatal(err)
		}
	}
	for name, g := range grads[1] {
		near(t, "gradient of "+name, grads[0][name], g, fraction)
	}
}

// nearSession runs a sequence token by token.
func nearSession(t *testing.T, m *Model, want *Result, ids []int32, fraction float64) {
	t.Helper()
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	for i, id := range ids[:6] {
		logits, err := s.Append(ctx, []int32{id})
		if err != nil {
			t.Fatal(err)
		}
		near(t, "logits of a token", logits, values(want.Logits.RowRange(i, i+1)), fraction)
	}
}

// TestKeptChanges: parameters of a model that stays in its bits are read, widened, changed, saved and restored as the
// decoded ones are.
func TestKeptChanges(t *testing.T) {
	ids := tokens(2, 768, 7, 5)
	all := ForwardOptions{Logits: true}
	path, plain := weightstest.GGUFOf(t, wide(t), func(string) gguf.Type { return gguf.Q4_K })
	for _, o := range []Options{{}, {Stream: true}} {
		got, want := load(t, path, cpuDevice(t, 2), o), load(t, plain, cpuDevice(t, 2), o)
		p := pathOf(want, 7)
		before := forward(t, got, ids, all)

		for _, name := range got.Tensors() {
			a, errA := got.Param(name)
			b, errB := want.Param(name)
			if errA != nil || errB != nil || !slices.Equal(values(a), values(b)) {
				t.Fatalf("%s: the values differ (%v, %v)", name, errA, errB)
			}
		}
		sameBits(t, "expanded", forward(t, got, ids, all), before)

		change := func(m *Model) {
			for _, name := range []string{m.Linears(1)[0].Name, m.embed.Name} {
				w, err := m.MutableParam(name)
				if err != nil {
					t.Fatal(err)
				}
				clear(w.Buf.Bytes()[:4096])
				w.Buf.Changed()
			}
		}
		change(got)
		change(want)
		changed := forward(t, got, ids, all)
		near(t, "changed", values(changed.Logits), values(forward(t, want, ids, all).Logits), p.Logits())
		if changed.Loss == before.Loss {
			t.Error("a change has no effect")
		}

		got.ReleaseBlock(0, false)
		got.ReleaseBlock(1, false)
		sameBits(t, "released", forward(t, got, ids, all), changed)
		sameSaved(t, got, want, SaveOptions{})

		if err := got.Restore(got.Linears(1)[0].Name, got.embed.Name); err != nil {
			t.Fatal(err)
		}
		sameBits(t, "restored", forward(t, got, ids, all), before)

		v, undo, err := got.WidenParam(got.Linears(0)[2].Name)
		if err != nil || v.DType() != kernels.F32 {
			t.Fatal(err)
		}
		near(t, "widened", values(forward(t, got, ids, all).Logits), values(before.Logits), p.Logits())
		undo()
		sameBits(t, "undone", forward(t, got, ids, all), before)

		_, undo, err = got.Untie()
		if err != nil {
			t.Fatal(err)
		}
		near(t, "untied", values(forward(t, got, ids, all).Logits), values(before.Logits), p.Logits())
		undo()
		sameBits(t, "tied", forward(t, got, ids, all), before)
	}
}

// TestKeptMemory: no float copy of a matrix, of the head or of the table is made, nor of the panels of a backward pass
// more than one, and what does not lie in the file as it is multiplied takes its few bits.
func TestKeptMemory(t *testing.T) {
	path, _ := weightstest.GGUFOf(t, wide(t), func(string) gguf.Type { return gguf.Q8_0 })
	dev := &accountant{Device: cpu.New(cpu.Options{})}
	m := load(t, path, dev, Options{})
	for _, name := range m.Tensors() {
		if p := m.params[name]; p.kept && (p.Value.Buf != nil || p.Coded.IsZero()) {
			t.Errorf("%s is there as floats", name)
		}
	}
	if dev.peak != 0 {
		t.Errorf("%d bytes were taken from the device for weights", dev.peak)
	}

	// Queries and keys have their rows in another order in the file.
	for _, name := range m.Tensors() {
		p := m.params[name]
		turned := strings.Contains(name, "q_proj") || strings.Contains(name, "k_proj")
		if p.kept && p.view == turned {
			t.Errorf("%s is a view: %v", name, p.view)
		}
		if want := int64(p.rows) * int64(p.cols) / 32 * 34; p.kept && p.Coded.SizeBytes() != want {
			t.Errorf("%s takes %d bytes, want %d", name, p.Coded.SizeBytes(), want)
		}
	}
}

// TestKeptAnonymous: a model of many blocks takes of anonymous memory what those few bits take that lie otherwise in
// the file, and passes through it, forward, back and token by token, take no float copy of its matrices.
func TestKeptAnonymous(t *testing.T) {
	const blocks, hidden, inner = 24, 512, 1024
	path, _ := weightstest.GGUFOf(t, llama(t, blocks, hidden, inner), func(string) gguf.Type { return gguf.Q8_0 })
	elements := int64(blocks) * (3*hidden*hidden + 3*hidden*inner)
	ids := tokens(1, 768, 16)

	debug.FreeOSMemory()
	before := modeltest.Anonymous(t)
	m := load(t, path, cpuDevice(t, 1), Options{})
	forward(t, m, ids, ForwardOptions{})
	if _, err := m.Backward(ctx, ids, BackwardOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Append(ctx, ids[0][:3]); err != nil {
		t.Fatal(err)
	}

	debug.FreeOSMemory()
	// Queries and keys are copies, a third of the attention: less than a quarter of the codes. What passes keep is less
	// than three matrices as floats, one of which the backward pass expands.
	took := modeltest.Anonymous(t) - before
	if most := elements*34/32/4 + 3*4*hidden*inner; took > most || took > elements {
		t.Errorf("%d bytes of anonymous memory for %d elements, %d allowed", took, elements, most)
	}
}

// TestKeptDecode: what the options, the device and the formats do not let stay in its bits is decoded.
func TestKeptDecode(t *testing.T) {
	path, _ := weightstest.GGUF(t, nanoBase)
	for _, o := range []Options{{Decode: true}, {Bits: 8}, {Bits: 4}} {
		if r := load(t, path, cpuDevice(t, 1), o).Residence(); len(r.Kept) != 0 || r.Decoded["Q8_0"] != 28 {
			t.Errorf("%+v: %v", o, r)
		}
	}

	r := load(t, path, cpuDevice(t, 1), Options{}).Residence()
	if want := "computed with as stored: 28 Q8_0"; r.String() != want {
		t.Errorf("%q, want %q", r, want)
	}
}

// TestKeptNotFinite: scales that are no numbers are an error that names file and tensor, as for decoded models.
func TestKeptNotFinite(t *testing.T) {
	path, _ := weightstest.GGUF(t, nanoBase)
	file, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	const name = "blk.2.ffn_down.weight"
	info, _ := file.Info(name)
	offset := info.Offset + 34*7
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte{0, 0x7c}, offset)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}

	for _, o := range []Options{{}, {Decode: true}} {
		m, err := Load(ctx, path, cpuDevice(t, 1), o)
		if err == nil {
			_ = m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "not finite") ||
			!strings.Contains(err.Error(), "layers.2.mlp.down_proj.weight") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
