package prune

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// extended is a formula that reads every terminal there is.
const extended = "expr:pdiv(W*W, Hi) * sqrt(X) + rnorm(W)*H + cnorm(W)*sqrt(Xv) + abs(Xm)*W + G*W + " +
	"Wr1*Wc1*W + Wr2*Wc2*W"

// everyOption are the choices that may be combined.
func everyOption(t testing.TB) (o struct {
	metrics      []Metric
	patterns     []Pattern
	groups       []Group
	allocations  []Allocation
	updates      []Update
	permutations []Permutation
},
) {
	t.Helper()

	for _, name := range append(MetricNames(), extended) {
		m, err := MetricByName(name)
		if err != nil {
			t.Fatal(err)
		}
		o.metrics = append(o.metrics, m)
	}

	o.patterns = []Pattern{{}, {2, 4}, {1, 3}, {5, 8}}
	o.groups = append([]Group{""}, groups...)
	for _, name := range allocations {
		a := Allocation{Name: name}
		if name == Search { // its defaults take long
			a.Generations, a.Offspring = 1, 2
		}
		o.allocations = append(o.allocations, a)
	}

	o.allocations = append(o.allocations, Allocation{Name: Alpha, Estimator: Hill})
	for _, name := range updates {
		o.updates = append(o.updates, Update{Name: name})
	}

	o.updates = append(o.updates, Update{}, Update{Name: ADMM, MaskSteps: 3, Steps: 4, Polish: 2},
		Update{Name: DSnoT, MLP: true, SameSign: true, Strict: true})
	o.permutations = permutations
	return o
}

// Any metric with any pattern, group, allocation, update and permutation: refused with a named error before
// anything runs, or done with about the sparsity that was asked for, finite weights, zeros where the mask says
// so, and the pattern everywhere.
func TestEveryCombination(t *testing.T) {
	all := everyOption(t)
	dirs := map[string]string{"nano": nano + "base"}
	for name, c := range map[string]*checkpoint{"llama": llama(2), "gpt2": gpt2(), "mixtral": mixtral()} {
		dirs[name] = c.write(t, filepath.Join(t.TempDir(), name), nil)
	}

	done, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		dir := rapid.SampledFrom([]string{"llama", "gpt2", "mixtral", "nano"}).Draw(rt, "model")
		o := Options{
			Metric:     rapid.SampledFrom(all.metrics).Draw(rt, "metric"),
			Pattern:    rapid.SampledFrom(all.patterns).Draw(rt, "pattern"),
			Allocation: rapid.SampledFrom(all.allocations).Draw(rt, "allocation"),
			Update:     rapid.SampledFrom(all.updates).Draw(rt, "update"),
		}

		if strange := rapid.IntRange(0, 5).Draw(rt, "strange") == 0; strange || o.Pattern.Structured() {
			o.Permutation = rapid.SampledFrom(all.permutations).Draw(rt, "permutation")
		} else if strange || !o.Pattern.Structured() {
			o.Group = rapid.SampledFrom(all.groups).Draw(rt, "group")
		}

		if !o.Pattern.Structured() {
			o.Sparsity = rapid.SampledFrom([]float64{0, .3, .5, .8}).Draw(rt, "sparsity")
		}

		if err := o.Validate(); err != nil {
			refused++
			if !errors.Is(err, ErrOptions) {
				rt.Fatalf("%v", err)
			}
			return
		}

		done++
		combine(rt, t, dirs[dir], o)
	})

	t.Logf("%d done, %d refused", done, refused)
}

func combine(rt *rapid.T, t *testing.T, dir string, o Options) {
	m := load(t, dir, 2, lm.Options{})
	defer m.Close()

	masks := map[string][]byte{}
	o.Events.Mask = func(name string, keep kernels.Mat) {
		masks[name] = append([]byte(nil), keep.Buf.Bytes()[keep.Off:keep.Off+keep.Len()]...)
	}
	r, err := Model(ctx, m, windows(3, 11, 61), o)
	if err != nil {
		if errors.Is(err, ErrOptions) { // what depends on the model or on its scores
			return
		}
		rt.Fatal(err)
	}

	for _, x := range r.Tensors {
		w := values(t, m, x.Name)
		for i, v := range w {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				rt.Fatalf("%s: element %d is %g", x.Name, i, v)
			}
			if mask := masks[x.Name]; mask != nil && mask[i] == 0 && v != 0 {
				rt.Fatalf("%s: element %d is masked and %g", x.Name, i, v)
			}
		}

		if x.Rank > 0 { // both parts of it are here, and no zeros
			continue
		}
		if err := nearTarget(x); err != nil {
			rt.Fatal(err)
		}
	}

	if o.Metric.splits {
		return
	}
	if o.Pattern.Structured() && o.Allocation.Name != OWLMixed && !r.Total.Exact {
		rt.Fatal("the report says the pattern is not exact")
	}
}

// nearTarget compares the sparsity of a matrix with what was asked for. Small matrices miss it by one weight a
// row or a block, short groups and shares of scores by more.
func nearTarget(x Tensor) error {
	slack := 0.1
	if x.Group == Share || x.Pattern.Structured() {
		slack = 0.35
	}
	if x.Dense || x.Dead > 0 || math.Abs(x.Sparsity-x.Target) <= slack {
		return nil
	}
	return fmt.Errorf("%s: sparsity %.3f, asked for %.3f", x.Name, x.Sparsity, x.Target)
}
