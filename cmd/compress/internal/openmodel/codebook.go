package openmodel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/lm"
)

// ErrContext refuses a checkpoint whose facts stand before every prompt: without them it is another model.
var ErrContext = errors.New("the facts of in-context editing stand before every prompt, which compress edit alone " +
	"does (HINT: put them there yourself, or write them into the weights with another --method)")

// ErrBehind refuses to make another model of weights that are not all there is.
var ErrBehind = errors.New("edits of this checkpoint (grace, wise, memoir, ike) are not in its weights, and would be " +
	"left behind (HINT: write them into the weights with another --method, or remove edits.journal to go on without " +
	"them)")

// AttachCodebook lets the codebook or side memory of an edited checkpoint, if it has one, answer in a model that was
// loaded from its folder. Facts in context are refused with [ErrContext], and a memory that was made for other weights
// with [edit.ErrForeign].
func AttachCodebook(j *cli.Job, m *lm.Model) error {
	remark, err := EnterCodebook(j.Ctx, m)
	if remark != "" {
		j.Remark("%s: %s", m.Path(), remark)
	}
	return err
}

// EnterCodebook is [AttachCodebook] that leaves to the caller where a reader learns of it: remark is empty where
// nothing was attached.
func EnterCodebook(ctx context.Context, m *lm.Model) (remark string, err error) {
	mem, err := edit.ReadMemory(m.Path())
	if err != nil || mem == nil {
		return "", err
	}

	if len(mem.Context) > 0 {
		return "", fmt.Errorf("%s: %s: %w", m.Path(), edit.JournalName, ErrContext)
	}
	if err := mem.Belongs(ctx, m); err != nil {
		return "", err
	}
	if _, err := mem.Attach(m); err != nil {
		return "", fmt.Errorf("%s: %w", m.Path(), err)
	}

	name, size := mem.Describe()
	return fmt.Sprintf("the %s of %s (%s) answers wherever its keys are near", name, edit.JournalName, size), nil
}

// OnlyWeights refuses folders whose edits are not all in their weights: what is made of the weights alone would lose
// them without a word. The error wraps [ErrBehind]. Files that are no folders of models have no edits.
func OnlyWeights(dirs ...string) error {
	for _, dir := range dirs {
		mem, err := edit.ReadMemory(dir)
		if err != nil {
			if errors.Is(err, edit.ErrJournal) {
				return err
			}
			continue // whoever opens the folder says what is wrong with it
		}

		if mem != nil {
			return fmt.Errorf("%s: %s: %w", dir, edit.JournalName, ErrBehind)
		}
	}

	return nil
}

// EditsIdentity is a text that changes with what the edits of a checkpoint keep outside of its weights; empty where
// there is nothing.
func EditsIdentity(ctx context.Context, dir string) (string, error) {
	mem, err := edit.ReadMemory(dir)
	if err != nil || mem == nil {
		return "", err
	}
	sum, err := cli.FileHash(ctx, filepath.Join(dir, edit.JournalName))
	return "edited " + sum, err
}
