package quantized

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
)

// What can be wrong with a quantised weight.
var (
	ErrNotDecodable = failure.New("quantised type cannot be decoded",
		"convert the model with the tool that wrote it, to a type that is known")
	ErrNotFinite = errors.New("a scale is not finite")
	ErrShape     = errors.New("packed shapes do not fit together")
	ErrMissing   = errors.New("a tensor of the quantised weight is missing")
	ErrDType     = errors.New("a tensor of the quantised weight has another element type")
	ErrGroups    = errors.New("g_idx names a group that does not exist")
	ErrConfig    = errors.New("quantization_config is not understood")
	ErrState     = errors.New("quant_state is not understood")

	ErrNotEncodable = errors.New("the type is only read, not written")
	ErrElement      = errors.New("an element is not finite")
	ErrRange        = errors.New("elements are too large for")
	ErrImportance   = errors.New("the importance of columns is not of numbers from 0 on, one for each")
)
