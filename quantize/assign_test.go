package quantize

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/corpus"
)

// TestSensitivities: what gradients say of the error of one matrix is what the model's predictions lose by it when it
// is measured: the order of matrices, and the figures within a factor.
func TestSensitivities(t *testing.T) {
	m := open(t, nano, 2)
	dense := open(t, nano, 2)
	calib := calibration(t, m, 8, 128)
	c, err := newCandidates(ctx, m, AssignOptions{
		Levels: []string{"q4_0", "q8_0"}, BitsPerWeight: 6, Step: func(AssignStep) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.weigh(ctx, calib); err != nil {
		t.Fatal(err)
	}

	base, err := dense.NewBaseline(ctx, calib, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Free()

	var predicted, measured []float64
	for i, p := range c.parts {
		j := &judge{candidates: c, now: slices.Repeat([]int{-1}, len(c.parts))}
		choice := slices.Clone(j.now)
		choice[i] = 0
		if err := j.apply(ctx, choice); err != nil {
			t.Fatal(err)
		}
		d, err := base.Compare(ctx, m, nil)
		if err != nil {
			t.Fatal(err)
		}
		j.restore()
		predicted = append(predicted, c.problem.Parts[i][0].Loss)
		measured = append(measured, d.KL)
		if ratio := c.problem.Parts[i][0].Loss / d.KL; ratio < 0.1 || ratio > 10 {
			t.Errorf("%s: predicted %g, measured %g", p.names[0], c.problem.Parts[i][0].Loss, d.KL)
		}
	}
	if rho := stats.Spearman(predicted, measured); rho < 0.8 || len(measured) != 29 {
		t.Errorf("rank correlation %.2f of %d matrices", rho, len(measured))
	}

	if d, err := base.Compare(ctx, m, nil); err != nil || d.KL > 1e-9 {
		t.Errorf("the model was left %v from its files, %v", d, err)
	}
}

// TestAssignFile: the file that an assignment makes takes what it says, which is within the budget and less than a
// uniform file that costs as much; what is fixed is not chosen for.
func TestAssignFile(t *testing.T) {
	m := open(t, nano, 2)
	calib := calibration(t, m, 4, 128)
	var err error
	for _, o := range []AssignOptions{
		{Levels: []string{"q4_0", "q5_0", "q8_0"}, BitsPerWeight: 5.5},
		{Levels: []string{"q4_k", "q6_k", "f16"}, Bytes: 400_000}, // its rows have other types
		{
			Levels: []string{"q4_0", "q8_0"}, BitsPerWeight: 6,
			Fixed: []TypeRule{{Pattern: "blk.*.attn_v.weight", Type: "f16"}},
		},
	} {
		if len(o.Fixed) > 0 {
			if o.Importance, err = Importance(ctx, m, calib, "text", nil); err != nil {
				t.Fatal(err)
			}
		}
		a, err := Assign(ctx, m, calib, o)
		if err != nil {
			t.Fatal(err)
		}
		if o.Bytes > 0 && a.Bytes > o.Bytes || o.Bytes == 0 && a.Bits > o.BitsPerWeight {
			t.Errorf("%d bytes, %g bits a weight", a.Bytes, a.Bits)
		}
		for _, u := range a.Uniform {
			if u.Bytes <= a.Bytes && u.Predicted < a.Predicted && len(o.Fixed) == 0 {
				t.Errorf("all %s costs %g, less than %g", u.Level, u.Predicted, a.Predicted)
			}
		}

		f := a.FileOptions(FileOptions{Out: filepath.Join(t.TempDir(), "x.gguf")})
		r, err := File(ctx, nano, f)
		if err != nil {
			t.Fatal(err)
		}
		if r.Total.Bytes != a.Bytes || math.Abs(r.Total.BitsPerWeight-a.Bits) > 1e-9 {
			t.Errorf("the file takes %d bytes, %g bits a weight; said were %d and %g", r.Total.Bytes,
				r.Total.BitsPerWeight, a.Bytes, a.Bits)
		}
		for _, one := range r.Tensors {
			if fixed := strings.HasSuffix(one.Name, "attn_v.weight") && len(o.Fixed) > 0; fixed && one.Type != "F16" {
				t.Errorf("%s has %s", one.Name, one.Type)
			}
		}
	}
}

// TestAssignFolder: the same for folders; matrices that runtimes run as one get one scheme, and with groups of a size
// every scheme keeps its own.
func TestAssignFolder(t *testing.T) {
	m := open(t, nano, 2)
	calib := calibration(t, m, 4, 128)
	for _, o := range []AssignOptions{
		{Levels: []string{"w4a16", "w8a16", Keep}, BitsPerWeight: 6.5, Group: 32},
		{Levels: []string{"mxfp4a16", "fp8_dynamic"}, Bytes: 500_000, Ignore: []string{"o_proj"}},
	} {
		a, err := Assign(ctx, m, calib, o)
		if err != nil {
			t.Fatal(err)
		}

		out := filepath.Join(t.TempDir(), "out")
		r, err := Model(ctx, m, corpus.Windows{}, a.FolderOptions(Options{Out: out}))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "vLLM") }) {
			t.Errorf("%q", r.Notes)
		}
		if o.Bytes > 0 && (r.Total.BytesOut != a.Bytes || a.Bytes > o.Bytes) {
			t.Errorf("the folder takes %d bytes; said were %d of %d", r.Total.BytesOut, a.Bytes, o.Bytes)
		}
		if o.Bytes == 0 {
			kept := int64(0)
			for _, p := range a.Parts {
				if p.Level == Keep {
					kept += p.Bytes
				}
			}
			got := 8 * float64(r.Total.Bits/8+kept) / 405504
			if math.Abs(got-a.Bits) > 1e-9 || a.Bits > o.BitsPerWeight || r.Total.BytesOut != a.Bytes {
				t.Errorf("the matrices take %g bits a weight, all %d bytes; said were %g and %d", got, r.Total.BytesOut,
					a.Bits, a.Bytes)
			}
		}

		src, err := weights.Open(ctx, out)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		levels := map[string]string{}
		for _, p := range a.Parts {
			for _, name := range p.Names {
				levels[name+".weight"] = p.Level
			}
		}
		for _, one := range r.Matrices {
			if levels[one.Name] != one.Scheme {
				t.Errorf("%s was to be %q and is %q", one.Name, levels[one.Name], one.Scheme)
			}
		}
	}
}

