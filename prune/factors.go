package prune

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/maskfile"
	"github.com/modelcompress/compress/safetensors"
)

// Factors is a .safetensors file of the low-rank parts that the metric [OATS] takes out of matrices: for a weight NAME
// of the model NAME.A [rank, in] and NAME.B [out, rank], F32, such that the weight is its sparse part and B·A, whatever
// its layout in the file. They are written as they are made; factors are durable before their sparse part is, so that a
// resumed run finds those of all finished weights.
//
// It is handed to Model in Options.Factors, which gives the file its name at the end. What becomes of it then, such as
// an adapter, is the caller's business. Until Remove, checksums stand beside it, by which a resumed run notices damage.
// After an error the caller ends it with Suspend or Abort.
type Factors struct {
	path string
	o    MaskOptions
	w    *maskfile.File    // nil until Model knows the ranks
	file *safetensors.File // what is there is read from; nil until something is
	gone bool              // the weights are complete, and the file has served its purpose
}

// NewFactors names a file of factors. Nothing is opened before Model knows the ranks.
func NewFactors(path string, o MaskOptions) *Factors { return &Factors{path: path, o: o} }

// Gone reports whether there is no file, since the weights were complete before the run and the file was not kept.
func (f *Factors) Gone() bool { return f.gone }

// open starts or goes on with the file. A file that is not there any more though the weights are complete has been made
// use of.
func (f *Factors) open(linears []lm.Linear, ranks map[string]int, complete bool) error {
	if _, err := os.Stat(f.path); complete && errors.Is(err, fs.ErrNotExist) {
		f.gone = true
		return maskfile.Remove(f.path) // an interrupted Remove may have left the checksums
	}

	var tensors []safetensors.Info
	for _, l := range linears {
		r := int64(ranks[l.Name])
		tensors = append(tensors,
			safetensors.Info{Name: l.Name + ".A", DType: safetensors.F32, Shape: []int64{r, int64(l.In)}},
			safetensors.Info{Name: l.Name + ".B", DType: safetensors.F32, Shape: []int64{int64(l.Out), r}})
	}

	w, err := maskfile.Open(f.path, tensors, map[string]string{"format": "pt", "meaning": "low-rank parts"},
		maskfile.Options(f.o))
	if err != nil {
		return fmt.Errorf("factors: %w", err)
	}
	f.w = w
	return nil
}

func (f *Factors) write(name string, a, b kernels.Mat) error {
	if f.w.Done(name+".A") && f.w.Done(name+".B") {
		return nil
	}
	return errors.Join(f.w.Write(name+".A", a.Buf.Bytes()), f.w.Write(name+".B", b.Buf.Bytes()))
}

// damaged reports whether an interrupted run has finished factors that are not as it wrote them.
func (f *Factors) damaged(name string) bool {
	return f != nil && f.w != nil && (f.w.Damaged(name+".A") || f.w.Damaged(name+".B"))
}

// restored says that the factors of a finished weight are there.
func (f *Factors) restored(name string) error {
	if f == nil || f.gone {
		return nil
	}

	for _, part := range []string{name + ".A", name + ".B"} {
		if f.w.Done(part) {
			continue
		}
		err := f.w.MarkDone(part)
		if errors.Is(err, safetensors.ErrNotResumed) {
			err = fmt.Errorf("factors: the interrupted run finished weights whose low-rank parts are not there; start "+
				"over without resuming: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *Factors) sync() error {
	if f == nil || f.w == nil {
		return nil
	}
	return f.w.Note()
}

func (f *Factors) finish() error {
	if f == nil || f.w == nil {
		return nil
	}
	return errors.Join(f.close(), f.w.Finish(), f.w.Close())
}

// Pair reads the factors A [rank, in] and B [out, rank] of a weight, which are there once Model has finished it.
func (f *Factors) Pair(name string) (a, b kernels.Mat, err error) {
	if f.file == nil {
		path := f.path
		if f.w != nil {
			path = f.w.Place()
		}
		if f.file, err = safetensors.Open(path); err != nil {
			return a, b, err
		}
	}

	if a, err = f.read(name + ".A"); err == nil {
		b, err = f.read(name + ".B")
	}
	return a, b, err
}

func (f *Factors) read(name string) (kernels.Mat, error) {
	info, ok := f.file.Info(name)
	if !ok {
		return kernels.Mat{}, fmt.Errorf("%s: tensor %q: %w", f.file.Path(), name, safetensors.ErrUnknownTensor)
	}

	buf := kernels.NewHost(kernels.F32, int(info.Elements()))
	if _, err := f.file.ReadAt(name, buf.Bytes(), 0); err != nil {
		return kernels.Mat{}, err
	}
	buf.Changed()
	return kernels.MatOf(buf, int(info.Shape[0]), int(info.Shape[1])), nil
}

// close closes what is read from.
func (f *Factors) close() error {
	if f == nil || f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// Suspend closes the file and leaves it to be resumed.
func (f *Factors) Suspend() error {
	if f.w == nil {
		return nil
	}
	return errors.Join(f.close(), f.w.Suspend())
}

// Abort removes the unfinished file. After Suspend it does nothing; a finished file stays, with its checksums.
func (f *Factors) Abort() error {
	if f.w == nil {
		return nil
	}
	if f.w.Finished() {
		return f.Suspend()
	}
	return errors.Join(f.close(), f.w.Abort())
}

// Remove removes the finished file and its checksums, once it has served its purpose.
func (f *Factors) Remove() error {
	if f.gone {
		return f.close()
	}
	return errors.Join(f.close(), maskfile.Remove(f.path))
}
