package grads

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/host"
	"github.com/modelcompress/compress/safetensors"
)

// ErrUnfit: a file of gradients does not fit the model.
var ErrUnfit = errors.New("unusable gradients")

// Set is the gradients of all matrices of a model: in a file, or in memory.
type Set struct {
	File   *safetensors.Dir
	Memory map[string]kernels.Mat // by tensor of the file, [out, in], as Rounded makes them
	Exact  bool                   // F32 instead of F16
}

// Name is the tensor that holds the gradients of a matrix.
func Name(l lm.Linear) string { return strings.TrimSuffix(l.Name, ".weight") + ".G" }

// Check tells whether the file has the gradients of a matrix.
func (s *Set) Check(l lm.Linear) error {
	name := Name(l)
	info, ok := s.File.Info(name)
	switch {
	case !ok:
		return fmt.Errorf("%s: no tensor %q: %w", s.File.Path(), name, ErrUnfit)
	case len(info.Shape) != 2 || info.Shape[0] != int64(l.Out) || info.Shape[1] != int64(l.In):
		return fmt.Errorf("%s: tensor %q: %w: shape %v; want [%d %d], outputs and inputs of the matrix", s.File.Path(), name, ErrUnfit, info.Shape, l.Out, l.In)
	case types[info.DType] == 0:
		return fmt.Errorf("%s: tensor %q: %w: type %s; want F32, BF16 or F16", s.File.Path(), name, ErrUnfit, info.DType)
	}
	return nil
}

var types = map[safetensors.DType]kernels.DType{
	safetensors.F32: kernels.F32, safetensors.BF16: kernels.BF16, safetensors.F16: kernels.F16,
}

// Of gives the gradients of a matrix [out, in], F16 or with Exact F32, in host memory; none if they are all 0,
// as of an expert that no token reached. A nil receiver has none.
func (s *Set) Of(l lm.Linear) (kernels.Mat, error) {
	switch {
	case s == nil:
		return kernels.Mat{}, nil
	case s.Memory != nil:
		return s.Memory[Name(l)], nil
	}
	name := Name(l)
	raw, err := s.File.Bytes(name)
	if err != nil {
		return kernels.Mat{}, err
	}
	defer func() { _ = s.File.Release(name) }()
	info, _ := s.File.Info(name)
	out, err := Rounded(l, raw, types[info.DType], s.Exact)
	if err != nil {
		return out, fmt.Errorf("%s: tensor %q: %w", s.File.Path(), name, err)
	}
	return out, nil
}

// maxF16 is the largest F16; gradients above it are cut off.
const maxF16 = 65504

// Rounded makes a matrix of gradients; none if all are 0.
func Rounded(l lm.Linear, raw []byte, t kernels.DType, exact bool) (out kernels.Mat, err error) {
	to := kernels.F16
	if exact {
		to = kernels.F32
	}
	out = kernels.MatOf(kernels.NewHost(to, l.In*l.Out), l.Out, l.In)
	some := false
	for i := range l.In * l.Out {
		v := host.Element(raw, t, i)
		if !(v >= 0) || math.IsInf(float64(v), 0) {
			return out, fmt.Errorf("element [%d, %d] is %g: %w, 0 or more", i/l.In, i%l.In, v, host.ErrNonFinite)
		}
		some = some || v > 0
		if exact {
			out.Buf.F32()[i] = v
		} else {
			out.Buf.U16()[i] = kernels.ToF16(min(v, maxF16))
		}
	}
	if !some {
		return kernels.Mat{}, nil
	}
	return out, nil
}

// Close closes the file; a nil receiver has none.
func (s *Set) Close() {
	if s != nil && s.File != nil {
		_ = s.File.Close()
	}
}
