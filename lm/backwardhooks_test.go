package lm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// An objective that is the cross-entropy gives its gradients; hooks see the forward pass once; failures end the pass.
func TestBackwardHooks(t *testing.T) {
	ids := tokens(17, 37, 8, 5)
	for _, name := range []string{"gemma2", "qwen2-moe"} {
		t.Run(name, func(t *testing.T) {
			m := load(t, recipe{config: tiny()[name], seed: 27, std: 0.2}.write(t, t.TempDir()), cpuDevice(t, 2),
				Options{})
			want, plain := gradients(t, m, ids, BackwardOptions{Denominator: 1})
			got, r := gradients(t, m, ids,
				BackwardOptions{Objective: func(logits kernels.Mat, labels []int32, losses []float64) error {
					m.ops.CrossEntropyBackward(logits, kernels.MatOf(wrapF64(losses), 1, len(losses)), logits, labels,
						1)
					return nil
				}})

			if !reflect.DeepEqual(got, want) || r.Loss != plain.Loss {
				t.Errorf("the objective's gradients differ; loss %v, want %v", r.Loss, plain.Loss)
			}

			seen := [2]map[string]int{{}, {}}
			for i, run := range []func(h *Hooks) error{
				func(h *Hooks) error {
					_, err := m.Forward(context.Background(), ids, ForwardOptions{Hooks: h})
					return err
				},
				func(h *Hooks) error {
					_, err := m.Backward(context.Background(), ids, BackwardOptions{Hooks: h})
					return err
				},
			} {
				if err := run(&Hooks{
					LinearInput: func(l Linear, _ kernels.Mat) { seen[i][l.Name]++ },
					BlockOutput: func(block int, _ kernels.Mat) { seen[i][fmt.Sprint(block)]++ },
				}); err != nil {
					t.Fatal(err)
				}
			}

			if !reflect.DeepEqual(seen[0], seen[1]) {
				t.Errorf("hooks see %v, in a forward pass %v", seen[1], seen[0])
			}

			failure := errors.New("full")
			calls := 0
			_, err := m.Backward(context.Background(), ids,
				BackwardOptions{Hooks: &Hooks{WeightGrad: func(string, kernels.Mat) error {
					calls++
					return failure
				}}})
			if !errors.Is(err, failure) || calls != 1 {
				t.Errorf("%v after %d calls", err, calls)
			}
		})
	}
}

func wrapF64(s []float64) *kernels.Buffer {
	b, err := kernels.Wrap(kernels.F64, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 8*len(s)))
	if err != nil {
		panic(err)
	}
	return b
}

// Parameters may be changed as soon as their gradients come: a step down the gradient during the pass lowers
// the loss, and the pass's gradients are those of the weights before the step.
func TestUpdateDuringBackward(t *testing.T) {
	ids := tokens(18, 37, 12, 9)
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 28, std: 0.2}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
		want, before := gradients(t, m, ids, BackwardOptions{})
		var order []int
		_, err := m.Backward(context.Background(), ids,
			BackwardOptions{Hooks: &Hooks{WeightGrad: func(name string, g kernels.Mat) error {
				if !slices.Equal(values(g), want[name]) {
					t.Errorf("%s differs", name)
				}

				order = append(order, m.params[name].block)
				w, err := m.MutableParam(name)
				if err != nil {
					return err
				}

				m.ops.Add(w, w, g, -1e-3)
				return nil
			}}})
		if err != nil {
			t.Fatal(err)
		}

		inside := slices.DeleteFunc(slices.Clone(order), func(l int) bool { return l < 0 })
		if !slices.IsSortedFunc(inside, func(a, b int) int { return b - a }) || order[len(order)-1] != -1 {
			t.Errorf("blocks come in order %v", order)
		}
		if after := forward(t, m, ids, ForwardOptions{}); after.Loss >= before.Loss {
			t.Errorf("loss %v after a step from %v", after.Loss, before.Loss)
		}
	})
}

