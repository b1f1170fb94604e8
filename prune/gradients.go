package prune

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/grads"
	"github.com/modelcompress/compress/prune/internal/host"
	"github.com/modelcompress/compress/safetensors"
)

// GradientOptions says where the gradients come from that a metric asks for, and how they are kept.
type GradientOptions struct {
	// File is a .safetensors file or folder with a tensor "<matrix without .weight>.G" [out, in] for every matrix, F32, BF16
	// or F16: 100·√(Σ g²) over the calibration sequences, g the gradient of a sequence's mean loss. Empty: they are computed.
	File string `json:"file,omitempty"`
	// Keep is a .safetensors file that computed gradients are written to, instead of memory: 4 bytes a weight, F32. A file
	// that is there is used if it was made from the same model and calibration data, and refused otherwise.
	Keep string `json:"-"`
	// Memory is about how many bytes the inputs of all blocks may take while gradients are computed, for as many sequences at a
	// time as fit, but at least one; 0 means 1 GiB.
	Memory int64 `json:"-"`
	// Exact keeps them in F32. Otherwise they are rounded to F16, as the published code stores them.
	Exact bool `json:"exact,omitempty"`
}

func (g GradientOptions) validate(m Metric) error {
	switch {
	case m.Needs&Gradients == 0 && m.Name != "" && g != (GradientOptions{}):
		return fmt.Errorf("%w: metric %s does not use gradients", ErrOptions, m.Name)
	case g.File != "" && g.Keep != "":
		return fmt.Errorf("%w: gradients are read from %s; there are none to keep", ErrOptions, g.File)
	case g.Memory < 0:
		return fmt.Errorf("%w: %d bytes for the inputs of blocks", ErrOptions, g.Memory)
	}
	return nil
}

// gradients are those of all matrices of a model: in a file, or in memory.
type gradients struct {
	file   *safetensors.Dir
	memory map[string]kernels.Mat // by tensor of the file, [out, in]
	exact  bool
}

