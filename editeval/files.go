package editeval

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/modelcompress/compress/internal/regular"
)

// maxFile bounds the files of results that are read again.
const maxFile = 2 << 30

// writeFile writes a file so that it is there completely or not at all.
func writeFile(path string, data []byte) error { return renameio.WriteFile(path, data, 0o666) }

// writeJSON writes a value, in a folder that is made if need be.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o777)
	}
	if err != nil {
		return err
	}
	return writeFile(path, append(text, '\n'))
}

// readJSON reads a value back.
func readJSON(path string, v any) error {
	text, err := regular.ReadFile(path, maxFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// column reads a column of a table with a line of headings.
func column(path, name string) ([]string, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	head, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: no line of headings: %w", path, ErrData, err)
	}
	at := slices.Index(head, name)
	if at < 0 {
		return nil, fmt.Errorf("%s: %w: no column %q; there are %q", path, ErrData, name, head)
	}
	var out []string
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", path, ErrData, err)
		}
		out = append(out, row[at])
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w: no prompts", path, ErrData)
	}
	return out, nil
}