// Nothing that counts: zeros for everything.
func TestGradientsOfNothing(t *testing.T) {
	for _, ids := range [][][]int32{{{3}}, {{3}, {4}}} {
		m := load(t, recipe{config: tiny()["gpt2"]}.write(t, t.TempDir()), cpuDevice(t, 1), Options{})
		all, r := gradients(t, m, ids, BackwardOptions{})
		if r.Counted != 0 || len(all) != len(m.Tensors()) {
			t.Errorf("%d labels count, %d gradients", r.Counted, len(all))
		}

		for name, g := range all {
			if largest(g) != 0 {
				t.Errorf("%s is not zero", name)
			}
		}
	}
}

// accountant is a device that knows how much memory is in use.
type accountant struct {
	kernels.Device
	live []*kernels.Buffer
	size []int
	peak int

	marked []*kernels.Buffer // see mark
}

func (a *accountant) Alloc(d kernels.DType, n int) (*kernels.Buffer, error) {
	b, err := a.Device.Alloc(d, n)
	if err != nil {
		return nil, err
	}

	a.live, a.size = append(a.live, b), append(a.size, n*d.Size())
	total := 0
	for i, b := range a.live {
		if b.Len > 0 { // not freed
			total += a.size[i]
		}
	}

	a.peak = max(a.peak, total)
	return b, nil
}

// twice counts the buffers that are freed a second time: [kernels.Buffer.Free] forgets what is packed, so that a mark
// in a freed buffer is gone after another call. mark is called between the two.
func (a *accountant) mark() {
	for _, b := range a.live {
		if b.Len == 0 && b.Packed.Load() == nil && !slices.Contains(a.marked, b) {
			var sign any = "freed"
			b.Packed.Store(&sign)
			a.marked = append(a.marked, b)
		}
	}
}

func (a *accountant) twice() (n int) {
	for _, b := range a.marked {
		if b.Packed.Load() == nil {
			n++
		}
	}
	return n
}

// TestBackwardFrees: all memory of a pass but the model's working memory is freed, and nothing is freed twice: whoever
// frees a buffer owns it. The inputs of replayed blocks go one by one on the way down, or all at the end of a pass
// that fails on the way.
func TestBackwardFrees(t *testing.T) {
	config := maps.Clone(tiny()["llama"])
	config["num_hidden_layers"] = 6
	ids := tokens(20, 37, 40, 24)
	failed := errors.New("enough")

	for _, until := range []int{-1, 3} {
		dev := &accountant{Device: cpuDevice(t, 2)}
		m := load(t, recipe{config: config}.write(t, t.TempDir()), dev, Options{})
		held := 0
		for range 3 {
			h := &Hooks{WeightGrad: func(name string, _ kernels.Mat) error {
				dev.mark()
				if strings.Contains(name, fmt.Sprintf("layers.%d.", until)) {
					return failed
				}
				return nil
			}}
			_, err := m.Backward(context.Background(), ids, BackwardOptions{Hooks: h})
			if !errors.Is(err, failed) && (until >= 0 || err != nil) {
				t.Fatal(err)
			}

			now := 0
			for _, b := range dev.live {
				if b.Len > 0 {
					now++
				}
			}
			if held > 0 && now != held {
				t.Errorf("stopped at block %d: %d buffers are held after a pass, %d after the next", until, held, now)
			}
			held = now
		}

		if len(dev.marked) < 3*4 {
			t.Errorf("stopped at block %d: only %d buffers were freed in time", until, len(dev.marked))
		}
		if n := dev.twice(); n > 0 {
			t.Errorf("stopped at block %d: %d buffers are freed twice", until, n)
		}
	}
}

