// Package checkpoint inspects, compares and rewrites checkpoints tensor by tensor, in bounded memory: other
// element types, other shards, pruned matrices packed as bitmasks. It reads no more of a model's architecture
// than the roles of its tensors, so that most of it works on any folder or .safetensors file.
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

// Env is what work needs from its surroundings.
type Env struct {
	// where types are converted and values looked at, if it is a host device
	Device   kernels.Device
	Progress func(name string, done, total int64) // told how far the work is; nil: nobody wants to know
}

func (e Env) progress(name string, done, total int64) {
	if e.Progress != nil {
		e.Progress(name, done, total)
	}
}
