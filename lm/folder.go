package lm

import "github.com/modelcompress/compress/lm/internal/stage"

// Folder is a checkpoint in the making that is written tensor by tensor: it appears under its name when it is complete, and an
// interrupted one is continued. [Saver] is built on it; it is for outputs whose tensors are not those of one open model.
type Folder = stage.Folder

// FolderPlan is what goes into a [Folder]'s files.
type FolderPlan = stage.Plan

// FolderOptions of [OpenFolder].
type FolderOptions = stage.Options

// OpenFolder starts, or with Resume continues, the output at dir. The errors are those of [Model.NewSaver].
func OpenFolder(dir string, p FolderPlan, o FolderOptions) (*Folder, error) {
	return stage.Open(dir, p, o)
}
