package input

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
)

// ErrEdited refuses a checkpoint with edits that are not in its weights, which a merge would leave behind.
var ErrEdited = failure.New("edits of this checkpoint (grace, wise, memoir, ike) are not in its weights, and would be "+
	"left behind",
	"write them into the weights with another --method, or remove edits.journal to go on without them")

// journal is the file that compress edit writes beside the weights.
const journal = "edits.journal"

// beside are the keys under which the journal keeps what is not in the weights: quotes inside of strings are
// escaped, so that these stand nowhere else.
var beside = [][]byte{[]byte(`"codes":[{`), []byte(`"memory":{`), []byte(`"context":[`)}

// whole refuses a folder whose journal has a codebook, a side memory or facts in context. It reads in pieces that
// overlap by the longest key.
func whole(dir string) error {
	path := filepath.Join(dir, journal)
	f, err := safefile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	defer f.Close()

	const overlap = 16
	buf, kept := make([]byte, overlap+1<<20), 0
	for {
		n, err := io.ReadFull(f, buf[kept:])
		piece := buf[:kept+n]
		for _, key := range beside {
			if bytes.Contains(piece, key) {
				return fmt.Errorf("%s: %w", path, ErrEdited)
			}
		}

		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}

		kept = copy(buf, piece[len(piece)-overlap:])
	}
}
