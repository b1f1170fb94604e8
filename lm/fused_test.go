package lm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// mixtures are the configurations of tiny whose blocks have experts.
var mixtures = []string{"mixtral", "olmoe", "qwen2-moe", "qwen3-moe"}

// fuse writes a checkpoint anew with the experts of every block in two tensors.
func fuse(t testing.TB, dir string) string {
	t.Helper()
	config, all := readTensors(t, dir, func(string) bool { return false })
	a, err := arch.Lookup(config["model_type"].(string))
	if err != nil {
		t.Fatal(err)
	}

	at := map[string]stored{}
	for _, x := range all {
		at[x.info.Name] = x
	}

	shape := func(name string) ([]int64, bool) { x, ok := at[name]; return x.info.Shape, ok }
	for l := range 3 {
		joints, ok := a.Fuse(l, shape)
		if !ok {
			t.Fatalf("block %d cannot be fused", l)
		}

		for _, j := range joints {
			x := stored{info: safetensors.Info{Name: j.Name, DType: at[j.Parts[0].Name].info.DType, Shape: j.Shape}}
			for _, p := range j.Parts {
				x.data = append(x.data, at[p.Name].data...)
				delete(at, p.Name)
			}
			at[j.Name] = x
		}
	}

	var list []stored
	for _, x := range at {
		list = append(list, x)
	}

	slices.SortFunc(list, func(x, y stored) int { return strings.Compare(x.info.Name, y.info.Name) })
	return writeTensors(t, config, list)
}

// TestFusedExperts: a mixture computes the same bits whether its experts lie in one tensor or each in its own,
// resident, streamed and in few bits, and its parameters have the same names and its fingerprint is one.
func TestFusedExperts(t *testing.T) {
	for _, name := range mixtures {
		for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F64} {
			split := recipe{config: tiny()[name], seed: 4, dtype: d}.write(t, t.TempDir())
			fused := fuse(t, split)
			for _, o := range []Options{{}, {Stream: true}, {Bits: 8}} {
				var logits [2][]float32
				var names [2][]string
				var prints [2]string
				for i, dir := range []string{split, fused} {
					m := load(t, dir, cpu.New(cpu.Options{Threads: 2}), o)
					for range 2 { // streamed weights come back
						r, err := m.Forward(ctx, tokens(3, 37, 9, 5), ForwardOptions{Logits: true})
						if err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						logits[i] = append(logits[i], r.Logits.Buf.F32()...)
					}

					names[i] = slices.Sorted(slices.Values(m.Tensors()))
					var err error
					if prints[i], err = m.Fingerprint(ctx); err != nil {
						t.Fatal(err)
					}
				}

				if !slices.Equal(bits(logits[0]), bits(logits[1])) || !slices.Equal(names[0], names[1]) ||
					prints[0] != prints[1] {
					t.Errorf("%s %v %+v: fused experts are not the split ones", name, d, o)
				}
			}
		}
	}
}

// bits are the patterns of numbers.
func bits(x []float32) []uint32 {
	list := make([]uint32, len(x))
	for i, v := range x {
		list[i] = math.Float32bits(v)
	}
	return list
}

// TestFusedOtherNames: a mixture of Granite's whose experts and routers are called as in the library's memory computes
// the same bits, and is saved under the names that it was read with.
func TestFusedOtherNames(t *testing.T) {
	files := filepath.Join("testdata", "families", "granitemoe")
	config, list := readTensors(t, files, func(string) bool { return false })
	var renamed []string
	for i, x := range list {
		list[i].info.Name = strings.NewReplacer(
			"input_linear.weight", "experts.gate_up_proj",
			"output_linear.weight", "experts.down_proj",
			"router.layer.weight", "router.weight",
		).Replace(x.info.Name)
		renamed = append(renamed, list[i].info.Name)
	}

	memory := writeTensors(t, config, list)
	var logits [2][]float32
	for i, dir := range []string{files, memory} {
		m := load(t, dir, ref.New(), Options{})
		r, err := m.Forward(ctx, tokens(3, 37, 9, 5), ForwardOptions{Logits: true})
		if err != nil {
			t.Fatal(err)
		}
		logits[i] = r.Logits.Buf.F32()
	}
	if !slices.Equal(bits(logits[0]), bits(logits[1])) {
		t.Error("the same model under other names computes other logits")
	}

	out := filepath.Join(t.TempDir(), "out")
	saveChanged(t, memory, out, SaveOptions{})
	_, saved := readTensors(t, out, func(string) bool { return false })
	var names []string
	for _, x := range saved {
		names = append(names, x.info.Name)
	}
	slices.Sort(names)
	slices.Sort(renamed)
	if !slices.Equal(names, renamed) {
		t.Errorf("saved as %v", names)
	}
}

