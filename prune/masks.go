package prune

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/maskfile"
	"github.com/modelcompress/compress/safetensors"
)

// Masks is a .safetensors file of keep masks: U8, named, shaped and laid out like the weights, 1 = kept. Masks
// are written as they are made; a mask is durable before its weight is, so that a resumed run finds those of
// all finished weights.
type Masks struct {
	dev kernels.Device
	w   *maskfile.File
}

// MaskOptions says how a file of masks is started. The zero value refuses an existing file.
type MaskOptions struct {
	Overwrite bool // an existing file may be replaced
	Resume    bool // continue the file of an interrupted run, if there is one
}

// NewMasks starts a file of masks for the matrices of a model, under a temporary name beside path. It is handed
// to Model in Options.Masks, which gives the file its name at the end. After an error, or without a call of
// Model, the caller ends it with Suspend or Abort. The errors are those of safetensors.Create and
// safetensors.Reopen, and one for a complete file that is damaged.
func NewMasks(path string, m *lm.Model, o MaskOptions) (*Masks, error) {
	var tensors []safetensors.Info
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			rows, cols := storedShape(lin)
			tensors = append(tensors,
				safetensors.Info{Name: lin.Name, DType: safetensors.U8, Shape: []int64{int64(rows), int64(cols)}})
		}
	}

	w, err := maskfile.Open(path, tensors, map[string]string{"format": "pt", "meaning": "1 = kept"},
		maskfile.Options(o))
	if err != nil {
		return nil, fmt.Errorf("masks: %w", err)
	}

	return &Masks{dev: m.Device(), w: w}, nil
}

// storedShape is the shape of a matrix in the file.
func storedShape(l lm.Linear) (rows, cols int) {
	if l.Transposed {
		return l.In, l.Out
	}
	return l.Out, l.In
}

// write stores the mask of one matrix, in its stored layout.
func (f *Masks) write(name string, keep kernels.Mat) error {
	if f == nil || f.w.Done(name) {
		return nil
	}
	raw, err := hostmat.Bytes(f.dev, keep)
	if err != nil {
		return err
	}
	return f.w.Write(name, raw)
}

// damaged reports whether an interrupted run has finished a mask that is not as it wrote it.
func (f *Masks) damaged(name string) bool { return f != nil && f.w.Damaged(name) }

// restored says that the mask of a finished weight is there.
func (f *Masks) restored(name string) error {
	if f == nil || f.w.Done(name) {
		return nil
	}
	err := f.w.MarkDone(name)
	if errors.Is(err, safetensors.ErrNotResumed) {
		return fmt.Errorf("masks: the interrupted run finished weights whose masks are not there; start over "+
			"without resuming: %w", err)
	}
	return err
}

func (f *Masks) sync() error {
	if f == nil {
		return nil
	}
	return f.w.Note()
}

func (f *Masks) finish() error {
	if f == nil {
		return nil
	}
	return f.w.Finish()
}

// forget removes what only a resumed run needs.
func (f *Masks) forget() error {
	if f == nil {
		return nil
	}
	return f.w.Forget()
}

// Suspend closes the unfinished file and leaves it to be resumed.
func (f *Masks) Suspend() error { return f.w.Suspend() }

// Abort removes the unfinished file. After Suspend, or once Model has finished the file, it does nothing.
func (f *Masks) Abort() error { return f.w.Abort() }
