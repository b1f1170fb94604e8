package openmodel

import (
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
)

// Attach lets the codebook of an edited checkpoint act on its model, then the adapter in a folder; an empty
// path means none. undo takes the adapter off again. One that was trained on another base is attached with a
// remark.
func Attach(j *cli.Job, m *lm.Model, dir string) (a *lora.Adapter, undo func(), err error) {
	if err := AttachCodebook(j, m); err != nil {
		return nil, nil, err
	}
	return AttachAdapter(j, m, dir)
}

// AttachAdapter lets the adapter alone act.
func AttachAdapter(j *cli.Job, m *lm.Model, dir string) (a *lora.Adapter, undo func(), err error) {
	if dir == "" {
		return nil, func() {}, nil
	}
	if a, err = lora.Open(dir, m); err != nil {
		return nil, nil, err
	}

	remark, err := a.OtherBase(j.Ctx, m)
	if err != nil {
		return nil, nil, err
	}

	if remark != "" {
		j.Remark("%s: %s", dir, remark)
	}

	undo, err = a.Attach(m)
	return a, undo, err
}