// More blocks cost their inputs and nothing else, and a wanted gradient its block's.
func TestBackwardMemory(t *testing.T) {
	ids := tokens(20, 37, 40, 24)
	peak := func(layers int, want func(string) bool) int {
		config := maps.Clone(tiny()["llama"])
		config["num_hidden_layers"] = layers
		dev := &accountant{Device: cpuDevice(t, 2)}
		m := load(t, recipe{config: config}.write(t, t.TempDir()), dev, Options{})
		h := &Hooks{WeightGrad: func(string, kernels.Mat) error { return nil }}
		if _, err := m.Backward(context.Background(), ids, BackwardOptions{Hooks: h, Want: want}); err != nil {
			t.Fatal(err)
		}
		return dev.peak
	}

	all, input := func(string) bool { return true }, 64*24*4
	if more := peak(12, all) - peak(6, all); more != 6*input {
		t.Errorf("6 more blocks take %d bytes, their inputs %d", more, 6*input)
	}

	last := peak(12, func(name string) bool { return strings.Contains(name, "layers.11.") })
	if saved := peak(12, all) - last; saved < 10*input {
		t.Errorf("gradients of the last block alone save %d bytes", saved)
	}
}

// Two passes at a time give what one gives.
func TestConcurrentBackward(t *testing.T) {
	m := load(t, recipe{config: tiny()["qwen2-moe"], seed: 29}.write(t, t.TempDir()), cpuDevice(t, 2),
		Options{Stream: true})
	want, _ := gradients(t, m, tokens(21, 37, 9, 5), BackwardOptions{})
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			_, err := m.Backward(context.Background(), tokens(21, 37, 9, 5), BackwardOptions{Hooks: &Hooks{
				WeightGrad: func(name string, x kernels.Mat) error {
					if !slices.Equal(values(x), want[name]) {
						return fmt.Errorf("%s differs", name)
					}
					return nil
				},
			}})
			return err
		})
	}

	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// Rounding activations changes gradients a little: BF16 has 8 bits, and what is rounded is not biased.
func TestFastGradients(t *testing.T) {
	ids := tokens(22, 37, 30, 20)
	for _, name := range []string{"llama", "gpt2", "mixtral"} {
		t.Run(name, func(t *testing.T) {
			dir := recipe{config: tiny()[name], seed: 30, dtype: safetensors.BF16}.write(t, t.TempDir())
			exact, _ := gradients(t, load(t, dir, cpuDevice(t, 2), Options{}), ids, BackwardOptions{})
			fast, _ := gradients(t, load(t, dir, cpuDevice(t, 2), Options{Precision: kernels.Fast}), ids,
				BackwardOptions{})
			for name, g := range fast {
				if d := distance(g, exact[name]); !(d <= 0.05*largest(exact[name])+1e-4) {
					t.Errorf("%s: off by %g of %g", name, d, largest(exact[name]))
				}
			}
		})
	}
}

func TestBackwardRefuses(t *testing.T) {
	m := load(t, recipe{config: tiny()["gpt2"]}.write(t, t.TempDir()), cpuDevice(t, 1), Options{})
	ids := tokens(23, 37, 5)
	for name, c := range map[string]struct {
		ids  [][]int32
		o    BackwardOptions
		want error
	}{
		"denominator":  {ids, BackwardOptions{Denominator: -1}, ErrInput},
		"not a number": {ids, BackwardOptions{Denominator: math.NaN()}, ErrInput},
		"labels":       {ids, BackwardOptions{Labels: tokens(1, 37, 4)}, ErrInput},
		"vocabulary":   {[][]int32{{1, 99}}, BackwardOptions{}, ErrVocabulary},
		"no tokens":    {nil, BackwardOptions{}, ErrInput},
		"too long":     {tokens(1, 37, 65), BackwardOptions{}, ErrTooLong},
	} {
		if _, err := m.Backward(context.Background(), c.ids, c.o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	stopped, stop := context.WithCancel(context.Background())
	stop()
	if _, err := m.Backward(stopped, ids, BackwardOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
