package grads

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
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

// Fit reports whether the gradients are those of a model, and whether there are any; model and data are
// fingerprints, of which the second is empty in a run without calibration data. The notes are about what a file
// does not say, and what nobody asked for.
func (s *Set) Fit(m *lm.Model, model, data string) (notes []string, err error) {
	notes = []string{}
	var linears []lm.Linear
	for b := range m.Blocks() {
		linears = append(linears, m.Linears(b)...)
	}

	if s.File != nil {
		if notes, err = s.checkFile(linears, model, data); err != nil {
			return notes, err
		}
	}

	for _, l := range linears {
		if g, err := s.Of(l); err != nil || !g.IsZero() {
			return notes, err
		}
	}

	return notes, fmt.Errorf("%w: they are 0 for all %d matrices (HINT: calibration windows of one token have no loss)",
		ErrUnfit, len(linears))
}

// checkFile reports whether the file was made for a model and has its matrices.
func (s *Set) checkFile(linears []lm.Linear, model, data string) (notes []string, err error) {
	if notes, err = s.origin(model, data); err != nil {
		return notes, err
	}

	known := map[string]bool{}
	for _, l := range linears {
		if err := s.check(l); err != nil {
			return notes, err
		}
		known[Name(l)] = true
	}

	var extra []string
	for _, name := range s.File.Names() {
		if !known[name] {
			extra = append(extra, name)
		}
	}

	if len(extra) > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d tensors are the gradients of no matrix of the model and were not "+
			"used; the first is %.200q", s.File.Path(), len(extra), extra[0]))
	}

	return notes, nil
}

// origin compares what the file says about where it comes from: another model is an error, other data are a note.
func (s *Set) origin(model, data string) (notes []string, err error) {
	from, ok := s.File.Metadata()[madeFrom]
	if !ok {
		return []string{s.File.Path() + ": the file does not say from which model and calibration data its " +
			"gradients were made"}, nil
	}

	theirs, sample, _ := strings.Cut(from, " ")
	switch {
	case theirs != model:
		return []string{}, fmt.Errorf("%s: %w: made from the model with fingerprint %.64q; this is %q", s.File.Path(),
			ErrUnfit, theirs, model)
	case data != "" && sample != data:
		// The published code does so too: gradients from one text, activations from another.
		return []string{fmt.Sprintf("%s: the gradients were made from the calibration data with hash %.64q, "+
			"and activations are measured on those with hash %q", s.File.Path(), sample, data)}, nil
	}

	return []string{}, nil
}

// check reports whether the file has the gradients of a matrix.
func (s *Set) check(l lm.Linear) error {
	name := Name(l)
	info, ok := s.File.Info(name)
	switch {
	case !ok:
		return fmt.Errorf("%s: no tensor %q: %w", s.File.Path(), name, ErrUnfit)
	case len(info.Shape) != 2 || info.Shape[0] != int64(l.Out) || info.Shape[1] != int64(l.In):
		return fmt.Errorf("%s: tensor %q: %w: shape %v; want [%d %d], outputs and inputs of the matrix", s.File.Path(),
			name, ErrUnfit, info.Shape, l.Out, l.In)
	case dtype.Matrix(info.DType) == 0:
		return fmt.Errorf("%s: tensor %q: %w: type %s; want F32, BF16 or F16", s.File.Path(), name, ErrUnfit,
			info.DType)
	}

	return nil
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
	out, err := Rounded(l, raw, dtype.Matrix(info.DType), s.Exact)
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
		v := hostmat.Element(raw, t, i)
		if !(v >= 0) || math.IsInf(float64(v), 0) {
			return out, fmt.Errorf("element [%d, %d] is %g: %w, 0 or more", i/l.In, i%l.In, v, hostmat.ErrNonFinite)
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
