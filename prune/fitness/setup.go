package fitness

import (
	"context"
	"fmt"
	"os"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/disk"
	"github.com/modelcompress/compress/prune/internal/grads"
	"github.com/modelcompress/compress/safetensors"
)

// The stages of the set-up of a model.
const (
	StageGradients  = "gradients"  // over the calibration data, backward
	StageStatistics = "statistics" // of what flows into the matrices
)

// Setup is what it takes to get a model ready, estimated before the work from a pass through one block.
type Setup struct {
	Model      string  `json:"model"`
	Gradients  float64 `json:"gradient_seconds"`   // 0: an earlier run has left them
	Statistics float64 `json:"statistics_seconds"` //
	// the models, one for each measurement at the same time, and the gradients
	Memory int64 `json:"memory_bytes"`
	Disk   int64 `json:"disk_bytes"`      // at most at a time; 0: an earlier run has left them
	Free   int64 `json:"disk_free_bytes"` // -1 where the system does not tell
}

// Seconds is the time of all stages.
func (p *Setup) Seconds() float64 { return p.Gradients + p.Statistics }

// tokens are counted.
func tokens(ids [][]int32) (n int) {
	for _, row := range ids {
		n += len(row)
	}
	return n
}

// show is the progress of a stage.
func (s *subject) show(stage string) func(done, of int64) {
	return func(done, of int64) {
		if s.o.Progress != nil {
			s.o.Progress(s.Name, stage, done, of)
		}
	}
}

// silent is the progress of what is made beside measurements.
func silent(int64, int64) {}

// plan estimates what the set-up takes, and refuses what cannot fit on the disk.
func (s *subject) plan(ctx context.Context) error {
	weights, bytes, err := s.sizes()
	if err != nil {
		return err
	}

	free, _ := disk.Free(s.o.Dir)
	job := grads.Job{Model: s.dense, IDs: s.Calib.IDs}
	p := Setup{
		Model: s.Name, Memory: int64(1+s.o.Benches)*bytes + 2*weights, Disk: job.Disk(weights, true),
		Free: free,
	}

	if _, err := os.Stat(s.gradientPath(s.Calib.Hash)); err == nil || !s.uses(gp.G) {
		p.Disk = 0 // an earlier run has left them, or nobody asks for them
	}
	if err := room(p.Disk, p.Free, s.o.Dir); err != nil || s.o.Plan == nil {
		return err
	}

	pass, err := s.dense.Pace(ctx, s.Calib.IDs)
	if err != nil {
		return err
	}

	if p.Disk > 0 {
		p.Gradients = job.Work() * pass
	}

	p.Statistics = float64(tokens(s.Calib.IDs)) * float64(s.dense.Blocks()) * pass
	s.o.Plan(p)
	return nil
}

// sizes are how many weights the matrices of the model have, and how many bytes all of its parameters take.
func (s *subject) sizes() (weights, bytes int64, err error) {
	size := 4
	for l := range s.dense.Blocks() {
		for _, lin := range s.dense.Linears(l) {
			weights += int64(lin.In) * int64(lin.Out)
			w, err := s.dense.Param(lin.Name)
			if err != nil {
				return 0, 0, err
			}
			size = w.DType().Size()
		}
	}

	return weights, s.dense.NumParameters() * int64(size), nil
}

// room refuses what does not fit.
func room(need, free int64, dir string) error {
	if free >= 0 && need > free {
		return fmt.Errorf("%s: %w: the gradients take %d bytes, %d are free", dir, safetensors.ErrNoSpace, need, free)
	}
	return nil
}
