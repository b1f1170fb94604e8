package combine_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/combine"
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

// named opens the input adapters of a case.
func named(t *testing.T, names []string) []combine.Named {
	t.Helper()
	var list []combine.Named
	for _, n := range names {
		a, _, err := peft.ReadAlone(filepath.Join(oracle(t), "adapters", n))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, combine.Named{Name: n, Adapter: a})
	}

	return list
}

// delta is the change of a module in the orientation of the base.
func delta(l *adapter.Low) []float64 {
	a, b := l.Pair()
	turned := l.Module.Transposed || l.Module.Table
	d := make([]float64, l.Module.In*l.Module.Out)
	for o := range l.Module.Out {
		for i := range l.Module.In {
			v := 0.0
			for k := range l.Rank {
				v += float64(b.RowF32(o)[k]) * float64(a.RowF32(k)[i])
			}

			if turned {
				d[i*l.Module.Out+o] = l.Scale * v
			} else {
				d[o*l.Module.In+i] = l.Scale * v
			}
		}
	}

	return d
}

type oracleCase struct {
	Adapters []string
	Weights  []float64
	Type     string `json:"combination_type"`
	Rank     int    `json:"result_rank"`
	Scale    []float64
	Options  struct {
		Density *float64
		Rank    int          `json:"svd_rank"`
		Sign    combine.Sign `json:"majority_sign_method"`
	}
}

// TestCombineOracle: the changes of the result are PEFT's, to 2e-6 where factors are added in F32 there, to
// 1e-5 where it decomposes in F32. One case keeps a fault of PEFT's: a result that is √rank too strong.
func TestCombineOracle(t *testing.T) {
	list, err := filepath.Glob(filepath.Join(oracle(t), "combine", "*", "case.json"))
	if err != nil || len(list) == 0 {
		t.Skip("no cases of combinations")
	}

	for _, path := range list {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c := oracleCase{}
			readJSON(t, path, &c)
			var extra struct {
				Scale []float64 `json:"result_scale"`
			}
			readJSON(t, path, &extra)
			o := combine.Options{Method: c.Type, Weights: c.Weights, Rank: c.Options.Rank, Sign: c.Options.Sign}
			if c.Options.Density != nil {
				o.Density = *c.Options.Density
			}

			got, err := combine.Run(t.Context(), named(t, c.Adapters), o)
			if err != nil {
				t.Fatal(err)
			}

			if got.MaxRank() != c.Rank {
				t.Errorf("rank %d, want %d", got.MaxRank(), c.Rank)
			}

			fault := 1.0
			if len(extra.Scale) > 0 {
				fault = extra.Scale[0]
			}

			limit := 2e-6
			if strings.HasSuffix(c.Type, "svd") {
				limit = 1e-5
			}

			compare(t, got.Adapter, filepath.Join(dir, "expected.safetensors"), fault, limit)
		})
	}
}

func compare(t *testing.T, got *adapter.Adapter, path string, fault, limit float64) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	seen := 0
	for _, n := range f.Names() {
		module, ok := strings.CutPrefix(n, "delta.")
		if !ok {
			continue
		}

		seen++
		l := got.Find(module)
		if l == nil {
			t.Errorf("no change of %s", module)
			continue
		}

		data, err := f.Bytes(n)
		if err != nil {
			t.Fatal(err)
		}

		worst := 0.0
		for i, v := range delta(l) {
			want := float64(
				math.Float32frombits(
					uint32(data[4*i])|uint32(data[4*i+1])<<8|uint32(data[4*i+2])<<16|uint32(data[4*i+3])<<24)) / fault
			worst = max(worst, math.Abs(v-want))
		}

		if !(worst <= limit) {
			t.Errorf("%s: off by %g", module, worst)
		}
	}

	if seen != len(got.Low) {
		t.Errorf("%d modules, want %d", len(got.Low), seen)
	}
}

// TestCombineRefusedOracle: what PEFT refuses is refused.
func TestCombineRefusedOracle(t *testing.T) {
	path := filepath.Join(oracle(t), "combine", "refused.json")
	if _, err := os.Stat(path); err != nil {
		t.Skip("no cases of refused combinations")
	}

	var list []struct {
		Adapters     []string
		Type, Reason string
	}

	readJSON(t, path, &list)

	for i, c := range list {
		t.Run(fmt.Sprint(i, c.Type), func(t *testing.T) {
			o := combine.Options{Method: c.Type}
			if strings.HasPrefix(c.Type, "ties") || strings.HasPrefix(c.Type, "dare") ||
				strings.HasPrefix(c.Type, "magnitude") {
				o.Density = 0.5
			}
			if _, err := combine.Run(t.Context(), named(t, c.Adapters), o); err == nil {
				t.Errorf("%s accepted, although %s", c.Type, c.Reason)
			}
		})
	}
}
