package prune

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/prune/internal/allocation"
	"github.com/modelcompress/compress/prune/internal/grads"
)

// The ways in which pruning fails, besides those of the packages below. Test with errors.Is.
var (
	// ErrOptions: an option is out of range or contradicts another one.
	ErrOptions = failure.Misuse("bad pruning options", "")
	// ErrUnknown: no metric, allocation or group of that name.
	ErrUnknown = failure.Misuse("unknown name", "")
	// ErrNoCalibration: the metric measures activations and there are no calibration windows.
	ErrNoCalibration = failure.Misuse("no calibration data", "")
	// ErrNonFinite: a weight, a statistic or a score is NaN or infinite.
	ErrNonFinite = hostmat.ErrNonFinite
	// ErrMask: a mask does not have the zeros that it must have.
	ErrMask = errors.New("mask check failed")
	// ErrGradients: a file of gradients does not fit the model.
	ErrGradients = grads.ErrUnfit
	// ErrMasks: a file of masks to prune by does not fit the model.
	ErrMasks = errors.New("unusable masks")
	// ErrNorms: norms of inputs are not those of the model.
	ErrNorms = errors.New("norms of inputs do not belong to the model")
	// ErrDamaged: the finished output of an earlier run is not as that run wrote it.
	ErrDamaged = failure.New("finished weights are not as they were written",
		"--overwrite without --resume starts anew")
	// ErrAllocation: an allocation would prune all of a block, or add weights to one.
	ErrAllocation = allocation.ErrRange
	// ErrConstant: all scores of a matrix are the same, so that they rank nothing.
	ErrConstant = errors.New("scores are constant")
)
