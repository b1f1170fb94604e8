package mosfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/safetensors"
)

// base is a model of two blocks with two matrices each.
type base struct{ width int }

// Modules implements [forms.Base].
func (b base) Modules() (list []adapter.Module) {
	for l := range 2 {
		for _, n := range []string{"q_proj", "up_proj"} {
			path := fmt.Sprintf("model.layers.%d.%s", l, n)
			list = append(list, adapter.Module{
				Path: path, Tensor: path + ".weight", Block: l, Expert: -1, Role: arch.Q,
				In: b.width, Out: 2 * b.width,
			})
		}
	}
	return list
}

// Shapes implements [forms.Base].
func (b base) Shapes() ([]string, map[string][]int64) { return nil, nil }

// Values implements [forms.Base].
func (b base) Values(string) (kernels.Mat, error) { return kernels.Mat{}, errors.New("no values") }

func example(t testing.TB) (string, *adapter.Adapter) {
	t.Helper()
	c := adapter.Config{Kind: adapter.MoS, Rank: 3, Alpha: 8, Base: "base", Targets: adapter.Match{All: true}}
	c.MoS = adapter.MoSConfig{
		EquivalentRank: 2, Shards: 2, Private: 1, PairDissociation: true,
		Sampling: adapter.Official,
	}
	a, err := kinds.New(c, base{8}, 5)
	if err != nil {
		t.Fatal(err)
	}

	dir := filepath.Join(t.TempDir(), "a")
	if err := Write(dir, a, safetensors.F32, nil); err != nil {
		t.Fatal(err)
	}

	return dir, a
}

// TestRoundTrip: what is written comes back, in F32 exactly.
func TestRoundTrip(t *testing.T) {
	dir, a := example(t)
	back, err := Read(dir, base{8})
	if err != nil {
		t.Fatal(err)
	}

	for i, l := range a.Low {
		x, y := l.Pair()
		v, w := back.Low[i].Pair()
		for _, p := range [][2]kernels.Mat{{x, v}, {y, w}} {
			for k, f := range p[0].Buf.F32() {
				if p[1].Buf.F32()[k] != f {
					t.Fatalf("%s differs", l.Module.Path)
				}
			}
		}
	}

	if back.Config.MoS != a.Config.MoS || back.Config.Alpha != 8 {
		t.Errorf("%+v", back.Config)
	}
}

// TestOtherBase: an adapter of another base is refused by its first tensor that does not fit.
func TestOtherBase(t *testing.T) {
	dir, _ := example(t)
	for _, width := range []int{4, 16} {
		if _, err := Read(dir, base{width}); !errors.Is(err, adapter.ErrBase) ||
			!strings.Contains(err.Error(), "mos.q_proj.pool_A") {
			t.Errorf("width %d: %v", width, err)
		}
	}
}

// TestConfigFaults: unknown keys, other versions and impossible sizes are refused.
func TestConfigFaults(t *testing.T) {
	dir, _ := example(t)
	path := filepath.Join(dir, ConfigName)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for old, c := range map[string]struct {
		new  string
		want error
	}{
		`"r": 3`:                {`"r": 3, "rr": 1`, adapter.ErrConfig},
		`"format_version": 1`:   {`"format_version": 2`, adapter.ErrUnsupported},
		`"shards": 2`:           {`"shards": 3`, adapter.ErrConfig},
		`"private_rank": 1`:     {`"private_rank": 9`, adapter.ErrConfig},
		`"equivalent_rank": 2`:  {`"equivalent_rank": 2000000000`, adapter.ErrConfig},
		`"sampling": "official`: {`"sampling": "pure`, adapter.ErrConfig},
		`"q_proj"`:              {`"k_proj"`, adapter.ErrTarget},
		`"lora_alpha": 8`:       {`"lora_alpha": -1`, adapter.ErrConfig},
	} {
		text := strings.Replace(string(good), old, c.new, 1)
		if text == string(good) {
			t.Fatalf("%s is not in the configuration", old)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir, base{8}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.new, err)
		}
	}
}

// TestNull: a key without a value is refused by its name, not taken for 0; a choice of modules may be absent.
func TestNull(t *testing.T) {
	dir, _ := example(t)
	good, err := os.ReadFile(filepath.Join(dir, ConfigName))
	if err != nil {
		t.Fatal(err)
	}

	var keys map[string]any
	if err := json.Unmarshal(good, &keys); err != nil {
		t.Fatal(err)
	}

	for key := range keys {
		changed := maps.Clone(keys)
		changed[key] = nil
		text, err := json.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}

		_, err = parse(text)
		if key == "target_modules" {
			if err != nil {
				t.Errorf("%s: %v", key, err)
			}
			continue
		}

		if !errors.Is(err, adapter.ErrConfig) && !errors.Is(err, adapter.ErrUnsupported) ||
			!strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}

	_, err = parse([]byte(strings.Replace(string(good), `"r": 3`, `"r": "3"`, 1)))
	if !errors.Is(err, adapter.ErrConfig) || !strings.Contains(err.Error(), `key "r": string is not int`) {
		t.Error(err)
	}
}

// FuzzConfig: no configuration panics or makes more than the file holds.
func FuzzConfig(f *testing.F) {
	dir, _ := example(f)
	good, err := os.ReadFile(filepath.Join(dir, ConfigName))
	if err != nil {
		f.Fatal(err)
	}

	file, err := safetensors.Open(filepath.Join(dir, ModelName))
	if err != nil {
		f.Fatal(err)
	}

	f.Cleanup(func() { file.Close() })
	f.Add(string(good))
	f.Add(
		`{"peft_type": "VERA_NATIVE", "format_version": 1, "r": 999999, "lora_alpha": 1, "target_modules": "all-linear"}`)
	f.Add(
		`{"peft_type": "PROLORA", "format_version": 1, "r": 4, "lora_alpha": 1, "in_parts": 2, "out_parts": 99999999, "target_modules": ".*"}`)
	f.Add(
		`{"peft_type": "MOS", "format_version": 1, "r": 1, "lora_alpha": 1e308, "equivalent_rank": 1, "shards": 9223372036854775807, "target_modules": ["q_proj"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()
		c, err := parse([]byte(text))
		if err != nil {
			return
		}
		_, _ = Load(file, *c, base{8})
	})
}
