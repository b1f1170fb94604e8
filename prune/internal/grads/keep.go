package grads

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// madeFrom is the metadata key of the fingerprints of the model and of the calibration data, with a space between them.
const madeFrom = "made_from"

// Origin is what gradients were made from: fingerprints of the model and of the calibration data.
type Origin struct{ Model, Data string }

// String is the pair as files keep it.
func (o Origin) String() string { return o.Model + " " + o.Data }

// Keep writes what it computes to a file, or finds it there. A file that was made from something else is
// refused. With half the gradients are F16, as [Set.Of] gives them unless it is exact, in half of the space.
func (j Job) Keep(ctx context.Context, path string, from Origin, half bool) (*safetensors.Dir, error) {
	made := from.String()
	f, err := kept(path, made)
	if f != nil || err != nil {
		return f, err
	}

	stored := safetensors.F32
	if half {
		stored = safetensors.F16
	}

	var tensors []safetensors.Info
	for b := range j.Model.Blocks() {
		for _, l := range j.Model.Linears(b) {
			tensors = append(tensors,
				safetensors.Info{Name: Name(l), DType: stored, Shape: []int64{int64(l.Out), int64(l.In)}})
		}
	}

	out, err := safetensors.Create(path, tensors, map[string]string{madeFrom: made, "meaning": "100*sqrt(sum g^2)"},
		safetensors.Options{})
	if err != nil {
		return nil, err
	}

	// The sums between one part of the sequences and the next go to the disk as well: the file is for models whose
	// gradients don't fit into memory.
	squares := &Filed{Device: j.dev(), Path: path + ".squares"}
	err = j.Each(ctx, squares, func(l lm.Linear, g []byte) error {
		var err error
		if half {
			g, err = rounded(g, j.dev().Info().Threads)
		}
		if err != nil {
			return err
		}
		return out.WriteTensor(Name(l), g)
	})

	err = errors.Join(err, squares.Close())
	if err == nil {
		err = out.Finish()
	}
	if err != nil {
		return nil, errors.Join(err, out.Abort())
	}

	return safetensors.OpenDir(path)
}

// CheckKept is the error of [Job.Keep] about a file that is there and was made from something else.
func (j Job) CheckKept(path string, from Origin) error {
	f, err := kept(path, from.String())
	if f != nil {
		err = f.Close()
	}
	return err
}

// kept opens a file that was made before; nil if there is none that can be read, which is then written.
func kept(path, made string) (*safetensors.Dir, error) {
	f, err := safetensors.OpenDir(path)
	if err != nil {
		return nil, nil
	}

	if f.Metadata()[madeFrom] != made {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w: they were made from another model or other calibration data; remove the "+
			"file or name another", path, ErrUnfit)
	}

	return f, nil
}

// rounded makes F16 of gradients in F32, as [Rounded] does. What is not finite stays what a reader refuses.
func rounded(g []byte, threads int) ([]byte, error) {
	buf, err := kernels.Wrap(kernels.F32, g)
	if err != nil {
		return nil, err
	}

	from, to := buf.F32(), kernels.NewHost(kernels.F16, len(g)/4)
	out := to.U16()
	mmapsafe.Split(threads, len(from), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			v := from[i]
			if v <= math.MaxFloat32 { // neither infinite nor NaN
				v = min(v, maxF16)
			}
			out[i] = kernels.ToF16(v)
		}
	})

	return to.Bytes(), nil
}
