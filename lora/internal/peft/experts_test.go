package peft

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestWithoutExperts: a file with factors for the shared expert alone, as the PEFT library writes it where the
// experts lie in one tensor, is read with a remark; one that has them for some experts only lacks something.
func TestWithoutExperts(t *testing.T) {
	var list []adapter.Module
	for e, name := range []string{"experts.0", "experts.1", "shared_expert"} {
		path := "model.layers.0.mlp." + name + ".gate_proj"
		m := adapter.Module{Path: path, Tensor: path + ".weight", Role: "gate", Expert: e, In: 4, Out: 6}
		if e == 2 {
			m.Role, m.Expert = "shared_gate", -1
		}
		list = append(list, m)
	}

	for _, with := range [][]int{{2}, {0, 2}} {
		c := adapter.Config{Kind: adapter.LoRA, Rank: 2, Alpha: 3, Targets: adapter.Match{Names: []string{"gate_proj"}}}
		a := &adapter.Adapter{Config: c}
		for _, i := range with {
			f := adapter.Plain{
				A: adapter.NewParam(list[i].Path+".lora_A.weight", 2, 4),
				B: adapter.NewParam(list[i].Path+".lora_B.weight", 6, 2),
			}
			a.Low = append(a.Low, &adapter.Low{Module: list[i], Rank: 2, Alpha: 3, Scale: c.ScaleOf(2, 3), Factors: f})
		}

		dir := filepath.Join(t.TempDir(), "a")
		if err := Write(dir, a, WriteOptions{}); err != nil {
			t.Fatal(err)
		}

		got, notes, err := ReadNoted(dir, list)
		if len(with) == 2 {
			if !errors.Is(err, adapter.ErrFile) {
				t.Errorf("factors for one expert of two: %v", err)
			}
			continue
		}

		if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "2 matrices of experts") {
			t.Fatal(notes, err)
		}

		if !slices.Equal(got.Config.Targets.Names, []string{list[2].Path}) || len(got.Low) != 1 {
			t.Errorf("%+v", got.Config.Targets)
		}
	}
}
