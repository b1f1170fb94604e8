package task

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/data"
)

// CheckData checks that the files of the documents of all chosen tasks can be found, without reading them.
func (s *Suite) CheckData() error {
	var faults []error
	for _, name := range s.tasks {
		t := s.lib.Tasks[name]
		split := t.TestSplit
		if split == "" {
			split = t.ValidationSplit
		}
		if err := (data.Source{Files: t.Data[split], Bases: s.basesOf(t.Path)}).Check(); err != nil {
			faults = append(faults, fmt.Errorf("task %s: %w", name, err))
		}
	}

	return errors.Join(faults...)
}

// basesOf are the folders in which data files of the task in a file are looked for.
func (s *Suite) basesOf(path string) []string {
	if strings.HasPrefix(path, shippedPrefix) {
		return s.bases
	}
	return slices.Insert(slices.Clone(s.bases), 1, filepath.Dir(filepath.FromSlash(path)))
}
