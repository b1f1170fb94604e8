package lm

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// The last tokens alone have the losses and the gradients that they have in whole sequences: in every
// architecture, with and without room for recorded blocks, for several tails in one pass, from the first block,
// from the middle, and through the head alone. A pass leaves no trace in the next. Both sides are float32 and
// multiply in groups of other sizes: 1e-4 of the largest gradient is far above their noise.
func TestTails(t *testing.T) {
	ctx := context.Background()
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			devices(t, func(t *testing.T, dev kernels.Device) {
				m := load(t, recipe{config: config, seed: 3}.write(t, t.TempDir()), dev, Options{})
				ids := tokens(7, m.config.Vocab, 9, 6, 4)
				from := []int{5, 0, 3}
				for _, first := range []int{0, m.Blocks() / 2, m.Blocks()} {
					want, losses := tailGradient(t, m, ids, from, first)
					a, err := m.NewTail(ctx, ids[:2], from[:2], first)
					if err != nil {
						t.Fatal(err)
					}

					b, err := m.NewTail(ctx, ids[2:], from[2:], first)
					if err != nil {
						t.Fatal(err)
					}

					for _, keep := range []int64{0, 1 << 30} {
						var labels [][]int32
						for i := range ids {
							labels = append(labels, ids[i][from[i]:])
						}

						var got []float32
						r, err := m.BackwardTails(ctx, []*Tail{a, b}, BackwardOptions{
							Labels: labels, Keep: keep, Denominator: 1,
							WantHidden: func(s int) bool { return s == first },
							Hooks: &Hooks{HiddenGrad: func(_ int, g kernels.Mat) error {
								got = values(
									g)
								return nil
							}},
						})
						if err != nil {
							t.Fatal(err)
						}

						var have []float64
						for _, l := range r.LossPerToken {
							have = append(have, l...)
						}

						closeTo(t, first, "losses", have, losses)
						closeTo(t, first, "gradient", widened(got), want)
					}

					a.Free()
					b.Free()
				}
			})
		})
	}
}

// tailGradient is what whole sequences give for their tokens from some position on, where only those count.
func tailGradient(t *testing.T, m *Model, ids [][]int32, from []int, first int) (grad, losses []float64) {
	t.Helper()
	var labels [][]int32
	for i := range ids {
		l := slices.Clone(ids[i])
		for j := range from[i] + 1 {
			l[j] = IgnoreLabel
		}
		labels = append(labels, l)
	}

	r, err := m.Backward(context.Background(), ids, BackwardOptions{
		Labels: labels, Denominator: 1, WantHidden: func(s int) bool { return s == first },
		Want: func(string) bool { return false },
		Hooks: &Hooks{HiddenGrad: func(_ int, g kernels.Mat) error {
			row := 0
			for i := range ids {
				for j := range ids[i] {
					if j >= from[i] {
						grad = append(grad, widened(values(g.RowRange(row, row+1)))...)
					}
					row++
				}
			}

			return nil
		}},
	})
	if err != nil {
		t.Fatal(err)
	}

	for i, l := range r.LossPerToken {
		losses = append(losses, l[from[i]:]...)
	}

	return grad, losses
}

func widened(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

func closeTo(t *testing.T, first int, what string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("from block %d: %d %s, not %d", first, len(got), what, len(want))
	}

	top, worst := 0.0, 0.0
	for i := range want {
		top, worst = max(top, math.Abs(want[i])), max(worst, math.Abs(got[i]-want[i]))
	}
	if !(worst <= 1e-4*top) {
		t.Errorf("from block %d: %s off by %g of %g", first, what, worst, top)
	}
}

// A tail has a token.
func TestTailRefused(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"], seed: 3}.write(t, t.TempDir()), cpuDevice(t, 1), Options{})
	if _, err := m.NewTail(context.Background(), tokens(7, m.config.Vocab, 4), []int{4}, 0); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
}
