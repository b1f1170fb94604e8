package edit

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// granite writes the shipped Llama as a Granite that computes the same: what branches give is four times as large, and
// is added with a factor of a quarter.
func granite(t *testing.T) string {
	t.Helper()
	dir, from := t.TempDir(), nano+"/base"
	text, err := os.ReadFile(from + "/config.json")
	if err != nil {
		t.Fatal(err)
	}

	config := map[string]any{}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}

	config["model_type"] = "granite"
	config["residual_multiplier"] = 0.25
	config["attention_multiplier"] = 0.25 // 1/sqrt(16)
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}

	source, err := safetensors.OpenDir(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()

	var infos []safetensors.Info
	for _, name := range source.Names() {
		info, _ := source.Info(name)
		infos = append(infos, info)
	}

	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range infos {
		data, err := source.Bytes(info.Name)
		if err != nil {
			t.Fatal(err)
		}

		if strings.Contains(info.Name, "o_proj") || strings.Contains(info.Name, "down_proj") {
			data = fourfold(data)
		}
		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return dir
}

// fourfold multiplies BF16 numbers by four: two more in the exponent.
func fourfold(data []byte) []byte {
	out := append([]byte(nil), data...)
	for i := 0; i < len(out); i += 2 {
		bits := uint32(out[i])<<16 | uint32(out[i+1])<<24
		bits = math.Float32bits(4 * math.Float32frombits(bits))
		out[i], out[i+1] = byte(bits>>16), byte(bits>>24)
	}
	return out
}

// TestScaledBranches: methods that spread what is missing in the stream over several layers change a model whose
// branches are scaled by as much more as its branches are larger. Both models compute the same; the passes round
// differently, which leaves below a thousandth of the change (see TestGraphics).
func TestScaledBranches(t *testing.T) {
	b := newBench(t, 1)
	scaled, err := lm.Load(t.Context(), granite(t), cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer scaled.Close()

	for _, name := range []string{"memit", "alphaedit"} {
		hp, err := Defaults(name, b.m.Config())
		if err != nil {
			t.Fatal(err)
		}

		hp.Steps = 4
		change := func(m *lm.Model) []float64 {
			before := downs(t, m)
			e, err := New(m, Options{Method: name, HParams: &hp, Statistics: b.stats})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()

			if _, err := e.Apply(t.Context(), b.encoded, nil); err != nil {
				t.Fatal(name, err)
			}

			after := downs(t, m)
			for i := range after {
				after[i] -= before[i]
			}
			if err := e.Undo(0); err != nil {
				t.Fatal(err)
			}

			return after
		}

		want, got := change(b.m), change(scaled)
		off, size := 0.0, 0.0
		for i, v := range want {
			off += (got[i]/4 - v) * (got[i]/4 - v)
			size += v * v
		}
		if part := math.Sqrt(off / size); !(part <= 1e-3) {
			t.Errorf("%s: the changes differ by %g of their length", name, part)
		}
	}
}

// downs are the values of all down-projections.
func downs(t *testing.T, m *lm.Model) (list []float64) {
	t.Helper()

	for l := range m.Blocks() {
		down, err := site.Linear(m, l, arch.Down)
		if err != nil {
			t.Fatal(err)
		}

		p, err := m.Param(down.Name)
		if err != nil {
			t.Fatal(err)
		}

		raw := make([]byte, 2*p.Len())
		if p.DType() != kernels.BF16 {
			t.Fatal(p.DType())
		}
		if err := m.Device().Download(raw, p.Buf, p.Off); err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(raw); at += 2 {
			list = append(list, float64(kernels.FromBF16(binary.LittleEndian.Uint16(raw[at:]))))
		}
	}

	return list
}
