package openmodel

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Lookup is the draft that copies from the text.
const Lookup = "lookup"

// Drafts opens what proposes tokens for m, as --draft has it, and returns what makes a draft for one text, with what
// ends that draft; nil without a draft. of is the model that proposes, nil where none does, and closeIt lets go of it.
func Drafts(j *cli.Job, m *lm.Model, draft string, load lm.Options) (
	begin func() (d lm.Draft, end func(), err error), of *lm.Model, closeIt func(), err error,
) {
	switch draft {
	case "":
		return nil, nil, func() {}, nil
	case Lookup:
		begin = func() (lm.Draft, func(), error) { return lm.PromptLookup{}, func() {}, nil }
		return begin, nil, func() {}, nil
	}

	// Its rounding costs proposals at most, so it always takes the fastest products.
	load.Precision = kernels.Fast
	small, err := openDraft(j, draft, load)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("--draft: %w", err)
	}
	begin = func() (lm.Draft, func(), error) {
		d, err := m.NewDraft(small)
		if err != nil {
			return nil, nil, err
		}
		return d, d.Close, nil
	}

	// Whether it fits shows now.
	_, end, err := begin()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("--draft: %w", errors.Join(err, small.Close()))
	}
	end()
	return begin, small, func() { small.Close() }, nil
}

// openDraft loads a model without the remarks about how it computes: nobody asked for a way.
func openDraft(j *cli.Job, path string, load lm.Options) (*lm.Model, error) {
	if err := cli.ModelFolder(path); err != nil {
		return nil, err
	}
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}
	return lm.Load(j.Ctx, path, dev, load)
}
