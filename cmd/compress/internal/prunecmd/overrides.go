package prunecmd

import (
	"errors"
	"fmt"
	"io"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/prune"
)

// maxOverrides is the size of the largest file of overrides: far more than anyone writes.
const maxOverrides = 16 << 10

// ErrOverrides: a file of overrides that cannot be understood.
var ErrOverrides = errors.New("bad file of overrides")

// ReadOverrides reads a YAML list of [prune.Override]: keys match, roles and blocks choose matrices, and dense,
// sparsity or pattern says what becomes of them. Unknown keys are errors; every fault of the file is
// named at its line and column, and the error wraps ErrOverrides.
func ReadOverrides(path string) ([]prune.Override, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, maxOverrides+1))
	if err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}

	if len(text) > maxOverrides {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrOverrides, maxOverrides)
	}

	list, err := parse(path, text)
	if err != nil {
		return nil, strictyaml.OneLine(ErrOverrides, err)
	}

	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %w: want a list of overrides, such as \"- {blocks: [0], dense: true}\"", path,
			ErrOverrides)
	}

	return list, nil
}

// parse reads the list.
func parse(path string, text []byte) (list []prune.Override, err error) {
	src, err := strictyaml.Parse(path, text)
	if err != nil {
		return nil, err
	}

	r := src.NewReader()
	top := r.Only(src, "a file of overrides")
	if top == nil {
		return nil, r.Err()
	}

	for _, n := range r.List(top, "a file of overrides") {
		var one prune.Override
		r.Decode(n, "an override", &one)
		list = append(list, one)
	}

	return list, r.Err()
}
