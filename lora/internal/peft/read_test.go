package peft_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// oracle is the folder of reference cases; the test is skipped without it.
func oracle(t *testing.T) string {
	t.Helper()
	root := os.Getenv("COMPRESS_ORACLE")
	if root == "" {
		root = filepath.Join("..", "..", "..", "..", "shared", "oracle")
	}

	root = filepath.Join(root, "lora")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no reference cases at %s", root)
	}

	return root
}

// cases lists the folders of a kind of case.
func cases(t *testing.T, kind string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(oracle(t), kind, "*", "case.json"))
	if err != nil || len(list) == 0 {
		t.Skipf("no cases in %s: %v", filepath.Join(oracle(t), kind), err)
	}
	for i := range list {
		list[i] = filepath.Dir(list[i])
	}
	return list
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func modules(t *testing.T, dir string) []adapter.Module {
	t.Helper()
	c, err := adapter.OpenCheckpoint(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Modules
}

// TestReadOracle: rank, alpha and scale of every module are those that the library computes with, and a copy
// that is written holds the same tensors to the bit.
func TestReadOracle(t *testing.T) {
	for _, dir := range cases(t, "peft") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c struct {
				Base    string
				Adapted map[string]struct {
					Rank         int `json:"r"`
					Alpha, Scale float64
				}
			}

			readJSON(t, filepath.Join(dir, "case.json"), &c)
			mods := modules(t, filepath.Join(oracle(t), "base", c.Base))
			a, err := peft.Read(dir, mods)
			if err != nil {
				t.Fatal(err)
			}

			for path, want := range c.Adapted {
				l := a.Find(path)
				if l == nil || l.Rank != want.Rank || l.Alpha != want.Alpha ||
					math.Abs(l.Scale-want.Scale) > 1e-12*want.Scale {
					t.Errorf("%s: %+v, want %+v", path, l, want)
				}
			}

			if len(a.Low) != len(c.Adapted) {
				t.Errorf("%d modules, want %d", len(a.Low), len(c.Adapted))
			}

			out := filepath.Join(t.TempDir(), "copy")
			o := peft.WriteOptions{DType: stored(t, dir)}
			if err := peft.Write(out, a, o); err != nil {
				t.Fatal(err)
			}

			sameTensors(t, filepath.Join(dir, peft.WeightsName), filepath.Join(out, peft.WeightsName))
			b, err := peft.Read(out, mods)
			if err != nil {
				t.Fatal(err)
			}

			if d := cmp.Diff(a.Config, b.Config, cmp.FilterPath(func(p cmp.Path) bool {
				return slices.Contains([]string{"TaskType", "RankPattern", "AlphaPattern", "Rank", "Alpha", "Init"},
					p.Last().String()[min(1, len(p.Last().String())):])
			}, cmp.Ignore())); d != "" {
				t.Error(d)
			}

			for i, l := range a.Low {
				if m := b.Low[i]; m.Rank != l.Rank || m.Scale != l.Scale || m.Alpha != l.Alpha {
					t.Errorf("%s: %+v, want %+v", l.Module.Path, m, l)
				}
			}
		})
	}
}

// stored is the element type of an adapter's file.
func stored(t *testing.T, dir string) safetensors.DType {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(dir, peft.WeightsName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, _ := f.Info(f.Names()[0])
	return info.DType
}

// sameTensors compares two files tensor by tensor, to the bit.
func sameTensors(t *testing.T, pathA, pathB string) {
	t.Helper()
	a, err := safetensors.Open(pathA)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()

	b, err := safetensors.Open(pathB)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	namesA, namesB := a.Names(), b.Names()
	slices.Sort(namesA)
	slices.Sort(namesB)
	if !slices.Equal(namesA, namesB) {
		t.Fatalf("tensors\n%v, want\n%v", namesB, namesA)
	}

	for _, n := range namesA {
		x, _ := a.Bytes(n)
		y, _ := b.Bytes(n)
		p, _ := a.Info(n)
		q, _ := b.Info(n)
		if p.DType != q.DType || !slices.Equal(p.Shape, q.Shape) || !slices.Equal(x, y) {
			t.Errorf("tensor %s differs", n)
		}
	}
}
