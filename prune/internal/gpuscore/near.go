package gpuscore

import (
	"errors"

	"github.com/modelcompress/compress/kernels"
)

// Nearness is the share of itself by which a score counts as near the cut: devices that approximate logarithms,
// exponentials and sums in their own ways agree with the host within it, unless a formula takes differences of
// almost equal values.
const Nearness = 1.0 / (1 << 18)

// NearTies counts the weights whose fate would be another if every score that stays were lower, and every score
// that goes higher, by [Nearness] of itself: those of which a device and the host may choose differently.
// scores is F32 on the device, keep the mask that was chosen by them, and again chooses by others.
func NearTies(dev kernels.Device, scores, keep kernels.Mat,
	again func(mask kernels.Mat, s kernels.Score),
) (int64, error) {
	scorer, ok := kernels.As[kernels.Scorer](dev)
	if !ok || scores.Len() == 0 {
		return 0, nil
	}

	s := &Scores{Rows: scores.Rows, Cols: scores.Cols, dev: dev, scorer: scorer}
	defer s.Free()

	moved, err := s.alloc(kernels.F32, s.Rows, s.Cols)
	work, failed := s.alloc(kernels.F32, s.Rows, s.Cols)
	mask, full := s.alloc(kernels.U8, s.Rows, s.Cols)
	if err := errors.Join(err, failed, full); err != nil {
		return 0, err
	}

	ops := dev.Ops()
	ops.Activate(work, scores, kernels.ReLU)
	ops.Add(work, scores, work, -2) // the negative magnitudes
	ops.Add(moved, scores, work, -Nearness)
	ops.ApplyMask(work, keep)
	ops.Add(moved, moved, work, 2*Nearness)
	again(mask, kernels.Score{X: moved, Raw: true})

	ones := make([]float32, s.Rows)
	for i := range ones {
		ones[i] = 1
	}
	if _, err := s.upload(ones); err != nil {
		return 0, err
	}
	if err := scorer.Score(work, kernels.Formula{{Op: kernels.LoadRow}}, s.in); err != nil {
		return 0, err
	}

	ops.ApplyMask(work, keep)
	before := ops.CountZero(work)
	ops.ApplyMask(work, mask)
	leave := ops.CountZero(work) - before

	return int64(2*leave + before - ops.CountZero(mask)), ops.Sync()
}
