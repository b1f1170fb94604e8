package lm

import "github.com/modelcompress/compress/lm/internal/stage"

// ErrFileName: [Saver.AddFile] got a name that it cannot use.
var ErrFileName = stage.ErrFileName

// AddFile adds a small file of the caller's to the output: Finish writes it beside the weights. It does nothing once the output
// is complete. The error wraps [ErrFileName] for a name that is no plain file name, or that the weights or a file of the
// source have.
func (s *Saver) AddFile(name string, data []byte) error { return s.folder.AddFile(name, data) }
