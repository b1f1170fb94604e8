package prune

import (
	"errors"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/maskfile"
)

// apart prunes a model into a folder and a file of factors.
func apart(t *testing.T, dir, out string, threads int, o Options) *Report {
	t.Helper()
	m := load(t, dir, threads, lm.Options{Stream: threads > 1})
	o.Factors = NewFactors(out+".factors", MaskOptions{})
	r := prunedTo(t, m, windows(4, 12, 61), o, out)
	if err := o.Factors.close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFactors: with the products of its factors added a sparse part is what the metric writes without a file for them;
// zeros, ranks and stored values are what the share asks for, in every layout of weights.
func TestFactors(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(2), "gpt2": gpt2(), "mixtral": mixtral()} {
		for _, p := range []Pattern{{}, {2, 4}} {
			o := Options{Metric: OATS(), Pattern: p, LowRank: LowRank{Share: .3, Turns: 4}}
			if !p.Structured() {
				o.Sparsity = .5
			}

			tmp := t.TempDir()
			dir := c.write(t, filepath.Join(tmp, name), nil)
			r := apart(t, dir, filepath.Join(tmp, "apart"), 1, o)
			prunedTo(t, load(t, dir, 1, lm.Options{}), windows(4, 12, 61), o, filepath.Join(tmp, "merged"))

			one := load(t, filepath.Join(tmp, "apart"), 1, lm.Options{})
			sum := load(t, filepath.Join(tmp, "merged"), 1, lm.Options{})
			f := NewFactors(filepath.Join(tmp, "apart.factors"), MaskOptions{})
			stored := int64(0)
			for i, lin := range allLinears(one) {
				x := r.Tensors[i]
				if x.Name != lin.Name || x.Rank == 0 {
					t.Fatalf("%s %s: %+v", name, p, x)
				}
				stored += x.Stored
				budget := .5 * float64(lin.In*lin.Out)
				if float64(x.Stored) > budget && !p.Structured() || !p.Structured() && float64(x.Stored) < .9*budget ||
					x.Stored < x.Kept || x.Split == nil || x.Split.Last > x.Split.First {
					t.Errorf("%s %s: %+v, budget %g", name, p, x, budget)
				}
				if lin.Block > 0 {
					continue // later blocks see the sums in the weights' type, which is not their type on the disk
				}

				a, b, err := f.Pair(lin.Name)
				if err != nil {
					t.Fatal(err)
				}
				got, want := outputsFirst(t, one, lin), outputsFirst(t, sum, lin)
				for i := range got {
					for j := range got[i] {
						x := float64(got[i][j])
						for k := range a.Rows {
							x += float64(b.RowF32(i)[k]) * float64(a.RowF32(k)[j])
						}
						if math.Abs(x-float64(want[i][j])) > .02*(math.Abs(x)+.1) {
							t.Fatalf("%s %s: %s [%d, %d]: %g, merged %g", name, p, lin.Name, i, j, x, want[i][j])
						}
					}
				}
			}
			if err := f.close(); err != nil || r.Total.Stored != stored {
				t.Errorf("%s %s: %d values, %d in total, %v", name, p, stored, r.Total.Stored, err)
			}
		}
	}
}

