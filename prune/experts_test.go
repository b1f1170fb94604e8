package prune

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/internal/modeltest"
	"github.com/modelcompress/compress/lm"
)

// TestFusedExperts: a mixture that keeps the experts of a block in one tensor is pruned expert by expert to the
// same weights and report as one that does not, and comes out in its own layout, also where every matrix is
// saved by itself.
func TestFusedExperts(t *testing.T) {
	split := mixtral().write(t, filepath.Join(t.TempDir(), "split"), nil)
	for name, o := range map[string]Options{
		"magnitude": {Metric: Magnitude(), Sparsity: .5},
		"wanda":     {Metric: Wanda(), Pattern: Pattern{2, 4}},
		"sparsegpt": {Metric: SparseGPT(), Sparsity: .4},
	} {
		var outs [2]string
		var reports [2]*Report
		for i, dir := range []string{split, modeltest.FuseExperts(t, split)} {
			outs[i] = filepath.Join(t.TempDir(), "out")
			reports[i] = prunedTo(t, load(t, dir, 1, lm.Options{}), windows(3, 9, 61), o, outs[i])
		}

		want, got := tensorsOf(t, modeltest.FuseExperts(t, outs[0])), tensorsOf(t, outs[1])
		if !maps.Equal(want, got) || !slices.Contains(slices.Collect(maps.Keys(got)),
			"model.layers.1.mlp.experts.gate_up_proj") {
			t.Errorf("%s: other weights", name)
		}

		if diff := cmp.Diff(reports[0].Tensors, reports[1].Tensors); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
