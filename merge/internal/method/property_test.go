package method_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// sample is a problem of a method on a random base and models near it, with what the method requires; false for those
// that read statistics, or take a single model over.
func sample(t *testing.T, name string, rng *rand.Rand) (problem, bool) {
	t.Helper()
	m, err := method.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	if m.Stat != "" || name == "passthrough" {
		return problem{}, false
	}

	p := problem{method: name, shape: []int64{12, 20}, params: recipe.Values{}, seed: 3}
	n := p.shape[0] * p.shape[1]
	base := make([]float32, n)
	for i := range base {
		base[i] = float32(rng.NormFloat64())
	}

	inputs := 3
	if m.Spec.Base != recipe.BaseIgnored {
		p.base = base
		inputs = 2
	}
	if most := m.Spec.MaxModels; most > 0 && m.Spec.Base != recipe.BaseIgnored {
		inputs = min(inputs, most)
	}
	if most := m.Spec.MaxInputs; most > 0 && m.Spec.Base != recipe.BaseIgnored {
		inputs = min(inputs, most-1)
	} else if most > 0 {
		inputs = min(inputs, most)
	}

	for range inputs {
		x := make([]float32, n)
		for i := range x {
			x[i] = base[i] + float32(0.1*rng.NormFloat64())
		}
		p.models = append(p.models, x)
	}

	each := recipe.Values{}
	for _, param := range m.Spec.Params {
		if param.Default != nil || !param.Required {
			continue
		}
		if param.Scope == recipe.Shared {
			p.params[param.Name] = num(0.5)
		} else {
			each[param.Name] = num(0.5)
		}
	}
	p.each = func(int) recipe.Values { return each }

	return p, true
}

// TestEqualModelsStay: what is merged of models that are all the same is that model, by every method.
func TestEqualModelsStay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, name := range method.Names() {
		p, ok := sample(t, name, rng)
		if !ok {
			continue
		}

		for i := range p.models {
			p.models[i] = p.models[0]
		}
		if p.base != nil {
			p.base = p.models[0]
		}

		for i, v := range p.solve(t) {
			if want := p.models[0][i]; math.Abs(float64(v-want)) > 1e-5 {
				t.Errorf("%s: element %d is %v, want %v", name, i, v, want)
				break
			}
		}
	}
}

// TestScaleOfModels: models that are all twice as large give a result twice as large. Left out are the methods whose
// parameters or formulas have an absolute scale: nearswap's t, the softmax of arcee_fusion, pcb's tanh and the steps of
// wudi.
func TestScaleOfModels(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	double := func(x []float32) []float32 {
		out := slices.Clone(x)
		for i := range out {
			out[i] *= 2
		}
		return out
	}

	for _, name := range method.Names() {
		p, ok := sample(t, name, rng)
		absolute := []string{"nearswap", "arcee_fusion", "pcb", "wudi"}
		if !ok || slices.Contains(absolute, name) {
			continue
		}

		once := p.solve(t)
		for i, x := range p.models {
			p.models[i] = double(x)
		}
		if p.base != nil {
			p.base = double(p.base)
		}

		for i, v := range p.solve(t) {
			if want := 2 * once[i]; math.Abs(float64(v-want)) > 2e-5 { // decompositions and angles are not exact
				t.Errorf("%s: element %d is %v, want %v", name, i, v, want)
				break
			}
		}
	}
}

// TestOrderOfModels: methods whose formula is symmetric in the models give the same whichever comes first; sums run in
// another order.
func TestOrderOfModels(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, name := range []string{
		"linear", "task_arithmetic", "ties", "breadcrumbs", "sce", "karcher", "multislerp", "model_stock", "magmax",
		"iso_c", "consensus", "ram",
	} {
		p, ok := sample(t, name, rng)
		if !ok || len(p.models) < 2 {
			t.Fatalf("%s: nothing to exchange", name)
		}

		want := p.solve(t)
		slices.Reverse(p.models)
		for i, v := range p.solve(t) {
			if math.Abs(float64(v-want[i])) > 1e-4 {
				t.Errorf("%s: element %d is %v, want %v", name, i, v, want[i])
				break
			}
		}
	}
}

// TestPlacesOfElements: methods that treat a tensor as a list of elements follow a permutation of these.
func TestPlacesOfElements(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, name := range []string{
		"linear", "slerp", "task_arithmetic", "ties", "breadcrumbs", "breadcrumbs_ties", "sce", "karcher", "multislerp",
		"model_stock", "magmax", "nearswap", "bitdelta", "emr", "pcb", "consensus", "ram",
	} {
		p, _ := sample(t, name, rng)
		want := p.solve(t)
		order := rng.Perm(len(want))
		permuted := func(x []float32) []float32 {
			out := make([]float32, len(x))
			for i, from := range order {
				out[i] = x[from]
			}
			return out
		}

		for i, x := range p.models {
			p.models[i] = permuted(x)
		}
		if p.base != nil {
			p.base = permuted(p.base)
		}

		for i, v := range p.solve(t) {
			if x := want[order[i]]; math.Abs(float64(v-x)) > 1e-5 {
				t.Errorf("%s: element %d is %v, want %v", name, i, v, x)
				break
			}
		}
	}
}
