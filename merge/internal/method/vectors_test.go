package method_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// The tensors of the vectors below; all values are exact in bfloat16.
var (
	vBase = []float32{0.5, -0.25, 0.125, 1.0, -1.0, 0.75, 0.0, 0.25}
	vOnes = [][]float32{
		{0.75, -0.25, 0.625, 0.5, -0.5, 0.75, -0.125, 0.3125},
		{0.25, -0.75, 0.25, 0.875, -1.75, 1.0, 0.25, 0.25},
		{1.0, -0.5, 0.0, 1.125, -1.0, 0.25, 0.375, -0.25},
	}
	vWeights = []float64{0.5, 0.3, 0.4}
)

// memory is a sink in memory.
type memory struct {
	mu   sync.Mutex
	data map[string][]byte
}

// Position implements [stream.Sink].
func (m *memory) Position(string) int64 { return 0 }

func (m *memory) WriteAt(name string, p []byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if need := off + int64(len(p)); int64(len(m.data[name])) < need {
		m.data[name] = append(m.data[name], make([]byte, need-int64(len(m.data[name])))...)
	}
	copy(m.data[name][off:], p)
	return nil
}

// problem is a tensor to merge in memory.
type problem struct {
	method string
	base   []float32 // nil: none
	models [][]float32
	each   func(i int) recipe.Values // parameters of input i
	params recipe.Values
	shape  []int64
	stat   [][]float32
	shapes [][]int64 // of the statistics
	work   int
	seed   uint64
	half   bool // the models are bfloat16, and so is the result; values that are not finite are allowed
	skew   int  // bytes by which they are off their alignment
	drawn  bool // draws break ties
}

func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// solve merges it.
func (p problem) solve(t testing.TB) []float32 {
	t.Helper()
	out, err := p.try()
	if err != nil {
		t.Fatalf("%s: %v", p.method, err)
	}
	return out
}

func (p problem) try() ([]float32, error) {
	m, err := method.Find(p.method)
	if err != nil {
		return nil, err
	}

	source := func(x []float32) stream.Source {
		if p.half {
			return halfSource(x, p.skew)
		}
		s, err := stream.NewMapped(bytesOf(x), safetensors.F32, 0, nil)
		if err != nil {
			panic(err)
		}
		return s
	}

	n := int64(len(p.models[0]))
	if p.shape == nil {
		p.shape = []int64{n}
	}

	tensor := &method.Tensor{
		Name: "w", Shape: p.shape, N: n, Base: p.base != nil,
		Params: p.defaults(m, p.params, recipe.Shared), Seed: [2]uint64{p.seed, 7}, RandomTies: p.drawn,
	}
	it := &stream.Item{Tensor: tensor, DType: safetensors.F32}
	if p.half {
		it.DType = safetensors.BF16
	}

	for i, x := range p.models {
		var v recipe.Values
		if p.each != nil {
			v = p.each(i)
		}

		in := method.Input{Model: i, Name: fmt.Sprint("m", i+1), Params: p.defaults(m, v, recipe.PerModel)}
		if p.stat != nil && p.stat[i] != nil {
			in.Stat = p.shapes[i]
			it.Stat = append(it.Stat, source(p.stat[i]))
		} else if p.stat != nil {
			it.Stat = append(it.Stat, nil)
		}

		tensor.Inputs = append(tensor.Inputs, in)
		it.X = append(it.X, source(x))
		it.Models = append(it.Models, in.Name)
	}

	it.Models = append(it.Models, "base")
	if p.base != nil {
		it.Base = source(p.base)
	}

	prog, err := m.New([]*method.Tensor{tensor})
	if err != nil {
		return nil, err
	}

	sink := &memory{data: map[string][]byte{}}
	if _, err := stream.Run(context.Background(), []stream.Group{{Items: []*stream.Item{it}, Program: prog}}, sink,
		stream.Options{Threads: max(1, p.work), AllowNonFinite: p.half}); err != nil {
		return nil, err
	}

	out := make([]float32, n)
	if p.half {
		for i := range out {
			out[i] = kernels.FromBF16(binary.LittleEndian.Uint16(sink.data["w"][2*i:]))
		}
		return out, nil
	}

	copy(bytesOf(out), sink.data["w"])
	return out, nil
}

