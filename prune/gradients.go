package prune

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/grads"
	"github.com/modelcompress/compress/safetensors"
)

// GradientOptions says where the gradients come from that a metric asks for, and how they are kept.
type GradientOptions struct {
	// File is a .safetensors file or folder with a tensor "<matrix without .weight>.G" [out, in] for every
	// matrix, F32, BF16 or F16: 100·√(Σ g²) over the calibration sequences, g the gradient of a sequence's mean
	// loss. One whose metadata say that it was made from another model is refused; other calibration data than
	// those of the run are a note in the report. Empty: they are computed.
	File string `json:"file,omitempty"`
	// Keep is a .safetensors file that computed gradients are written to, instead of memory: 4 bytes a weight,
	// F32. A file that is there is used if it was made from the same model and calibration data, and refused
	// otherwise.
	Keep string `json:"-"`
	// Half has Keep take 2 bytes a weight, F16, which is what metrics get unless Exact is set. It does not go
	// with Exact.
	Half bool `json:"-"`
	// Memory is about how many bytes the inputs of all blocks may take while gradients are computed, for as
	// many sequences at a time as fit, but at least one; 0 means 1 GiB.
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
	case g.Half && g.Exact:
		return fmt.Errorf("%w: gradients that are kept in F16 are not exact", ErrOptions)
	case g.Memory < 0:
		return fmt.Errorf("%w: %d bytes for the inputs of blocks", ErrOptions, g.Memory)
	}

	return nil
}

// collectGradients opens or computes what the metric asks for, while the model is still dense.
func (w *walk) collectGradients(ctx context.Context) (err error) {
	if w.needs&Gradients == 0 {
		return nil
	}
	defer since(&w.report.Times.Gradients, time.Now())

	o := w.o.Gradients
	w.gradients = &grads.Set{Exact: o.Exact}
	switch {
	case o.File != "":
		w.gradients.File, err = safetensors.OpenDir(o.File)
	case o.Keep != "":
		w.gradients.File, err = w.gradientJob().Keep(ctx, o.Keep,
			grads.Origin{Model: w.report.Model.Fingerprint, Data: w.calib.Hash}, o.Half)
	default:
		w.gradients.Memory, err = w.computedGradients(ctx)
	}
	if err == nil {
		w.report.Notes, err = w.gradients.Fit(w.m, w.report.Model.Fingerprint, w.calib.Hash)
	}

	return errors.Join(err, ctx.Err())
}

// checkGradients finds out whether a file that a run would read gradients from can be used, without computing any.
func (w *walk) checkGradients(ctx context.Context) error {
	o := w.o.Gradients
	if w.needs&Gradients == 0 {
		return nil
	}
	if o.Keep != "" {
		return w.gradientJob().CheckKept(o.Keep, grads.Origin{Model: w.report.Model.Fingerprint, Data: w.calib.Hash})
	}
	if o.File == "" {
		return nil
	}

	return w.collectGradients(ctx)
}

func (w *walk) gradientJob() grads.Job {
	return grads.Job{Model: w.m, IDs: w.calib.IDs, Memory: w.o.Gradients.Memory, Step: func(block, done, of int) {
		w.step(Step{Stage: Gradient, Block: block, Done: done, Of: of})
	}}
}

// computedGradients keeps what it computes in memory, in the type that metrics get.
func (w *walk) computedGradients(ctx context.Context) (map[string]kernels.Mat, error) {
	all := map[string]kernels.Mat{}
	err := w.gradientJob().Each(ctx, &grads.Held{Device: w.dev}, func(l lm.Linear, g []byte) error {
		m, err := grads.Rounded(l, g, kernels.F32, w.o.Gradients.Exact)
		if !m.IsZero() {
			all[grads.Name(l)] = m
		}
		return err
	})
	return all, err
}
