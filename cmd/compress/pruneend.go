package main

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/safetensors"
)

// pack turns the hidden dense folder into the packed output.
func (p *pruning) pack() (*checkpoint.Rewritten, error) {
	bar := p.job.bars()
	defer bar.end()
	o := checkpoint.RewriteOptions{Bitmask: true, MaxShard: checkpoint.KeepShards, Overwrite: p.flags.overwrite}
	r, err := checkpoint.Rewrite(p.job.ctx, p.dense, p.flags.out, o, checkpoint.Env{Device: p.model.Device(), Progress: bar.show})
	if err != nil {
		return nil, err
	}
	r.Source = p.model.Path()
	return r, os.RemoveAll(p.dense)
}

// stop ends the outputs of a failed run: what a later run can go on with is kept after an interrupt or a fault of the
// machine, and removed after a fault of the input.
func (p *pruning) stop(why error) error {
	var errno syscall.Errno
	keep := errors.Is(why, context.Canceled) || errors.Is(why, safetensors.ErrNoSpace) || errors.As(why, &errno)
	if keep {
		err := p.opts.Out.Suspend()
		if p.opts.Masks != nil {
			err = errors.Join(err, p.opts.Masks.Suspend())
		}
		return err
	}
	err := p.opts.Out.Abort()
	if p.opts.Masks != nil {
		err = errors.Join(err, p.opts.Masks.Abort())
	}
	return err
}
