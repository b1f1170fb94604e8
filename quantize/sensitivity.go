package quantize

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// sensitivity is what a model's predictions lose by small changes of the weights of one matrix.
//
// To second order the divergence of a model from itself with weights w + d is ½ dᵀ F d, F being the Fisher
// information, of which the diagonal is taken: the mean over sequences of the squared gradient of their loss, for a
// loss that is a sum of T tokens. A diagonal as large as the model is more than one wants to keep, so that it is kept
// as the product of its sums over rows and over columns (of all such products the nearest in the sense of Shazeer and
// Stern, arXiv 1804.04235): F_ij ≈ rows_i·cols_j / total.
type sensitivity struct {
	rows, cols []float64 // as the tensor is stored
	total      float64
	scale      float64 // ½·T over the number of sequences: from squares of mean gradients to nats a token
}

// loss is what predictions lose, in nats a token, by an error of the weights; at gives that of a row, as it is stored.
func (s *sensitivity) loss(threads int, at func(row int) []float32) float64 {
	if s.total == 0 {
		return 0
	}

	parts := make([]float64, len(s.rows))
	mmapsafe.Split(threads, len(s.rows), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sum := 0.0
			for j, d := range at(i) {
				sum += s.cols[j] * float64(d) * float64(d)
			}
			parts[i] = sum * s.rows[i]
		}
	})

	all := 0.0 // in the order of rows, whatever the number of threads
	for _, v := range parts {
		all += v
	}
	return s.scale * all / s.total
}

// sensitivities runs calibration text through a model and back.
func sensitivities(ctx context.Context, m *lm.Model, calib corpus.Windows, names []string, step func(done, of int)) (
	map[string]*sensitivity, error,
) {
	all := map[string]*sensitivity{}
	for _, name := range names {
		all[name] = nil
	}

	tokens := 0
	for _, ids := range calib.IDs {
		tokens += max(len(ids)-1, 0)
	}
	if tokens == 0 {
		return nil, fmt.Errorf("sensitivities: %w: every sequence is a single token, which predicts nothing",
			corpus.ErrShort)
	}

	threads := m.Device().Info().Threads
	for n, ids := range calib.IDs {
		step(n, len(calib.IDs))
		hooks := &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
			host, err := hostmat.F32(m.Device(), g)
			if err != nil {
				return err
			}
			if all[name] == nil {
				all[name] = &sensitivity{rows: make([]float64, g.Rows), cols: make([]float64, g.Cols)}
			}
			all[name].add(host, threads)
			return nil
		}}

		_, err := m.Backward(ctx, [][]int32{ids}, lm.BackwardOptions{
			Hooks: hooks, Want: func(name string) bool { _, ok := all[name]; return ok },
		})
		if err != nil {
			return nil, fmt.Errorf("sensitivities: sequence %d: %w", n, err)
		}
	}
	step(len(calib.IDs), len(calib.IDs))

	windows := float64(len(calib.IDs))
	for name, s := range all {
		if s == nil {
			return nil, fmt.Errorf("sensitivities: no gradient of tensor %q", name)
		}
		s.scale = 0.5 * float64(tokens) / windows / windows
	}
	return all, nil
}

// add takes the gradient of a sequence's mean loss.
func (s *sensitivity) add(g kernels.Mat, threads int) {
	mmapsafe.Split(threads, g.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sum := 0.0
			for _, v := range g.RowF32(i) {
				sum += float64(v) * float64(v)
			}
			s.rows[i] += sum
		}
	})

	// Each column goes down all rows, so that sums do not depend on how the columns are divided.
	mmapsafe.Split(threads, g.Cols, func(lo, hi int) {
		for i := range g.Rows {
			for j, v := range g.RowF32(i)[lo:hi] {
				s.cols[lo+j] += float64(v) * float64(v)
			}
		}
	})

	s.total = 0
	for _, v := range s.rows {
		s.total += v
	}
}