// TestFactorsOfAFinishedRun: a run that is gone on with after its end has the factors, as long as they are there.
func TestFactorsOfAFinishedRun(t *testing.T) {
	tmp := t.TempDir()
	dir := llama(2).write(t, filepath.Join(tmp, "in"), nil)
	out := filepath.Join(tmp, "out")
	o := Options{Metric: OATS(), Sparsity: .5, LowRank: LowRank{Turns: 3}}
	apart(t, dir, out, 1, o)

	for _, gone := range []bool{false, true} {
		m := load(t, dir, 1, lm.Options{})
		var err error
		if o.Out, err = m.NewSaver(out, lm.SaveOptions{Fingerprint: "test", Resume: true}); err != nil {
			t.Fatal(err)
		}
		o.Factors = NewFactors(out+".factors", MaskOptions{Resume: true})
		r, err := Model(ctx, m, windows(4, 12, 61), o)
		if err != nil || r.Total.Restored != r.Total.Matrices || o.Factors.Gone() != gone {
			t.Fatalf("gone %t: %v, %+v", gone, err, r)
		}
		if gone {
			break
		}
		if _, _, err := o.Factors.Pair(r.Tensors[0].Name); err != nil || r.Tensors[0].Rank == 0 {
			t.Errorf("%+v: %v", r.Tensors[0], err)
		}
		if err := o.Factors.Remove(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFactorsDamaged: finished factors are compared with their checksums until they are removed, and a run that starts
// over beside damaged ones writes what one without them does.
func TestFactorsDamaged(t *testing.T) {
	tmp := t.TempDir()
	dir := llama(2).write(t, filepath.Join(tmp, "in"), nil)
	clean, out := filepath.Join(tmp, "clean"), filepath.Join(tmp, "out")
	o := Options{Metric: OATS(), Sparsity: .5, LowRank: LowRank{Turns: 3}}
	apart(t, dir, clean, 1, o)
	r := apart(t, dir, out, 1, o)

	damaged := r.Tensors[0].Name + ".B"
	if err := setBytes(out+".factors", damaged, 0x3f); err != nil {
		t.Fatal(err)
	}

	again := func(resume bool) error {
		m := load(t, dir, 1, lm.Options{})
		var err error
		if o.Out, err = m.NewSaver(out,
			lm.SaveOptions{Fingerprint: "test", Resume: resume, Overwrite: !resume}); err != nil {
			t.Fatal(err)
		}
		o.Factors = NewFactors(out+".factors", MaskOptions{Resume: resume, Overwrite: !resume})
		if _, err = Model(ctx, m, windows(4, 12, 61), o); err != nil {
			return errors.Join(err, o.Factors.Suspend(), o.Out.Suspend())
		}
		return nil
	}
	if err := again(true); !errors.Is(err, maskfile.ErrDamaged) || !strings.Contains(err.Error(), damaged) {
		t.Errorf("damaged factors: %v", err)
	}
	if err := again(false); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"", ".factors"} {
		if !maps.Equal(tensorsOf(t, clean+end), tensorsOf(t, out+end)) {
			t.Errorf("%s differs from that of a run of its own", filepath.Base(out)+end)
		}
	}

	// Neither a fault afterwards nor a run that goes on loses the checksums.
	if err := errors.Join(o.Factors.Abort(), again(true), o.Factors.Remove()); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(tmp, ".*")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v; want the other run's checksums", left, err)
	}
}

func allLinears(m *lm.Model) (list []lm.Linear) {
	for b := range m.Blocks() {
		list = append(list, m.Linears(b)...)
	}
	return list
}

// outputsFirst are the values of a matrix, by outputs.
func outputsFirst(t *testing.T, m *lm.Model, l lm.Linear) [][]float32 {
	t.Helper()
	w, err := m.Param(l.Name)
	if err == nil && l.Transposed {
		w, err = hostmat.Transposed(m.Device(), w)
	}
	if err == nil {
		w, err = hostmat.F32(m.Device(), w)
	}
	if err != nil {
		t.Fatal(err)
	}

	rows := make([][]float32, w.Rows)
	for i := range rows {
		rows[i] = w.RowF32(i)
	}
	return rows
}

// TestFactorsNeedNoThreads: any number of threads, streamed or not, gives the same bytes of weights and factors.
func TestFactorsNeedNoThreads(t *testing.T) {
	tmp := t.TempDir()
	dir := llama(3).write(t, filepath.Join(tmp, "in"), nil)
	o := Options{Metric: OATS(), Sparsity: .5, LowRank: LowRank{Turns: 3}}
	apart(t, dir, filepath.Join(tmp, "one"), 1, o)
	apart(t, dir, filepath.Join(tmp, "two"), 2, o)
	for _, name := range []string{"one", "two"} {
		for key, value := range tensorsOf(t, filepath.Join(tmp, "one.factors")) {
			if other := tensorsOf(t, filepath.Join(tmp, name+".factors")); other[key] != value {
				t.Errorf("%s: other factors %s", name, key)
			}
		}
		for key, value := range tensorsOf(t, filepath.Join(tmp, "one")) {
			if other := tensorsOf(t, filepath.Join(tmp, name)); other[key] != value {
				t.Errorf("%s: another %s", name, key)
			}
		}
	}
}

// TestLowRankRefused: what the metric does not go with, and what goes with it alone.
func TestLowRankRefused(t *testing.T) {
	for text, o := range map[string]Options{
		"alone makes":    {Sparsity: .5, LowRank: LowRank{Share: .2}},
		"more than 0":    {Metric: OATS(), Sparsity: .5, LowRank: LowRank{Share: 1}},
		"0 and less":     {Metric: OATS(), Sparsity: .5, LowRank: LowRank{Share: math.NaN()}},
		"-1 turns":       {Metric: OATS(), Sparsity: .5, LowRank: LowRank{Turns: -1}},
		"group layer":    {Metric: OATS(), Sparsity: .5, Group: Layer},
		"with swaps":     {Metric: OATS(), Sparsity: .5, Swaps: 1},
		"update exact":   {Metric: OATS(), Sparsity: .5, Update: Update{Name: Exact}},
		"sequential":     {Metric: OATS(), Sparsity: .5, TrueSequential: true},
		"beside weights": {Metric: OATS(), Sparsity: .5, Factors: NewFactors("f", MaskOptions{})},
		"file of low":    {Sparsity: .5, Factors: NewFactors("f", MaskOptions{})},
	} {
		if err := o.Validate(); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
