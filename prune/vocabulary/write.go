package vocabulary

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// write writes the checkpoint: of the tables that have a row for each token the rows that stay, everything else as it
// is, and the files of the tokenizer.
func (w *work) write(ctx context.Context) (err error) {
	w.report.Bytes = w.m.DataSize()
	w.report.Tensors = w.tables()
	if w.report.Fingerprint, err = w.m.Fingerprint(ctx); err != nil {
		return err
	}
	job, err := stage.Fingerprint("vocabulary 1", w.report.Fingerprint, w.report.Kept, w.files)
	if err != nil {
		return err
	}

	files := maps.Clone(w.files)
	for _, name := range w.report.LeftOut {
		files[name] = nil
	}
	words := make([]int, len(w.s.Old))
	for i, id := range w.s.Old {
		words[i] = int(id)
	}

	cut := &arch.Cut{Words: words}
	_, notes, err := w.m.Smaller(cut)
	if err != nil {
		return err
	}
	w.report.Notes = append(w.report.Notes, notes...)

	out, err := w.m.NewSaver(w.Out, lm.SaveOptions{
		Overwrite: w.Overwrite, Resume: w.Resume, Fingerprint: job, Own: []string{RecordFile},
		Cut: cut, Files: files,
	})
	if err != nil {
		return err
	}

	if err := w.finish(ctx, out); err != nil {
		if stage.Resumable(ctx, err) {
			return errors.Join(err, out.Suspend())
		}
		return errors.Join(err, out.Abort())
	}
	return nil
}

// finish adds the record and writes everything.
func (w *work) finish(ctx context.Context, out *lm.Saver) error {
	if out.Complete() {
		return nil
	}

	text, err := w.record()
	if err != nil {
		return err
	}
	if err := out.AddFile(RecordFile, text); err != nil {
		return err
	}
	return out.Finish(ctx)
}

// tables lists the tensors that have a row for each token.
func (w *work) tables() (names []string) {
	c := w.m.Config()
	for _, t := range c.Arch.Tensors {
		if len(t.Shape) > 0 && t.Shape[0] == "vocab" && c.Holds(t.When, -1) {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}
