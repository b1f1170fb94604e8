package prune

import (
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lm"
)

// TestSwaps: swaps lower the error of the outputs of every matrix and keep what a row or group loses; of the updates
// with the same mask, the exact one leaves the least error.
func TestSwaps(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(2), "gpt2": gpt2(), "mixtral": mixtral()} {
		dir := c.write(t, filepath.Join(t.TempDir(), name), nil)
		for _, p := range []Pattern{{}, {2, 4}} {
			o := Options{Pattern: p, Swaps: 8}
			if !p.Structured() {
				o.Sparsity = .5
			}

			errs := map[string]float64{}
			var zeros []int64
			for _, update := range []string{NoUpdate, SparseGPTUpdate, Exact} {
				o.Update = Update{Name: update}
				r, _, _ := passed(t, dir, o)
				swapped := 0
				for i, m := range r.Tensors {
					if m.Unrouted {
						continue
					}
					if m.Swapped == nil || m.Swapped.Updated > m.Swapped.Masked {
						t.Fatalf("%s %s: %s: swaps %+v", name, p, m.Name, m.Swapped)
					}
					if m.Swaps > 0 {
						swapped++
					}
					if update == NoUpdate {
						zeros = append(zeros, m.Zeros)
						continue
					}
					if m.Zeros != zeros[i] {
						t.Errorf("%s %s: %s: %d zeros, %d without update", name, p, m.Name, m.Zeros, zeros[i])
					}
					if m.Block == 0 && m.Change != nil { // of the same inputs, whatever the update
						errs[update] += m.Change.Updated
						errs["masked"] += m.Change.Masked / 2
					}
				}
				if swapped == 0 {
					t.Errorf("%s %s: no swap at all", name, p)
				}
			}
			if !(errs[Exact] < errs[SparseGPTUpdate] && errs[Exact] < errs["masked"]) {
				t.Errorf("%s %s: errors %v", name, p, errs)
			}
		}
	}
}

// TestSwapDiagonal: with more of the diagonal swaps fit the calibration data less and change less of Wanda's mask,
// which the diagonal alone would choose: with all but nothing beside it no swap is left to make.
func TestSwapDiagonal(t *testing.T) {
	dir := llama(2).write(t, filepath.Join(t.TempDir(), "m"), nil)
	for _, p := range []Pattern{{}, {2, 4}} {
		last := 0.0
		var swaps []int64
		var loss []float64
		for _, share := range []float64{0, 1, 10, 1e6} {
			o := Options{Pattern: p, Swaps: 4, SwapDiagonal: share}
			if !p.Structured() {
				o.Sparsity = .5
			}

			r, _, _ := passed(t, dir, o)
			made, updated := int64(0), 0.0
			for _, m := range r.Tensors[:len(r.Tensors)/2] { // of the first block, whose inputs are always the same
				made += m.Swaps
				updated += m.Swapped.Updated
			}
			swaps, loss = append(swaps, made), append(loss, updated)
			if updated < last {
				t.Errorf("%s: errors %v", p, loss)
			}
			last = updated
		}
		if swaps[0] == 0 || swaps[3] != 0 || !(loss[3] > loss[0]) {
			t.Errorf("%s: swaps %d, errors %v", p, swaps, loss)
		}
	}
}

// TestSwapsRefused: what swaps do not go with.
func TestSwapsRefused(t *testing.T) {
	for _, o := range []Options{
		{Sparsity: .5, Swaps: -1},
		{Sparsity: .5, Swaps: 1, Update: Update{Name: DSnoT}},
		{Sparsity: .5, Swaps: 1, Update: Update{Name: ADMM, MaskSteps: 2}},
		{Pattern: Pattern{2, 4}, Swaps: 1, Permutation: Interleave},
		{Sparsity: .5, SwapDiagonal: 1},
		{Sparsity: .5, Swaps: 1, SwapDiagonal: -1},
		{Sparsity: .5, Swaps: 1, SwapDiagonal: math.NaN()},
		{Sparsity: .5, Swaps: 1, SwapDiagonal: math.Inf(1)},
		{Swaps: 1, MasksFrom: "masks.safetensors"},
		{Sparsity: .5, Swaps: 1, Norms: &Norms{Sequences: 1}},
		{Metric: Magnitude(), Sparsity: .5, Swaps: 1, Update: Update{Damping: .1}},
	} {
		if err := o.Validate(); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}

	dir := llama(1).write(t, filepath.Join(t.TempDir(), "m"), nil)
	m := load(t, dir, 1, lm.Options{})
	if _, err := Model(ctx, m, windows(0, 0, 61), Options{Metric: Magnitude(), Sparsity: .5, Swaps: 1}); !errors.Is(err,
		ErrNoCalibration) {
		t.Errorf("without calibration: %v", err)
	}
}
