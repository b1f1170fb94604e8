package prune

import (
	"context"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// collect gathers masks and squares of a run.
func collect(t *testing.T, dir string, o Options, measured bool) (masks map[string]string, squares map[string]Squares) {
	t.Helper()
	masks, squares = map[string]string{}, map[string]Squares{}
	o.Events.Mask = func(name string, keep kernels.Mat) {
		masks[name] = string(keep.Buf.Bytes()[keep.Off : keep.Off+keep.Len()])
	}
	calib := windows(5, 12, 61)
	if measured {
		o.Squares = func(name string, s Squares) { squares[name] = s }
	} else {
		calib.IDs = nil
	}
	if _, err := Model(ctx, load(t, dir, 2, lm.Options{}), calib, o); err != nil {
		t.Fatal(err)
	}
	return masks, squares
}

// TestNorms: what a run has measured, given to another one without any data, leads to the same masks, for every metric
// that needs the squares alone, dense layers and mixtures, and so does what a run of another metric has measured of the
// first block.
func TestNorms(t *testing.T) {
	formula, err := MetricByName("expr:W * sqrt(X)")
	if err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{
		"llama":   llama(3).write(t, filepath.Join(t.TempDir(), "llama"), nil),
		"mixtral": mixtral().write(t, filepath.Join(t.TempDir(), "mixtral"), nil),
		"other":   filepath.Join("..", "lm", "testdata", "families", "starcoder2"),
	} {
		for _, o := range []Options{
			{Metric: Wanda(), Sparsity: .5},
			{Metric: Wanda(), Pattern: Pattern{2, 4}},
			{Metric: WandaVariant(), Sparsity: .5},
			{Metric: RIA(), Sparsity: .4},
			{Metric: formula, Sparsity: .5},
		} {
			want, squares := collect(t, dir, o, true)
			given := o
			given.Norms = &Norms{From: "test", Sequences: 5, Inputs: squares}
			have, _ := collect(t, dir, given, false)
			if len(want) == 0 || !maps.Equal(want, have) {
				t.Errorf("%s, %s: other masks", name, o.Metric.Name)
			}
		}
	}
}

// TestNormsAllocate: sparsities by outliers are computed of norms that are given, and those of the dense model are the
// run's own.
func TestNormsAllocate(t *testing.T) {
	dir := llama(3).write(t, filepath.Join(t.TempDir(), "m"), nil)
	dense := Options{Metric: Wanda(), Sparsity: 0, Pattern: Pattern{}}
	_, squares := collect(t, dir, dense, true) // nothing goes, so that all is of the dense model
	o := Options{Metric: Wanda(), Sparsity: .5, Allocation: Allocation{Name: OWL, M: 2}}

	want, err := Model(ctx, load(t, dir, 1, lm.Options{}), windows(5, 12, 61), o)
	if err != nil {
		t.Fatal(err)
	}
	o.Norms = &Norms{From: "test", Sequences: 5, Inputs: squares}
	have, err := Model(ctx, load(t, dir, 1, lm.Options{}), windows(0, 0, 61), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want.Blocks {
		if want.Blocks[i].Target != have.Blocks[i].Target || want.Blocks[i].Target == .5 {
			t.Errorf("block %d: sparsity %g, want %g", i, have.Blocks[i].Target, want.Blocks[i].Target)
		}
	}
}

// TestNormsRefused: what needs more than squares is refused, and so are norms of other models.
func TestNormsRefused(t *testing.T) {
	dir := llama(2).write(t, filepath.Join(t.TempDir(), "m"), nil)
	_, squares := collect(t, dir, Options{Metric: Wanda(), Sparsity: .5}, true)
	const one = "model.layers.1.mlp.down_proj.weight"

	with := func(change func(o *Options)) error {
		o := Options{
			Metric: Wanda(), Sparsity: .5,
			Norms: &Norms{From: "some.gguf", Sequences: 1, Inputs: maps.Clone(squares)},
		}
		change(&o)
		return Check(ctx, load(t, dir, 1, lm.Options{}), windows(0, 0, 61), o)
	}
	for _, c := range []struct {
		change func(o *Options)
		is     error
		want   string
	}{
		{func(o *Options) { o.Metric = SparseGPT() }, ErrOptions, "metric sparsegpt needs more"},
		{func(o *Options) { o.Update.Name = SparseGPTUpdate }, ErrOptions, "update sparsegpt needs more"},
		{func(o *Options) { o.Squares = func(string, Squares) {} }, ErrOptions, "are measured"},
		{func(o *Options) { delete(o.Norms.Inputs, one) }, ErrNorms, "1 of 14 matrices"},
		{func(o *Options) {
			o.Norms.Inputs[one] = Squares{Sums: make([]float64, 3), Tokens: 1}
		}, ErrNorms, "3 sums for 44 inputs"},
		{func(o *Options) {
			bad := slices.Clone(squares[one].Sums)
			bad[7] = math.NaN()
			o.Norms.Inputs[one] = Squares{Sums: bad, Tokens: 1}
		}, ErrNorms, "input 7 is NaN"},
	} {
		if err := with(c.change); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if err := with(func(*Options) {}); err != nil {
		t.Error(err)
	}

	sequential := Options{
		Metric: Wanda(), Sparsity: .5, TrueSequential: true, Squares: func(string, Squares) {},
	}
	if err := sequential.Validate(); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
}

// TestSquaresResumed: blocks that an interrupted run has finished are measured for the caller as if they had not been.
func TestSquaresResumed(t *testing.T) {
	dir := llama(3).write(t, filepath.Join(t.TempDir(), "m"), nil)
	calib := windows(4, 12, 61)
	run := func(out string, resume bool, stop int) (map[string]Squares, error) {
		squares := map[string]Squares{}
		m := load(t, dir, 1, lm.Options{})
		s, err := m.NewSaver(out, lm.SaveOptions{Fingerprint: "test", Resume: resume})
		if err != nil {
			t.Fatal(err)
		}
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		o := Options{
			Metric: Wanda(), Sparsity: .5, Out: s, Squares: func(name string, q Squares) { squares[name] = q },
			Events: Events{Tensor: func(Tensor) {
				if stop--; stop == 0 {
					cancel()
				}
			}},
		}
		_, err = Model(within, m, calib, o)
		if err != nil {
			err = errors.Join(err, s.Suspend())
		}
		return squares, err
	}

	out := filepath.Join(t.TempDir(), "out")
	if _, err := run(out, false, 9); err == nil {
		t.Fatal("it was not interrupted")
	}
	have, err := run(out, true, -1)
	if err != nil {
		t.Fatal(err)
	}
	want, err := run(filepath.Join(t.TempDir(), "other"), false, -1)
	if err != nil {
		t.Fatal(err)
	}
	for name, w := range want {
		if !slices.Equal(w.Sums, have[name].Sums) || w.Tokens != have[name].Tokens {
			t.Errorf("%s: other squares", name)
		}
	}
}
