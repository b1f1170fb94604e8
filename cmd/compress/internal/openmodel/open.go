// Package openmodel opens any kind of model that a verb computes with: what a folder holds, the codebook of its edits
// ([AttachCodebook]), an adapter ([AttachAdapter]), and the experts of a mediated folder ([OpenExperts]). [Open] does
// all of it.
package openmodel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
)

// Options say what acts on a model beside its weights.
type Options struct {
	Adapter string // folder of an adapter; empty: none
	Experts string // which experts of a mediated folder answer, as --experts has it
}

// Model is a model with all that acts on it.
type Model struct {
	*lm.Model
	Adapter *lora.Adapter // nil: none
	Experts *Experts      // nil: the folder is not mediated

	detach func()
}

// Open loads a model and lets act on it the codebook of its edits, then an adapter, then experts: an adapter is trained
// on the model as its edits make it, and experts are chosen by what the whole computes on a prompt.
func Open(j *cli.Job, path string, load lm.Options, o Options) (*Model, error) {
	loaded, err := j.Load(path, load)
	if err != nil {
		return nil, err
	}

	m := &Model{Model: loaded}
	if m.Adapter, m.detach, err = Attach(j, loaded, o.Adapter); err == nil {
		m.Experts, err = OpenExperts(j, loaded, o.Experts)
	}
	if err != nil {
		return nil, errors.Join(err, loaded.Close())
	}

	return m, nil
}

// Detach takes the adapter off again, so that its own parameters can be differentiated.
func (m *Model) Detach() { m.detach() }

// Close lets go of the experts and the model.
func (m *Model) Close() error { return errors.Join(m.Experts.Close(), m.Model.Close()) }

// Identity lists texts that change with all that acts on the model in a folder beside its weights.
func Identity(ctx context.Context, dir string, o Options) (parts []any, err error) {
	experts, err := ExpertsIdentity(ctx, dir, o.Experts)
	if err != nil {
		return nil, err
	}

	edits, err := EditsIdentity(ctx, dir)
	if err != nil {
		return nil, err
	}

	for _, part := range []string{experts, edits} {
		if part != "" {
			parts = append(parts, part)
		}
	}

	if o.Adapter == "" {
		return parts, nil
	}

	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		sum, err := cli.FileHash(ctx, filepath.Join(o.Adapter, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: no adapter here: %w (HINT: give the folder that training has written)",
				o.Adapter, err)
		}
		if err != nil {
			return nil, err
		}
		parts = append(parts, sum)
	}

	return parts, nil
}
