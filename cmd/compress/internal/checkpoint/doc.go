// Package checkpoint inspects, compares and rewrites checkpoints tensor by tensor, in bounded memory: other
// element types, other shards, pruned matrices packed as bitmasks. It reads no more of a model's architecture
// than the roles of its tensors, so that most of it works on any folder or .safetensors file.
package checkpoint

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
)

// Ways in which an output folder is refused.
var (
	ErrExists  = failure.Misuse("output already exists", "choose another --out, or pass --overwrite")
	ErrTarget  = failure.Misuse("not a folder to write to", "")
	ErrInPlace = failure.Misuse("output is the source itself", "")
	ErrBusy    = errors.New("another process writes this output")
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
