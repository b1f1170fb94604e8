// Package adapted puts the adapter that --adapter names onto a model.
package adapted

import (
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
)

// Attach lets the adapter in a folder act on a model; an empty path means none. undo takes it off again.
func Attach(m *lm.Model, dir string) (a *lora.Adapter, undo func(), err error) {
	if dir == "" {
		return nil, func() {}, nil
	}
	if a, err = lora.Open(dir, m); err != nil {
		return nil, nil, err
	}
	undo, err = a.Attach(m)
	return a, undo, err
}
