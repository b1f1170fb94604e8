package infer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// file is a file of tensors of those shapes, all zero.
func file(t *testing.T, shapes map[string][]int) *safetensors.File {
	t.Helper()
	header := map[string]any{}
	at := 0
	for name, shape := range shapes {
		size := 4
		for _, n := range shape {
			size *= n
		}
		dtype := "F32"
		if strings.Contains(name, "index") {
			dtype = "I32"
		}
		header[name] = map[string]any{"dtype": dtype, "shape": shape, "data_offsets": []int{at, at + size}}
		at += size
	}

	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}

	all := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	f, err := safetensors.OpenBytes(append(append(all, text...), make([]byte, at)...))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// pools are the tensors of a projection: rank 2 in shards, for so many blocks.
func pools(shapes map[string][]int, name string, blocks, in, out, shards int) {
	for side, width := range map[string]int{"A": in, "B": out} {
		shapes["mos."+name+".index_"+side] = []int{blocks, 2, shards}
		shapes["mos."+name+".pool_"+side] = []int{3 * shards, width / shards}
	}
}

// TestModules: paths are those of the largest family, widths the pools' times the shards, and every block has all.
func TestModules(t *testing.T) {
	shapes := map[string][]int{}
	pools(shapes, "q_proj", 3, 16, 24, 4)
	pools(shapes, "down_proj", 3, 32, 16, 2)
	base, names, err := Modules(file(t, shapes))
	if err != nil || len(base) != 6 || !slices.Contains(names, "llama") {
		t.Fatalf("%d modules of %v, %v", len(base), names, err)
	}

	for k := range 3 {
		down, q := base[2*k], base[2*k+1]
		layer := "model.layers." + string(rune('0'+k))
		want := adapter.Module{
			Path: layer + ".self_attn.q_proj", Tensor: layer + ".self_attn.q_proj.weight", Block: k, Role: arch.Q,
			Expert: -1, In: 16, Out: 24,
		}
		if q != want {
			t.Errorf("%+v, want %+v", q, want)
		}
		if down.Path != layer+".mlp.down_proj" || down.In != 32 || down.Out != 16 || down.Role != arch.Down {
			t.Errorf("%+v", down)
		}
	}

	if got := base.Modules(); len(got) != 6 {
		t.Errorf("%d modules", len(got))
	}
	if _, err := base.Values("x"); !errors.Is(err, adapter.ErrUnsupported) {
		t.Errorf("values: %v", err)
	}
}

// TestTransposedFamily: GPT-2's projections are stored the other way round.
func TestTransposedFamily(t *testing.T) {
	shapes := map[string][]int{}
	pools(shapes, "c_attn", 1, 8, 24, 2)
	base, names, err := Modules(file(t, shapes))
	if err != nil || len(base) != 1 || !base[0].Transposed || !slices.Equal(names, []string{"gpt2"}) {
		t.Errorf("%+v of %v, %v", base, names, err)
	}
}

// TestModulesThatFitNothing: each file is refused with the tensor, or the reason, in its error.
func TestModulesThatFitNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(shapes map[string][]int)
		kind   error
		want   string
	}{
		"nothing": {func(s map[string][]int) { clear(s) }, adapter.ErrFile, "no pools"},
		"unknown": {func(s map[string][]int) { pools(s, "odd_proj", 2, 8, 8, 2) }, adapter.ErrUnsupported, "odd_proj"},
		"two families": {
			func(s map[string][]int) { pools(s, "c_attn", 2, 8, 8, 2) }, adapter.ErrUnsupported, "c_attn, q_proj",
		},
		"no list": {func(s map[string][]int) { delete(s, "mos.q_proj.index_A") }, adapter.ErrFile, "index_A"},
		"flat list": {
			func(s map[string][]int) { s["mos.q_proj.index_A"] = []int{2, 4} }, adapter.ErrFile, "index_A",
		},
		"no blocks": {
			func(s map[string][]int) { s["mos.q_proj.index_A"] = []int{0, 2, 2} }, adapter.ErrFile, "index_A",
		},
		"no pool":   {func(s map[string][]int) { delete(s, "mos.q_proj.pool_B") }, adapter.ErrFile, "pool_B"},
		"no matrix": {func(s map[string][]int) { s["mos.q_proj.pool_B"] = []int{8} }, adapter.ErrFile, "pool_B"},
		"other blocks": {
			func(s map[string][]int) { pools(s, "v_proj", 3, 8, 8, 2) }, adapter.ErrFile, "2 blocks, v_proj for 3",
		},
	} {
		shapes := map[string][]int{}
		pools(shapes, "q_proj", 2, 8, 8, 2)
		c.change(shapes)

		_, _, err := Modules(file(t, shapes))
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
