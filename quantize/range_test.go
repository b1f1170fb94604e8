package quantize

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// powerError is Σ|a - b|^p·weight of two tensors of two folders, column by column.
func powerError(t *testing.T, a, b *weights.Source, name string, p float64, weight []float64) (sum float64) {
	t.Helper()
	x, y := values(t, a, name), values(t, b, name)
	for i := range x {
		e := math.Pow(math.Abs(float64(x[i])-float64(y[i])), p)
		if weight != nil {
			e *= weight[i%len(weight)]
		}
		sum += e
	}
	return sum
}

func source(t *testing.T, dir string) *weights.Source {
	t.Helper()
	s, err := weights.Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestRanges: a searched range leaves less of the error that it looks at than the whole range does, for every scheme
// and every matrix, by rtn; the configuration names the search; the bytes are the same for any number of threads.
func TestRanges(t *testing.T) {
	dense := source(t, nano)
	m := open(t, nano, 2)
	importance, err := Importance(ctx, m, calibration(t, m, 4, 64), "", nil)
	if err != nil {
		t.Fatal(err)
	}

	for _, s := range schemes {
		// quantised is a folder by a search on so many threads, which is there until the whole test has ended.
		quantised := func(way string, threads int) string {
			o := options(t, s.Name, RTN, filepath.Join(t.TempDir(), "out"))
			o.Range = way
			m := open(t, nano, threads)
			if _, err := Model(ctx, m, calibration(t, m, 4, 64), o); err != nil {
				t.Fatal(err)
			}
			return o.Out
		}
		whole := source(t, quantised(RangeMinMax, 1))

		for _, way := range []string{RangeMSE, RangeImatrix} {
			t.Run(s.Name+"/"+way, func(t *testing.T) {
				folder := quantised(way, 2)
				sameFiles(t, folder, quantised(way, 3))

				if text := files(t, folder)["config.json"]; s.Layout != gptqLayout &&
					!strings.Contains(text, fmt.Sprintf("%q: %q", "observer", way)) {
					t.Errorf("the observer is not in %s", text)
				}

				searched := source(t, folder)
				for _, lin := range m.Linears(1) {
					p := 2.4
					var weight []float64
					if way == RangeImatrix {
						p = 3
						weight = meanSquares(t, importance, lin)
					}
					before := powerError(t, dense, whole, lin.Name, p, weight)
					after := powerError(t, dense, searched, lin.Name, p, weight)
					// Powers come from tables; and values are rounded to the type in which a folder is decoded.
					if after > before*(1+1e-3) {
						t.Errorf("%s: an error of %g, without a search %g", lin.Name, after, before)
					}
				}
			})
		}
	}
}

// meanSquares are those of the inputs of a matrix.
func meanSquares(t *testing.T, file *imatrix.File, lin lm.Linear) []float64 {
	t.Helper()
	role := map[string]string{
		"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
		"down": "ffn_down",
	}
	name := fmt.Sprintf("blk.%d.%s.weight", lin.Block, role[string(lin.Role)])
	for _, e := range file.Entries {
		if e.Name == name {
			out := make([]float64, len(e.Sums))
			for j, s := range e.Sums {
				out[j] = float64(s)
			}
			return out
		}
	}
	t.Fatalf("no entry for %s", name)
	return nil
}

// sameFiles holds two folders against each other.
func sameFiles(t *testing.T, a, b string) {
	t.Helper()
	x, y := files(t, a), files(t, b)
	if len(x) != len(y) {
		t.Errorf("%d files and %d", len(x), len(y))
	}
	for name, data := range x {
		if y[name] != data {
			t.Errorf("other bytes in %s", name)
		}
	}
}

// TestRangeWithGPTQ: GPTQ on searched ranges gives outputs that err less than by searched ranges alone.
func TestRangeWithGPTQ(t *testing.T) {
	for _, c := range []struct {
		scheme, way string
		late        bool
	}{{"w4a16", RangeMSE, false}, {"w4a16_asym", RangeImatrix, false}, {"w4a16", RangeMSE, true}} {
		m := open(t, nano, 2)
		o := options(t, c.scheme, GPTQ, filepath.Join(t.TempDir(), "out"))
		o.Range = c.way
		o.FitLate = c.late
		r, err := Model(ctx, m, calibration(t, m, 8, 64), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Total.OutputError > 0.8*r.Total.Rounded {
			t.Errorf("%+v: %g, and rounded alone %g", c, r.Total.OutputError, r.Total.Rounded)
		}
	}
}

// TestNames: a pattern names matrices by whole parts of their names.
func TestNames(t *testing.T) {
	const name = "model.layers.1.self_attn.q_proj"
	for pattern, want := range map[string]bool{
		name: true, "q_proj": true, "*_proj": true, "layers.1.*": true, "layers.1": true, "self_attn.?_proj": true,
		"model.layers.*.q_proj": true, "*": true,
		"q": false, "proj": false, "layers.10": false, "layer*.1": true, "ayers.1.*": false, "k_proj": false,
		"layers.1.q_proj": false,
	} {
		if names(pattern, name) != want {
			t.Errorf("%q names %s: %v", pattern, name, !want)
		}
	}
}

// TestDead: inputs that are 0 for all of the text lose their weights, with a remark, and do no harm to the rest.
func TestDead(t *testing.T) {
	m := open(t, nano, 2)
	norm, err := m.MutableParam("model.layers.1.input_layernorm.weight")
	if err != nil {
		t.Fatal(err)
	}
	raw := norm.Buf.Bytes()
	size := norm.DType().Size()
	clear(raw[5*size : 7*size]) // two inputs of q, k and v
	norm.Buf.Changed()

	o := options(t, "w4a16", GPTQ, filepath.Join(t.TempDir(), "out"))
	r, err := Model(ctx, m, calibration(t, m, 8, 64), o)
	if err != nil {
		t.Fatal(err)
	}
	const want = `6 inputs of 3 matrices were 0 for every calibration token, and their weights became 0; the first ` +
		`is of "model.layers.1.self_attn.q_proj.weight"`
	if len(r.Notes) != 1 || r.Notes[0] != want {
		t.Errorf("%q", r.Notes)
	}

	got := values(t, source(t, o.Out), "model.layers.1.self_attn.q_proj.weight")
	for i := 0; i < len(got); i += norm.Cols {
		if got[i+5] != 0 || got[i+6] != 0 {
			t.Fatalf("output %d: %g, %g", i/norm.Cols, got[i+5], got[i+6])
		}
	}
}
