package editeval

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/safefile"
)

// maxFile bounds the files of results that are read again.
const maxFile = 2 << 30

// writeFile writes a file so that it is there completely or not at all.
func writeFile(path string, data []byte) error { return safefile.WriteFile(path, data, 0o666) }

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
	text, err := safefile.ReadFile(path, maxFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
