package lm

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/nlpodyssey/spago/ag"
	"github.com/nlpodyssey/spago/mat"

	"github.com/modelcompress/compress/kernels"
)

// TestBlockGradientsByTape computes a block a second time, token by token in float64 with another project's
// operators, and lets its tape find the gradients.
func TestBlockGradientsByTape(t *testing.T) {
	ctx := context.Background()
	config := maps.Clone(tiny()["gpt2"])
	config["activation_function"] = "relu"
	m := load(t, recipe{config: config, seed: 31, std: 0.3}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
	h, err := m.Embed(tokens(19, 37, 7))
	if err != nil {
		t.Fatal(err)
	}

	const l = 1
	if err := m.RunBlock(ctx, 0, h, nil); err != nil {
		t.Fatal(err)
	}

	b := newTapeBlock(t, m, l)
	var inputs []mat.Tensor
	for i := range h.X.Rows {
		inputs = append(inputs, leaf(h.X.RowF32(i), h.X.Cols, 1))
	}

	total := b.squares(b.run(inputs))
	if err := ag.Backward(total); err != nil {
		t.Fatal(err)
	}

	compare := func(name string, g []float32, x mat.Tensor) {
		want := make([]float32, len(g))
		for i, v := range x.Grad().Data().F64() {
			want[i] = float32(v)
		}
		if d := distance(g, want); !(d <= 1e-5*largest(want)+1e-5) { // 1e-5: the rounding of zeros
			t.Errorf("%s: off by %g of %g", name, d, largest(want))
		}
	}

	value, err := m.BackwardBlock(ctx, l, h, m.OutputSquare, BackwardOptions{
		WantHidden: func(state int) bool { return state == l },
		Hooks: &Hooks{
			WeightGrad: func(name string, g kernels.Mat) error {
				compare(name, values(g), b.leaves[name])
				return nil
			},
			HiddenGrad: func(_ int, g kernels.Mat) error {
				for i, x := range inputs {
					compare("input", g.RowF32(i), x)
				}
				return nil
			},
		},
	})

	if want := total.Value().Item().F64(); err != nil || !(value-want < 1e-5*want && want-value < 1e-5*want) {
		t.Errorf("the squares add up to %v, %v; the tape says %v", value, err, want)
	}
}

// tapeBlock is a block of a GPT-2 with ReLU as operators of a tape. Vectors are columns.
type tapeBlock struct {
	m      *Model
	leaves map[string]mat.Tensor // by tensor name
}

func newTapeBlock(t *testing.T, m *Model, l int) *tapeBlock {
	b := &tapeBlock{m: m, leaves: map[string]mat.Tensor{}}
	for _, p := range m.blocks[l].params {
		w, err := m.Param(p.Name)
		if err != nil {
			t.Fatal(err)
		}

		rows, cols := w.Rows, w.Cols
		if rows == 1 {
			rows, cols = cols, 1
		}

		b.leaves[p.Name] = leaf(values(w), rows, cols)
	}

	return b
}

func leaf(x []float32, rows, cols int) mat.Tensor {
	d := make([]float64, len(x))
	for i, v := range x {
		d[i] = float64(v)
	}
	return mat.NewDense[float64](mat.WithShape(rows, cols), mat.WithBacking(d), mat.WithGrad(true))
}

func scalar(v float64) mat.Tensor { return mat.Scalar(v) }

func (b *tapeBlock) param(suffix string) mat.Tensor {
	for name, x := range b.leaves {
		if strings.HasSuffix(name, suffix) {
			return x
		}
	}
	panic(suffix)
}

func (b *tapeBlock) linear(name string, x mat.Tensor) mat.Tensor {
	return ag.Affine(b.param(name+".bias"), ag.T(b.param(name+".weight")), x)
}

func (b *tapeBlock) norm(name string, x mat.Tensor) mat.Tensor {
	centred := ag.SubScalar(x, ag.ReduceMean(x))
	deviation := ag.Sqrt(ag.AddScalar(ag.ReduceMean(ag.Square(centred)), scalar(float64(b.m.config.Eps))))
	return ag.Add(ag.Prod(ag.DivScalar(centred, deviation), b.param(name+".weight")), b.param(name+".bias"))
}

func (b *tapeBlock) run(xs []mat.Tensor) []mat.Tensor {
	var fused, out []mat.Tensor
	for _, x := range xs {
		fused = append(fused, b.linear("attn.c_attn", b.norm("ln_1", x)))
	}

	for i, x := range xs {
		x = ag.Add(x, b.linear("attn.c_proj", b.attend(fused[:i+1])))
		inner := ag.ReLU(b.linear("mlp.c_fc", b.norm("ln_2", x)))
		out = append(out, ag.Add(x, b.linear("mlp.c_proj", inner)))
	}

	return out
}

// attend is the attention of the last of some tokens.
func (b *tapeBlock) attend(fused []mat.Tensor) mat.Tensor {
	c := b.m.config
	var heads []mat.Tensor
	for h := range c.Heads {
		part := func(x mat.Tensor, kind int) mat.Tensor {
			at := kind*c.Hidden + h*c.HeadDim
			return ag.Slice(x, at, 0, at+c.HeadDim, 1)
		}

		var scores []mat.Tensor
		for _, x := range fused {
			score := ag.Dot(part(fused[len(fused)-1], 0), part(x, 1))
			scores = append(scores, ag.ProdScalar(score, scalar(float64(c.AttnScales[1]))))
		}

		weights := ag.Softmax(ag.Concat(scores...))
		var sum mat.Tensor
		for j, x := range fused {
			v := ag.ProdScalar(part(x, 2), ag.At(weights, j, 0))
			if sum == nil {
				sum = v
			} else {
				sum = ag.Add(sum, v)
			}
		}

		heads = append(heads, sum)
	}

	return ag.Concat(heads...)
}

// squares is the sum of the squares of all elements.
func (b *tapeBlock) squares(xs []mat.Tensor) mat.Tensor {
	total := scalar(0)
	for _, x := range xs {
		total = ag.Add(total, ag.Dot(x, x))
	}
	return total
}