// defaults completes parameters by those of the table.
func (p problem) defaults(m *method.Method, v recipe.Values, scope recipe.Scope) recipe.Values {
	full := recipe.Values{}
	for _, param := range m.Spec.Params {
		if shared := param.Scope == recipe.Shared; param.Default != nil && shared == (scope == recipe.Shared) {
			full[param.Name] = *param.Default
		}
	}

	for name, value := range v {
		full[name] = value
	}

	return full
}

func num(x float64) recipe.Value { return *recipe.NumberValue(x) }

func truth(x bool) recipe.Value { return *recipe.BoolValue(x) }

// weighted gives every input its weight and more.
func weighted(more recipe.Values) func(int) recipe.Values {
	return func(i int) recipe.Values {
		v := recipe.Values{"weight": num(vWeights[i])}
		for name, value := range more {
			v[name] = value
		}
		return v
	}
}

// TestVectors compares with results computed in float64 from the formulas, to six decimals. Among equal
// magnitudes at a cut the lower index is kept.
func TestVectors(t *testing.T) {
	two := vOnes[:2]
	all := append([][]float32{vBase}, vOnes...)
	fisherF := [][]float32{{1, 2, 1, 4, 0, 1, 3, 1}, {2, 2, 1, 1, 1, 1, 1, 1}, {1, 0, 2, 1, 1, 3, 1, 2}}
	eight := [][]int64{{8}, {8}, {8}}
	_ = all

	for name, c := range map[string]struct {
		p    problem
		want []float64
	}{
		"linear": {
			problem{method: "linear", models: vOnes, each: weighted(nil)},
			[]float64{0.708333, -0.458333, 0.322917, 0.802083, -0.979167, 0.645833, 0.135417, 0.109375},
		},
		"linear nonorm": {
			problem{
				method: "linear", models: vOnes, each: weighted(nil),
				params: recipe.Values{"normalize": truth(false)},
			},
			[]float64{0.85, -0.55, 0.3875, 0.9625, -1.175, 0.775, 0.1625, 0.13125},
		},
		"slerp": {
			problem{method: "slerp", base: vBase, models: vOnes[:1], params: recipe.Values{"t": num(0.35)}},
			[]float64{0.610028, -0.259191, 0.312888, 0.85347, -0.85347, 0.777572, -0.045823, 0.282102},
		},
		"nuslerp": {
			problem{method: "nuslerp", models: two, each: weighted(nil)},
			[]float64{0.595978, -0.468401, 0.513507, 0.683919, -1.037955, 0.899437, 0.018682, 0.30733},
		},
		"nuslerp base": {
			problem{method: "nuslerp", base: vBase, models: two, each: weighted(nil)},
			[]float64{0.572907, -0.609725, 0.720472, 0.404528, -1.034048, 0.929863, 0.053478, 0.313193},
		},
		"nuslerp rows": {
			problem{
				method: "nuslerp", models: two, each: weighted(nil),
				params: recipe.Values{"nuslerp_flatten": truth(false)},
			},
			[]float64{0.601512, -0.473527, 0.518324, 0.691095, -1.00901, 0.876165, 0.017396, 0.299699},
		},
		"nuslerp columns": {
			problem{
				method: "nuslerp", models: two, each: weighted(nil),
				params: recipe.Values{"nuslerp_flatten": truth(false), "nuslerp_row_wise": truth(true)},
			},
			[]float64{0.60894, -0.443378, 0.541168, 0.646862, -1.064873, 0.854353, 0.02166, 0.291697},
		},
		"multislerp": {
			problem{method: "multislerp", models: vOnes, each: weighted(nil)},
			[]float64{0.835088, -0.48006, 0.41308, 0.869507, -1.013873, 0.733739, 0.11319, 0.145881},
		},
		"multislerp base": {
			problem{method: "multislerp", base: vBase, models: vOnes, each: weighted(nil)},
			[]float64{0.938503, -0.661567, 0.556619, 0.568381, -0.913031, 0.53846, 0.259232, -0.027118},
		},
		"task_arithmetic": {
			problem{
				method: "task_arithmetic", base: vBase, models: vOnes, each: weighted(nil),
				params: recipe.Values{"lambda": num(0.8)},
			},
			[]float64{0.7, -0.45, 0.315, 0.81, -0.98, 0.65, 0.13, 0.115},
		},
		"ties": {
			problem{method: "ties", base: vBase, models: vOnes, each: weighted(recipe.Values{"density": num(0.5)})},
			[]float64{0.861111, -0.75, 0.625, 0.5, -0.5, 0.25, 0.375, -0.25},
		},
		"ties model": {
			problem{
				method: "ties", base: vBase, models: vOnes, each: weighted(recipe.Values{"density": num(0.5)}),
				params: recipe.Values{"scope": *recipe.TextValue("model")},
			},
			[]float64{0.861111, -0.75, 0.625, 0.5, -0.5, 0.25, 0.375, -0.25},
		},
		"ties rescale": {
			problem{
				method: "ties", base: vBase, models: vOnes, each: weighted(recipe.Values{"density": num(0.5)}),
				params: recipe.Values{"rescale": truth(true)},
			},
			[]float64{0.935251, -0.892857, 0.678571, 0.446429, -1.964286, 0.116667, 0.475, -0.383333},
		},
		"breadcrumbs": {
			problem{
				method: "breadcrumbs", base: vBase, models: vOnes,
				each: weighted(recipe.Values{"density": num(0.5), "gamma": num(0.125)}),
			},
			[]float64{0.75, -0.5, 0.375, 0.75, -1.0, 0.625, 0.1625, 0.25},
		},
		"breadcrumbs_ties": {
			problem{
				method: "breadcrumbs_ties", base: vBase, models: vOnes,
				each: weighted(recipe.Values{"density": num(0.5), "gamma": num(0.125)}),
			},
			[]float64{0.825, -0.5, 0.375, 0.75, -1.0, 0.55, 0.225, 0.25},
		},
		"model_stock": {
			problem{method: "model_stock", base: vBase, models: vOnes},
			[]float64{0.367558, -0.051338, -0.007442, 1.132442, -0.933779, 0.816221, -0.132442, 0.365886},
		},
		"sce": {
			problem{method: "sce", base: vBase, models: vOnes},
			[]float64{0.885484, -0.627907, 0.417453, 0.707547, -1.75, 0.25, 0.311047, -0.25},
		},
		"sce half": {
			problem{method: "sce", base: vBase, models: vOnes, params: recipe.Values{"select_topk": num(0.5)}},
			[]float64{0.869565, -0.25, 0.416667, 1.0, -1.75, 0.25, 0.0, 0.25},
		},
		"karcher": {
			problem{method: "karcher", models: vOnes},
			[]float64{0.798498, -0.524222, 0.374316, 0.908926, -1.122457, 0.747447, 0.150498, 0.133134},
		},
		"arcee_fusion": {
			problem{method: "arcee_fusion", base: vBase, models: vOnes[:1]},
			[]float64{0.5, -0.25, 0.625, 0.5, -1.0, 0.75, 0.0, 0.25},
		},
		"nearswap": {
			problem{method: "nearswap", base: vBase, models: vOnes[:1], params: recipe.Values{"t": num(0.125)}},
			[]float64{0.625, -0.25, 0.25, 0.875, -0.875, 0.75, -0.125, 0.3125},
		},
		"ram": {
			problem{method: "ram", base: vBase, models: vOnes},
			[]float64{0.666667, -0.625, 0.291667, 0.833333, -1.125, 0.625, 0.166667, 0.03125},
		},
		"ramplus_tl": {
			problem{method: "ramplus_tl", base: vBase, models: vOnes},
			[]float64{0.666667, -0.625, 0.291667, 0.833333, -1.125, 0.625, 0.166667, 0.03125},
		},
		"emr 1": {
			problem{method: "emr", base: vBase, models: vOnes, params: recipe.Values{"task": num(1)}},
			[]float64{1.145833, -0.25, 0.770833, 0.354167, -1.0, 0.75, 0.0, 0.25},
		},
		"emr 2": {
			problem{method: "emr", base: vBase, models: vOnes, params: recipe.Values{"task": num(2)}},
			[]float64{0.5, -0.678571, 0.553571, 0.571429, -1.642857, 0.75, 0.321429, 0.25},
		},
		"emr 3": {
			problem{method: "emr", base: vBase, models: vOnes, params: recipe.Values{"task": num(3)}},
			[]float64{1.0, -0.75, 0.125, 1.0, -1.0, 0.25, 0.375, -0.25},
		},
		"emr unified": {
			problem{method: "emr", base: vBase, models: vOnes},
			[]float64{1.0, -0.75, 0.625, 0.5, -1.75, 0.25, 0.375, -0.25},
		},
		"consensus": {
			problem{method: "consensus", base: vBase, models: vOnes},
			[]float64{0.75, -0.625, 0.125, 1.0, -1.125, 0.625, 0.25, 0.25},
		},
		"fisher": {
			problem{method: "fisher", models: vOnes, stat: fisherF, shapes: eight},
			[]float64{0.5625, -0.5, 0.21875, 0.666667, -1.375, 0.5, 0.05, 0.015625},
		},
		"pcb": {
			problem{method: "pcb", base: vBase, models: vOnes, params: recipe.Values{"r": num(0.5)}},
			[]float64{1.084761, -0.85, 0.725, 0.4, -1.6, 0.15, 0.3, -0.35},
		},
		"magmax": {
			problem{method: "magmax", base: vBase, models: vOnes, params: recipe.Values{"scale": num(1)}},
			[]float64{1.0, -0.75, 0.625, 0.5, -1.75, 0.25, 0.375, -0.25},
		},
	} {
		c.p.shape = []int64{2, 4}
		if name[0] == 'r' && len(c.want) == 8 && c.p.method == "ram" {
			c.p.params = recipe.Values{"epsilon": num(1e-5)}
		}

		got := c.p.solve(t)
		for i, w := range c.want {
			if d := math.Abs(float64(got[i]) - w); !(d <= 1e-6) { // the vectors' last decimal
				t.Errorf("%s: element %d is %v, want %v (all: %v)", name, i, got[i], w, got)
				break
			}
		}
	}
}

