package prunecmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// CompareOptions are the settings of a comparison, as the command line has them.
type CompareOptions struct {
	Options
	Methods, Patterns string // separated by commas
	Keep              bool   // keep the pruned models
}

// Compare prunes a model in several ways and measures each.
func Compare(j *cli.Job, path string, o CompareOptions) (any, error) {
	list, err := o.contenders()
	if err != nil {
		return nil, err
	}

	how := prune.CompareOptions{Dir: o.Out, Keep: o.Keep, Resume: o.Resume, Overwrite: o.Overwrite}
	how.Open = func(_ context.Context, dir string) (*lm.Model, error) {
		return j.Load(dir, lm.Options{Stream: true, Decode: true})
	}
	if err := how.Check(path); err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	calib, err := o.calibration(j, m, list)
	if err != nil {
		return nil, err
	}

	test, err := j.Cut(m, o.PPL, corpus.CutOptions{SeqLen: o.SeqLen})
	if err != nil {
		return nil, err
	}

	disk := int64(0)
	for _, one := range list {
		disk = max(disk, one.Options.SearchDisk(m))
	}
	noteSearch(j, disk)

	d := newDisplay(j, m, list, calib, test)
	defer d.bar.End()
	if !o.Resume {
		if err := d.forecast(); err != nil {
			return nil, err
		}
	}
	how.Events = d.events()
	how.Events.Pruned = func(m *lm.Model, opts prune.Options, folder string, r *prune.Report) error {
		d.bar.End()
		p := pruning{job: j, flags: o.Options, opts: opts, model: m, calib: calib, dense: folder}
		return p.remarks(&Report{Report: r})
	}

	r, err := prune.Compare(j.Ctx, m, calib, test, list, how)
	if err != nil {
		return nil, err
	}

	d.bar.End()
	j.Table(table(r))
	if r.Resumed > 0 {
		j.Note("%d of %d runs were taken from the journal", r.Resumed, len(list))
	}

	return r, write(j, o.Out, r)
}

// CheckCompare finds what is wrong with flags by themselves.
func CheckCompare(o CompareOptions) error {
	_, err := o.contenders()
	return err
}

// contenders turns the lists into runs, of which all are checked before the first one.
func (o *CompareOptions) contenders() ([]prune.Contender, error) {
	if err := o.CheckCalibration(); err != nil {
		return nil, err
	}

	shared := prune.Options{Group: prune.Group(o.Group)}
	if err := o.Apply(&shared); err != nil {
		return nil, misread(err)
	}

	list, err := prune.Contenders(o.Methods, o.Patterns, shared)
	if err != nil {
		return nil, misread(err)
	}

	for i := range list {
		if o.Calib == "" && list[i].Options.NeedsCalibration() {
			return nil, fmt.Errorf("%s, %s: %w", list[i].Target, list[i].Method, noData(list[i].Options))
		}
	}

	return list, nil
}

// calibration makes the sequences that all runs share, if any of them needs them.
func (o *CompareOptions) calibration(j *cli.Job, m *lm.Model, list []prune.Contender) (corpus.Windows, error) {
	for i := range list {
		if list[i].Options.NeedsCalibration() {
			return calibration(j, m, o.Options, list[i].Options)
		}
	}
	return corpus.Windows{}, nil
}

// write writes the two reports.
func write(j *cli.Job, dir string, r *prune.Comparison) error {
	data, err := j.Record(r)
	if err != nil {
		return err
	}

	var html bytes.Buffer
	if err := page(r, j.SourceRemarks()).HTML(&html); err != nil {
		return err
	}

	err = errors.Join(cli.WriteFile(filepath.Join(dir, "report.json"), data),
		cli.WriteFile(filepath.Join(dir, "report.html"), html.Bytes()))
	if err == nil {
		j.Printf("report.json and report.html are in %s\n", dir)
	}

	return err
}
