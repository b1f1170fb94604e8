// Package checkpoint is what can be done to a checkpoint as files, tensor by tensor and in bounded memory: [Inspect]
// says what one holds, [Verify] also whether it is whole, [Diff] how two differ, and [Convert] writes one again with
// another element type, other shards, or pruned matrices packed as bitmasks. It reads no more of a model's
// architecture than the roles of its tensors, so that most of it works on any folder or .safetensors file.
//
// # Use
//
//	r, err := checkpoint.Verify(ctx, "MODEL", checkpoint.InspectOptions{}) // every value, shape and offset
//	d, err := checkpoint.Diff(ctx, "MODEL", "pruned", checkpoint.DiffOptions{})
//	c, err := checkpoint.Convert(ctx, "MODEL", "half", checkpoint.ConvertOptions{DType: safetensors.F16})
package checkpoint

import (
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
)

// Ways in which an output folder is refused.
var (
	ErrExists  = stage.ErrExists
	ErrTarget  = stage.ErrTarget
	ErrInPlace = stage.ErrInPlace
	ErrBusy    = stage.ErrBusy
)

// env is what work needs from its surroundings.
type env struct {
	device kernels.Device
	told   func(name string, done, total int64)
}

func (e env) progress(name string, done, total int64) {
	if e.told != nil {
		e.told(name, done, total)
	}
}
