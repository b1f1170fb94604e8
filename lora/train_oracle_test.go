package lora

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/mosfile"
)

// trainCase is the case.json of a training run.
type trainCase struct {
	Base    string
	Batches string
	Method  string
	Options struct {
		LR       float64 `json:"learning_rate"`
		Clip     float64 `json:"max_grad_norm"`
		Schedule string
		Warmup   int `json:"warmup_steps"`
	}
	MoS   mosOptions `json:"mos"`
	Steps int
	Loss  []float64
	LR    []float64
	Norm  []float64 `json:"grad_norm_before_clipping"`
}

// batches reads the data of a run, its steps one after another.
func (c *trainCase) batches(t *testing.T, root string) (corpus.Windows, int) {
	f := openTensors(t, filepath.Join(root, "train", c.Batches))
	info, _ := f.Info("input_ids")
	var ids, labels [][]int32
	for i := range int(info.Shape[0]) {
		ids, labels = append(ids, f.ids("input_ids", i)...), append(labels, f.ids("labels", i)...)
	}
	w := corpus.New(ids, c.Batches)
	w.Labels = labels
	return w, int(info.Shape[1])
}

// TestTrainOracle follows 20 steps of training of torch and PEFT: loss and norm in every step, final
// parameters, and what the trained model computes. The limits are those of the oracle's README, far below what
// any slip of the optimiser, the schedule or the clipping makes. Micro-batches, kept or recomputed activations
// and fused updates change nothing.
func TestTrainOracle(t *testing.T) {
	root := oracle(t)
	for _, dir := range cases(t, filepath.Join(root, "train")) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c trainCase
			readJSON(t, filepath.Join(dir, "case.json"), &c)
			data, batch := c.batches(t, root)
			o := Options{
				Kind: c.Method, Steps: c.Steps, Batch: batch, Ordered: true, LR: c.Options.LR,
				Schedule: c.Options.Schedule, Warmup: c.Options.Warmup,
				Clip: c.Options.Clip, Memory: 1 << 30,
			}

			for name, change := range map[string]func(o *Options){
				"whole":   func(*Options) {},
				"batches": func(o *Options) { o.MicroBatch, o.Memory = 1, -1 },
			} {
				t.Run(name, func(t *testing.T) {
					o := o
					change(&o)
					c.run(t, root, dir, o, data)
				})
			}
		})
	}
}

func (c *trainCase) run(t *testing.T, root, dir string, o Options, data corpus.Windows) {
	m := openModel(t, filepath.Join(root, "base", c.Base), "cpu", lm.Options{})
	switch c.Method {
	case "full":
		r, err := Tune(context.Background(), m, data, o)
		if err != nil {
			t.Fatal(err)
		}

		c.checkSteps(t, r)
		f := openTensors(t, filepath.Join(dir, "final.safetensors"))
		for _, n := range m.Tensors() {
			p, err := m.Param(n)
			if err != nil {
				t.Fatal(err)
			}
			checkTrained(t, n, flat(p), f.floats(n))
		}

		c.checkEnd(t, m, dir)
	default:
		o.Init = c.start(t, m, dir)
		a, err := Train(context.Background(), m, data, o)
		if err != nil {
			t.Fatal(err)
		}

		c.checkSteps(t, a.Report())
		final := filepath.Join(dir, "final.safetensors")
		if c.Method == "lora" {
			final = filepath.Join(dir, "final", "adapter_model.safetensors")
		}

		f := openTensors(t, final)
		for _, p := range a.inner.Trainable() {
			checkTrained(t, a.keyOf(p), p.Data(), f.floats(a.keyOf(p)))
		}
		if _, err := a.Attach(m); err != nil {
			t.Fatal(err)
		}

		c.checkEnd(t, m, dir)
	}
}

// start reads the adapter that training starts from.
func (c *trainCase) start(t *testing.T, m *lm.Model, dir string) *Adapter {
	t.Helper()

	if c.Method == "lora" {
		a, err := Open(filepath.Join(dir, "start"), m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}

	f := openTensors(t, filepath.Join(dir, "start.safetensors"))
	for _, n := range f.Names() {
		if kind, ok := strings.CutSuffix(n, ".index_A"); ok {
			c.MoS.Types = append(c.MoS.Types, strings.TrimPrefix(kind, "mos."))
		}
	}

	c.MoS.Sampling = "official"
	inner, err := mosfile.Load(f.File, c.MoS.config(), base(t, m))
	if err != nil {
		t.Fatal(err)
	}

	c.MoS.Types = nil
	return &Adapter{inner: inner}
}

func (c *trainCase) checkSteps(t *testing.T, r *Report) {
	t.Helper()
	if len(r.Steps) != c.Steps {
		t.Fatalf("%d steps, want %d", len(r.Steps), c.Steps)
	}

	for i, s := range r.Steps {
		if math.Abs(s.Loss-c.Loss[i]) > 1e-5 || math.Abs(s.GradNorm-c.Norm[i]) > 1e-5*c.Norm[i] ||
			math.Abs(s.LR-c.LR[i]) > 1e-12 {
			t.Errorf("step %d: loss %.7f, norm %.7f, rate %g; want %.7f, %.7f, %g", i, s.Loss, s.GradNorm, s.LR,
				c.Loss[i], c.Norm[i], c.LR[i])
		}
	}
}

// checkTrained compares final values: 99.9 % within 2e-6, all within 1e-4, where a gradient near zero has its
// sign from rounding.
func checkTrained(t *testing.T, name string, got, want []float32) {
	t.Helper()
	gaps := make([]float64, len(want))
	for i := range want {
		gaps[i] = math.Abs(float64(got[i]) - float64(want[i]))
	}
	slices.Sort(gaps)
	if most := gaps[(len(gaps)-1)*999/1000]; gaps[len(gaps)-1] > 1e-4 || most > 2e-6 {
		t.Errorf("%s differs by %g, at most elements by %g", name, gaps[len(gaps)-1], most)
	}
}

// checkEnd compares what the trained model computes.
func (c *trainCase) checkEnd(t *testing.T, m *lm.Model, dir string) {
	t.Helper()
	path := filepath.Join(dir, "after_training.safetensors")
	if _, err := os.Stat(path); err != nil {
		return
	}

	want := openTensors(t, path)
	r, err := m.Forward(context.Background(), want.ids("input_ids", 0),
		lm.ForwardOptions{Logits: true, Labels: want.ids("labels", 0)})
	if err != nil {
		t.Fatal(err)
	}

	// Final parameters may be 1e-4 off where a gradient is near zero; logits sum hundreds of such products.
	if gap, _ := farthest(flat(r.Logits), want.floats("logits")); gap > 1e-4 {
		t.Errorf("logits differ by %g", gap)
	}
	if gap := math.Abs(r.Loss - float64(want.floats("loss")[0])); gap > 1e-5 {
		t.Errorf("loss differs by %g", gap)
	}
}
