package grads

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// madeFrom is the metadata key of the fingerprints of the model and of the calibration data, with a space between them.
const madeFrom = "made_from"

// Keep writes what it computes to a file, or finds it there. model and data are fingerprints: a file that was made from
// others is refused.
func (j Job) Keep(ctx context.Context, path, model, data string) (*safetensors.Dir, error) {
	made := model + " " + data
	if f, err := kept(path, made); f != nil || err != nil {
		return f, err
	}
	var tensors []safetensors.Info
	for b := range j.Model.Blocks() {
		for _, l := range j.Model.Linears(b) {
			tensors = append(tensors, safetensors.Info{Name: Name(l), DType: safetensors.F32, Shape: []int64{int64(l.Out), int64(l.In)}})
		}
	}
	out, err := safetensors.Create(path, tensors, map[string]string{madeFrom: made, "meaning": "100*sqrt(sum g^2)"}, safetensors.Options{})
	if err != nil {
		return nil, err
	}

	squares := &Filed{Device: j.dev(), Path: path + ".squares"}
	err = j.Each(ctx, squares, func(l lm.Linear, g []byte) error { return out.WriteTensor(Name(l), g) })
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
func (j Job) CheckKept(path, model, data string) error {
	f, err := kept(path, model+" "+data)
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
		return nil, fmt.Errorf("%s: %w: they were made from another model or other calibration data; remove the file or name another", path, ErrUnfit)
	}
	return f, nil
}