// TestAssignSearch: a search ends no worse than it began, comes to the same end with another number of threads and from
// what an interrupted one has noted, without measuring that again, and leaves the model as it was.
func TestAssignSearch(t *testing.T) {
	o := AssignOptions{
		Levels: []string{"q4_0", "q5_0", "q8_0"}, BitsPerWeight: 5.2, By: BySearch, Generations: 6, Offspring: 6,
		Seed: 3,
	}
	run := func(threads int, known map[string]float64) (*Assignment, map[string]float64) {
		m := open(t, nano, threads)
		name := m.Linears(0)[0].Name
		before := elements(t, m, name)
		calib := calibration(t, m, 8, 64)
		fresh := map[string]float64{}
		o.Known = func(key string) (float64, bool) { v, ok := known[key]; return v, ok }
		o.Note = func(key string, v float64) error {
			if _, twice := fresh[key]; twice {
				t.Errorf("%s was measured twice", key)
			}
			fresh[key] = v
			return nil
		}
		a, err := Assign(ctx, m, calib, o)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(elements(t, m, name), before) {
			t.Error("the search has left its values in the model")
		}
		return a, fresh
	}

	a, noted := run(2, nil)
	if *a.Measured > *a.Start || a.Bits > o.BitsPerWeight || len(noted) < 10 {
		t.Errorf("from %g to %g in %g bits, %d measured", *a.Start, *a.Measured, a.Bits, len(noted))
	}
	half := map[string]float64{}
	for key, v := range noted {
		if len(half) < len(noted)/2 {
			half[key] = v
		}
	}
	b, more := run(1, half)
	if !reflect.DeepEqual(a.Parts, b.Parts) || *a.Measured != *b.Measured || len(more)+len(half) != len(noted) {
		t.Errorf("%g and %g, %d and %d of %d measured", *a.Measured, *b.Measured, len(half), len(more), len(noted))
	}
}

