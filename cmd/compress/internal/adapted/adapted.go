// Package adapted puts the adapter that --adapter names onto a model.
package adapted

import (
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
)

// Attach lets the adapter in a folder act on a model; an empty path means none. undo takes it off again. One that was trained on
// another base is attached with a remark.
func Attach(j *shell.Job, m *lm.Model, dir string) (a *lora.Adapter, undo func(), err error) {
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
