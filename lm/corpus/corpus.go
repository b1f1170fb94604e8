package corpus

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// Ignore is the label of a token that is context only: no loss is counted for it.
const Ignore = -100

// Windows is a set of token sequences with the record of where they came from.
type Windows struct {
	IDs [][]int32 `json:"-"`
	// Labels is nil when every token after the first of a window is predicted. Otherwise it is aligned with IDs, and
	// tokens labelled Ignore are context only.
	Labels [][]int32 `json:"-"`

	Count   int    `json:"windows"`
	SeqLen  int    `json:"seqlen"` // tokens of the longest window
	Hash    string `json:"hash"`   // see HashIDs
	Source  string `json:"source"` // path of the file
	Mode    Mode   `json:"mode"`
	Seed    uint64 `json:"seed"`              // of the sampling; 0 also where nothing is sampled
	Docs    int    `json:"documents"`         // records of the file, 1 for plain text, rows for token ids
	Tokens  int64  `json:"tokens"`            // tokens that were read; 0 where documents are sampled
	Dropped int64  `json:"dropped,omitempty"` // tokens at the end that fill no window; 0 where a limit ends it before
	Redrawn int    `json:"redrawn,omitempty"` // sampled documents that were too short
	Blank   int    `json:"blank,omitempty"`   // blank lines of a JSONL file
}

// Batches divides the sequences into those that share a pass of about so many tokens, which bounds memory whatever
// their length. Only IDs and Labels are set in the parts.
func (w Windows) Batches(tokens int) (parts []Windows) {
	batch := max(1, tokens/max(w.SeqLen, 1))
	for at := 0; at < len(w.IDs); at += batch {
		end := min(at+batch, len(w.IDs))
		part := Windows{IDs: w.IDs[at:end]}
		if w.Labels != nil {
			part.Labels = w.Labels[at:end]
		}
		parts = append(parts, part)
	}
	return parts
}

// Mode says how windows were made.
type Mode string

// The modes. Documents and Joined are ways of Sample, Window and Rolling ways of Cut.
const (
	IDs       Mode = "ids"       // rows of a file of token ids, as they are
	Documents Mode = "documents" // a random document, in it a random window
	Joined    Mode = "joined"    // random windows of one long text
	Window    Mode = "window"    // consecutive windows of one long text
	Rolling   Mode = "rolling"   // overlapping windows, each token predicted once
)

// Tokenizer is what windows need of one; *tokenizer.Tokenizer has it.
type Tokenizer interface {
	// Encode returns the ids of a text.
	Encode(text string, o tokenizer.EncodeOptions) ([]int32, error)
	// BOS is the token that begins a text, false if there is none.
	BOS() (id int32, ok bool)
	// EOS is the token that ends a text, false if there is none.
	EOS() (id int32, ok bool)
	// VocabSize is one more than the highest id.
	VocabSize() int
}

// New makes windows of ids that the caller already has, and hashes them.
func New(ids [][]int32, source string) Windows {
	w := Windows{IDs: ids, Count: len(ids), Source: source, Mode: IDs, Docs: len(ids), Hash: HashIDs(ids)}
	for _, row := range ids {
		w.SeqLen = max(w.SeqLen, len(row))
		w.Tokens += int64(len(row))
	}
	return w
}

// HashIDs is the SHA-256, in hex, over every window in order: its length, then its ids, each as a little-endian 32-bit
// integer.
func HashIDs(ids [][]int32) string {
	h := sha256.New()
	var buf []byte
	for _, row := range ids {
		buf = binary.LittleEndian.AppendUint32(buf[:0], uint32(len(row)))
		for _, id := range row {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
		}
		h.Write(buf)
	}

	return hex.EncodeToString(h.Sum(nil))
}

// Check reports, by a nil error, whether all ids lie in a vocabulary of that size. The error wraps ErrVocabulary and
// names the first id that does not.
func (w Windows) Check(vocab int) error {
	for i, row := range w.IDs {
		for j, id := range row {
			if id < 0 || int(id) >= vocab {
				return outside(w.Source, i, j, int64(id), vocab)
			}
		}
	}
	return nil
}

func outside(source string, row, col int, id int64, vocab int) error {
	return fmt.Errorf("%s: row %d, column %d: %w: id %d, the vocabulary has %d", source, row, col, ErrVocabulary, id,
		vocab)
}