// collectGradients opens or computes what the metric asks for, while the model is still dense.
func (w *walk) collectGradients(ctx context.Context) (err error) {
	if w.needs&Gradients == 0 {
		return nil
	}
	defer since(&w.report.Times.Gradients, time.Now())
	o := w.o.Gradients
	w.gradients = &gradients{exact: o.Exact}
	switch {
	case o.File != "":
		w.gradients.file, err = safetensors.OpenDir(o.File)
	case o.Keep != "":
		w.gradients.file, err = w.keptGradients(ctx)
	default:
		w.gradients.memory, err = w.computedGradients(ctx)
	}
	if err != nil || w.gradients.file == nil {
		return err
	}
	for b := range w.m.Blocks() {
		for _, l := range w.m.Linears(b) {
			if err := w.gradients.check(l); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// gradientName is the tensor that holds the gradients of a matrix.
func gradientName(l lm.Linear) string { return strings.TrimSuffix(l.Name, ".weight") + ".G" }

func (g *gradients) check(l lm.Linear) error {
	name := gradientName(l)
	info, ok := g.file.Info(name)
	switch {
	case !ok:
		return fmt.Errorf("%s: no tensor %s: %w", g.file.Path(), name, ErrGradients)
	case len(info.Shape) != 2 || info.Shape[0] != int64(l.Out) || info.Shape[1] != int64(l.In):
		return fmt.Errorf("%s: %s: %w: shape %v; want [%d %d], outputs and inputs of the matrix", g.file.Path(), name, ErrGradients, info.Shape, l.Out, l.In)
	case gradientTypes[info.DType] == 0:
		return fmt.Errorf("%s: %s: %w: type %s; want F32, BF16 or F16", g.file.Path(), name, ErrGradients, info.DType)
	}
	return nil
}

var gradientTypes = map[safetensors.DType]kernels.DType{
	safetensors.F32: kernels.F32, safetensors.BF16: kernels.BF16, safetensors.F16: kernels.F16,
}

// of gives the gradients of a matrix [out, in], F16 or with GradientOptions.Exact F32, in host memory; none if they are all 0,
// as of an expert that no token reached. A nil receiver has none.
func (g *gradients) of(l lm.Linear) (kernels.Mat, error) {
	switch {
	case g == nil:
		return kernels.Mat{}, nil
	case g.memory != nil:
		return g.memory[gradientName(l)], nil
	}
	name := gradientName(l)
	raw, err := g.file.Bytes(name)
	if err != nil {
		return kernels.Mat{}, err
	}
	defer func() { _ = g.file.Release(name) }()
	info, _ := g.file.Info(name)
	out, err := rounded(l, raw, gradientTypes[info.DType], g.exact)
	if err != nil {
		return out, fmt.Errorf("%s: %s: %w", g.file.Path(), name, err)
	}
	return out, nil
}

// maxF16 is the largest F16; gradients above it are cut off.
const maxF16 = 65504

// rounded makes a matrix of gradients; none if all are 0.
func rounded(l lm.Linear, raw []byte, t kernels.DType, exact bool) (out kernels.Mat, err error) {
	to := kernels.F16
	if exact {
		to = kernels.F32
	}
	out = kernels.MatOf(kernels.NewHost(to, l.In*l.Out), l.Out, l.In)
	some := false
	for i := range l.In * l.Out {
		v := host.Element(raw, t, i)
		if !(v >= 0) || math.IsInf(float64(v), 0) {
			return out, fmt.Errorf("element [%d, %d] is %g: %w, 0 or more", i/l.In, i%l.In, v, ErrNonFinite)
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

func (g *gradients) close() {
	if g != nil && g.file != nil {
		_ = g.file.Close()
	}
}

func (w *walk) gradientJob() grads.Job {
	return grads.Job{Model: w.m, IDs: w.calib.IDs, Memory: w.o.Gradients.Memory, Step: func(block, done int) {
		w.step(Step{Stage: Gradient, Block: block, Done: done, Of: len(w.calib.IDs)})
	}}
}

// computedGradients keeps what it computes in memory, in the type that metrics get.
func (w *walk) computedGradients(ctx context.Context) (map[string]kernels.Mat, error) {
	all := map[string]kernels.Mat{}
	err := w.gradientJob().Each(ctx, &grads.Held{Device: w.dev}, func(l lm.Linear, g []byte) error {
		m, err := rounded(l, g, kernels.F32, w.o.Gradients.Exact)
		if !m.IsZero() {
			all[gradientName(l)] = m
		}
		return err
	})
	return all, err
}

// keptGradients writes what it computes to a file, or finds it there.
func (w *walk) keptGradients(ctx context.Context) (*safetensors.Dir, error) {
	path := w.o.Gradients.Keep
	made := w.report.Model.Fingerprint + " " + w.calib.Hash
	f, err := safetensors.OpenDir(path)
	if err == nil {
		if f.Metadata()["made_from"] != made {
			_ = f.Close()
			return nil, fmt.Errorf("%s: %w: they were made from another model or other calibration data; remove the file or name another", path, ErrGradients)
		}
		return f, nil
	}
	var tensors []safetensors.Info
	for b := range w.m.Blocks() {
		for _, l := range w.m.Linears(b) {
			tensors = append(tensors, safetensors.Info{Name: gradientName(l), DType: safetensors.F32, Shape: []int64{int64(l.Out), int64(l.In)}})
		}
	}
	out, err := safetensors.Create(path, tensors, map[string]string{"made_from": made, "meaning": "100*sqrt(sum g^2)"}, safetensors.Options{})
	if err != nil {
		return nil, err
	}
	squares := &grads.Filed{Device: w.dev, Path: path + ".squares"}
	err = w.gradientJob().Each(ctx, squares, func(l lm.Linear, g []byte) error { return out.WriteTensor(gradientName(l), g) })
	err = errors.Join(err, squares.Close())
	if err == nil {
		err = out.Finish()
	}
	if err != nil {
		return nil, errors.Join(err, out.Abort())
	}
	return safetensors.OpenDir(path)
}
