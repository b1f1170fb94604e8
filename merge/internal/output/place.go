package output

import (
	"fmt"
	"os"

	"github.com/modelcompress/compress/internal/stage"
)

// Stage is the hidden folder that becomes the output. What is put there in folders of their own stays, and is
// published with the rest.
func (f *Folder) Stage() string { return f.place.Dir }

// Apart reports whether dst can be an output beside an input: it is not the input's folder, does not hold it and is not
// in it. The error wraps ErrInPlace or stage.ErrTarget.
func Apart(input, dst string) error {
	x, err := os.Stat(input)
	if err != nil {
		return stage.Apart(input, dst)
	}
	if y, err := os.Stat(dst); err == nil && os.SameFile(x, y) {
		return fmt.Errorf("%s: %w", dst, ErrInPlace)
	}
	return stage.Apart(input, dst)
}