// TestRAM compares with the second vector of the two methods.
func TestRAM(t *testing.T) {
	models := [][]float32{{1, 0, 2, 0, 0, 4}, {0, 3, -2, 0, 5, 0.5}}
	for alpha, want := range map[float64][]float64{
		-1: {1, 3, 0, 0, 5, 2.25}, 0.2: {1.02, 3.06, 0, 0, 5.1, 2.25}, 5: {1.2, 3.3, 0, 0, 5.5, 2.25},
	} {
		p := problem{
			method: "ramplus_tl", base: make([]float32, 6), models: models,
			params: recipe.Values{"alpha": num(alpha)},
		}
		if alpha < 0 {
			p.method, p.params = "ram", nil
		}

		for i, v := range p.solve(t) {
			if math.Abs(float64(v)-want[i]) > 1e-6 {
				t.Errorf("alpha %v: element %d is %v, want %v", alpha, i, v, want[i])
			}
		}
	}
}

// TestSomeLackStatistics: a tensor that some models have statistics of and others not is refused by their names.
func TestSomeLackStatistics(t *testing.T) {
	eight := [][]int64{{2, 4}, {2, 4}, {2, 4}}
	for name, shapes := range map[string][][]int64{"fisher": eight, "regmean": {{4, 4}, {4, 4}, {4, 4}}} {
		p := problem{method: name, models: vOnes, shape: []int64{2, 4}, shapes: shapes}
		p.stat = make([][]float32, len(p.models))
		p.stat[1] = make([]float32, shapes[1][0]*shapes[1][1])

		_, err := p.try()
		const says = "1 of 3 models have statistics, m1, m3 lack"
		if !errors.Is(err, method.ErrStatistics) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