// TestFusedSaved: what is saved has the layout of what was read, changed and unchanged experts where they
// belong, in any order of saving, also when it is converted or goes on after an interruption; and a changed
// expert that is let go comes back from the unfinished output.
func TestFusedSaved(t *testing.T) {
	for _, name := range mixtures {
		for _, d := range []safetensors.DType{0, safetensors.BF16, safetensors.F64} {
			split := recipe{config: tiny()[name], seed: 5}.write(t, t.TempDir())
			var out [2]string
			for i, dir := range []string{split, fuse(t, split)} {
				out[i] = filepath.Join(t.TempDir(), "out")
				saveChanged(t, dir, out[i], SaveOptions{DType: d})
			}

			config, want := readTensors(t, fuse(t, out[0]), func(string) bool { return false })
			got, all := readTensors(t, out[1], func(string) bool { return false })
			slices.SortFunc(all, func(x, y stored) int { return strings.Compare(x.info.Name, y.info.Name) })
			same := slices.EqualFunc(want, all, func(x, y stored) bool {
				return x.info.Name == y.info.Name && x.info.DType == y.info.DType &&
					slices.Equal(x.info.Shape, y.info.Shape) && bytes.Equal(x.data, y.data)
			})

			if !same || config["model_type"] != got["model_type"] {
				t.Errorf("%s %v: fused and split outputs differ", name, d)
			}
		}
	}
}

// saveChanged doubles some matrices and saves: those of the last block half by half, with an interruption between.
func saveChanged(t *testing.T, dir, out string, o SaveOptions) {
	t.Helper()
	o.Resume, o.Fingerprint = true, "f"

	for _, first := range []bool{true, false} {
		m := load(t, dir, ref.New(), Options{})
		s, err := m.NewSaver(out, o)
		if err != nil {
			t.Fatal(err)
		}

		last := m.Linears(m.Blocks() - 1)
		for i, l := range last {
			if first && i >= len(last)/2 || s.Done(l.Name) {
				continue
			}

			twice(t, m, l.Name)
			if err := s.Save(l.Name); err != nil {
				t.Fatal(err)
			}

			m.ReleaseBlock(l.Block, true)
			x, err := m.Param(l.Name)
			if err != nil {
				t.Fatal(err)
			}

			if x.Buf.Len != l.In*l.Out {
				t.Fatalf("%s: %d elements come back", l.Name, x.Buf.Len)
			}
		}

		if first {
			if err := s.Suspend(); err != nil {
				t.Fatal(err)
			}
			continue
		}

		twice(t, m, m.Linears(m.Blocks() - 2)[0].Name) // left to Finish
		if err := s.Finish(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// twice changes a parameter.
func twice(t *testing.T, m *Model, name string) {
	t.Helper()
	x, err := m.MutableParam(name)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range x.Buf.F32() {
		x.Buf.F32()[i] = 2 * v
	}
	x.Buf.Changed()
}

// TestFusedBadInput: a tensor of the fused layout that the configuration does not ask for in this shape is
// refused by file and name, and so is one whose experts are there as well.
func TestFusedBadInput(t *testing.T) {
	const name = "model.layers.1.mlp.experts.down_proj"
	_, all := readTensors(t, fuse(t, recipe{config: tiny()["qwen3-moe"], seed: 6}.write(t, t.TempDir())),
		func(string) bool { return false })

	i := slices.IndexFunc(all, func(x stored) bool { return x.info.Name == name })
	for text, change := range map[string]func(list []stored) []stored{
		"shape [5 12 24], but config.json gives [5 24 12]": func(list []stored) []stored {
			list[i].info.Shape = []int64{5, 12, 24}
			return list
		},
		"shape [10 12 12], but": func(list []stored) []stored { list[i].info.Shape = []int64{10, 12, 12}; return list },
		"shape [5 288], but":    func(list []stored) []stored { list[i].info.Shape = []int64{5, 288}; return list },
		`"model.layers.1.mlp.experts.3.down_proj.weight" is there as well`: func(list []stored) []stored {
			return append(list,
				stored{safetensors.Info{
					Name: "model.layers.1.mlp.experts.3.down_proj.weight", DType: safetensors.F32,
					Shape: []int64{24, 12},
				}, make([]byte, 4*24*12)})
		},
		"element type cannot be computed with": func(list []stored) []stored {
			list[i].info.DType, list[i].data = safetensors.I32, binary.LittleEndian.AppendUint32(nil, 0)
			list[i].data = make([]byte, 4*5*24*12)
			return list
		},
		"qwen3_moe does not have these 1: model.layers.0.mlp.experts.down_proj": func(list []stored) []stored {
			return append(list,
				stored{safetensors.Info{
					Name: "model.layers.0.mlp.experts.down_proj", DType: safetensors.F32,
					Shape: []int64{5, 24, 12},
				}, make([]byte, 4*5*24*12)})
		},
	} {
		dir := writeTensors(t, tiny()["qwen3-moe"], change(slices.Clone(all)))
		_, err := Load(ctx, dir, ref.New(), Options{})
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "model.safetensors") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", text, err)
		}

		if !errors.Is(err, ErrShape) && !errors.Is(err, ErrExtraTensor) && !errors.Is(err, ErrDType) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
