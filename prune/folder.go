package prune

import (
	"context"
	"errors"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// FolderOptions say what [Folder] reads and how it writes; the zero value is for options that need no text.
type FolderOptions struct {
	// Calib is the text that is run through the model: plain text, JSON Lines, Parquet, Arrow or token ids. Empty:
	// none, which only options without [Options.NeedsCalibration] can do with.
	Calib string
	// Sample says how sequences are drawn from it. The zero value is what papers do: 128 of 2048 tokens, or as many as
	// the model has positions. 32 sequences of 512 tokens take a sixteenth of that.
	Sample corpus.SampleOptions
	// Overwrite replaces a checkpoint that is in the output folder; Resume goes on with an interrupted run of the same
	// job, to the same bytes.
	Overwrite, Resume bool
}

// Folder prunes the checkpoint in one folder into another one: [lm.Load], [lm.Model.Sample], [Model], and the end
// of the output whatever happens. dst appears when it is complete. A run that was interrupted, or met a full disk,
// keeps what it has finished for Resume; after any other error nothing stays. The model is in memory a decoder
// layer at a time. Options' Out is set here.
func Folder(ctx context.Context, src, dst string, dev kernels.Device, o Options, f FolderOptions) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	m, err := lm.Load(ctx, src, dev, lm.Options{Stream: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	var calib corpus.Windows
	if f.Calib != "" && o.NeedsCalibration() {
		if calib, err = m.Sample(ctx, f.Calib, f.Sample); err != nil {
			return nil, err
		}
	}

	if err := Check(ctx, m, calib, o); err != nil {
		return nil, err
	}
	if err := o.Begin(ctx, m, calib, dst, lm.SaveOptions{Overwrite: f.Overwrite, Resume: f.Resume}); err != nil {
		return nil, err
	}

	r, err := Model(ctx, m, calib, o)
	if err != nil {
		return nil, errors.Join(err, o.Stop(err))
	}
	return r, nil
}

// Begin opens a folder as the options' Out, for the job that they are: it is begun before long work, so that what is in
// the way is found, and [Model] finishes it. The fingerprint is [Fingerprint]'s.
func (o *Options) Begin(ctx context.Context, m *lm.Model, calib corpus.Windows, dst string, s lm.SaveOptions) error {
	var err error
	if s.Fingerprint, err = Fingerprint(ctx, m, calib, *o); err != nil {
		return err
	}
	o.Out, err = m.NewSaver(dst, s)
	return err
}

// Stop ends the outputs of a run that has failed: what a later one can go on with is kept after an interruption or a
// fault of the machine ([Resumable]), and removed after a fault of the input.
func (o *Options) Stop(why error) error {
	resumable := Resumable(why)
	end := func(suspend, abort func() error) error {
		if resumable {
			return suspend()
		}
		return abort()
	}

	if f := o.Factors; f != nil {
		defer func() { _ = end(f.Suspend, f.Abort) }() // what went wrong first is what counts
	}
	err := end(o.Out.Suspend, o.Out.Abort)
	if o.Masks != nil {
		err = errors.Join(err, end(o.Masks.Suspend, o.Masks.Abort))
	}
	return err
}
