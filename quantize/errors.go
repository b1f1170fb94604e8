package quantize

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
)

// What can be wrong with a job.
var (
	// ErrOptions: options contradict each other, or are out of range.
	ErrOptions = failure.Misuse("bad options of quantisation", "")
	// ErrScheme: a name that is not in the table.
	ErrScheme = failure.Misuse("unknown scheme", "")
	// ErrNoCalibration: the method measures inputs, and there is nothing to measure them on.
	ErrNoCalibration = failure.Misuse("no calibration data", "give calibration text, or take method rtn")
	// ErrLayout: a matrix that the format cannot hold.
	ErrLayout = errors.New("the format cannot hold this matrix")
	// ErrNonFinite: a weight or a scale is NaN or infinite.
	ErrNonFinite = errors.New("not a finite number")
)