func elements(t *testing.T, m interface {
	Param(string) (kernels.Mat, error)
}, name string,
) []byte {
	t.Helper()
	w, err := m.Param(name)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(w.Buf.Bytes())
}

// TestAssignRefuses: budgets that nothing fits are told before the work, with the one that would do; levels of two
// kinds, unknown ones and the like.
func TestAssignRefuses(t *testing.T) {
	m := open(t, nano, 1)
	calib := calibration(t, m, 1, 32)
	two := []string{"q4_0", "q8_0"}
	for _, c := range []struct {
		o    AssignOptions
		want error
		says string
	}{
		{AssignOptions{Levels: two, BitsPerWeight: 3}, ErrBudget, "everything q4_0, is 4.550"},
		{AssignOptions{Levels: []string{"w4a16", "w8a16"}, Group: 32, Bytes: 1000}, ErrBudget, "everything w4a16"},
		{AssignOptions{Levels: two[:1], BitsPerWeight: 5}, ErrOptions, "two or more"},
		{AssignOptions{Levels: []string{"q4_0", "q4_0"}, BitsPerWeight: 5}, ErrOptions, "twice"},
		{AssignOptions{Levels: []string{"q4_0", "w8a16"}, BitsPerWeight: 5}, ErrOptions, "schemes of folders"},
		{AssignOptions{Levels: []string{"q4_0", "q9_0"}, BitsPerWeight: 5}, ErrOptions, `"q9_0"; known: `},
		{AssignOptions{Levels: []string{"gptq", "w8a16"}, BitsPerWeight: 5}, ErrOptions, "layout of GPTQ"},
		{AssignOptions{Levels: two}, ErrOptions, "want one of them"},
		{AssignOptions{Levels: two, Bytes: 1, BitsPerWeight: 1}, ErrOptions, "want one of them"},
		{AssignOptions{Levels: two, BitsPerWeight: math.NaN()}, ErrOptions, "NaN bits"},
		{AssignOptions{Levels: two, BitsPerWeight: 6, By: "luck"}, ErrOptions, "sensitivity, search"},
		{AssignOptions{Levels: two, BitsPerWeight: 6, Generations: 3}, ErrOptions, "belong to search"},
		{
			AssignOptions{Levels: two, BitsPerWeight: 6, Fixed: []TypeRule{{"x", "q8_0"}}},
			ErrOptions,
			`no matrix is named like "x"`,
		},
		{AssignOptions{Levels: []string{"w4a16", "w8a16"}, BitsPerWeight: 6}, ErrLayout, "128"},
	} {
		if _, err := Assign(ctx, m, calib, c.o); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}

	_, err := Assign(ctx, m, corpus.Windows{}, AssignOptions{Levels: two, BitsPerWeight: 6})
	if !errors.Is(err, ErrNoCalibration) {
		t.Errorf("without text: %v", err)
	}
	single := corpus.Windows{IDs: [][]int32{{5}, {7}}}
	_, err = Assign(ctx, m, single, AssignOptions{Levels: two, BitsPerWeight: 6})
	if !errors.Is(err, corpus.ErrShort) {
		t.Errorf("sequences of one token: %v", err)
	}
	if entries, err := os.ReadDir("-"); err == nil {
		t.Errorf("a folder was made, with %d entries", len(entries))
	}
}
