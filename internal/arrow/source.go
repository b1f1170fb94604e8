package arrow

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
)

// goesOn stands before the length of a message; in streams from before Arrow 0.15 it is missing.
const goesOn = 0xffffffff

var (
	magic    = []byte("ARROW1")
	featherV = []byte("FEA1")
)

// source gives the messages of a file to the library, whole and checked: those of a stream as they follow each other,
// those of a file with a footer in the order of the footer.
type source struct {
	r    io.ReaderAt
	size int64
	unpacker
	schema schema
	err    error // why there are no more messages; nil: they are through, or the library made nothing of one

	at     int64   // of a stream: where the next message begins
	places []int64 // of a file with a footer: where the messages begin that are still to come
	footer bool
}

func newSource(r io.ReaderAt, size int64, left *allowance) (*source, error) {
	var head [8]byte
	if size < int64(len(head)) {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, size)
	}
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, err
	}

	in := &source{r: r, size: size, unpacker: unpacker{left: left}, schema: schema{left: left}}
	switch {
	case bytes.HasPrefix(head[:], featherV):
		return nil, fmt.Errorf("%w: Feather of version 1 (HINT: write the file anew with pyarrow.feather)",
			ErrUnsupported)
	case !bytes.HasPrefix(head[:], magic):
		return in, nil
	}

	in.footer = true
	return in, in.readFooter()
}

// readFooter finds the messages of a file with a footer: the schema, the dictionaries, the record batches.
func (in *source) readFooter() error {
	var tail [10]byte
	if in.size < 8+int64(len(tail)) {
		return fmt.Errorf("%w: %d bytes", ErrFormat, in.size)
	}
	if _, err := in.r.ReadAt(tail[:], in.size-int64(len(tail))); err != nil {
		return err
	}

	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if !bytes.Equal(tail[4:], magic) || n < 4 || n > in.size-8-int64(len(tail)) {
		return fmt.Errorf("%w: it ends without a footer; is the file whole?", ErrFormat)
	}
	if err := in.left.take(n); err != nil {
		return err
	}
	footer := make([]byte, n)
	if _, err := in.r.ReadAt(footer, in.size-int64(len(tail))-n); err != nil {
		return err
	}

	in.places = []int64{8}
	err := guarded(func() error {
		t := root(footer)
		for _, slot := range []flatbuffers.VOffsetT{footerDictionaries, footerBatches} {
			blocks, err := t.vector(slot, blockSize)
			if err != nil {
				return err
			}
			for i := range blocks.n {
				in.places = append(in.places, t.GetInt64(blocks.at(i)))
			}
		}
		return nil
	})
	if err != nil {
		return wrapped(fmt.Errorf("footer: %w", err))
	}
	return nil
}

// Message implements [ipc.MessageReader].
func (in *source) Message() (msg *ipc.Message, err error) {
	if in.err != nil {
		return nil, in.err
	}
	if in.footer {
		if len(in.places) == 0 {
			return nil, io.EOF
		}
		in.at, in.places = in.places[0], in.places[1:]
	}

	var meta, body []byte
	err = guarded(func() (err error) {
		meta, body, err = in.next()
		return err
	})
	switch {
	case errors.Is(err, io.EOF) && !in.footer:
		return nil, io.EOF
	case err != nil:
		in.err = wrapped(err)
		return nil, in.err
	}
	return ipc.NewMessage(memory.NewBufferBytes(meta), memory.NewBufferBytes(body)), nil
}

// Retain implements [ipc.MessageReader].
func (in *source) Retain() {}

// Release implements [ipc.MessageReader].
func (in *source) Release() {}

// next reads the message at in.at, and sets that to the one after it. At the end of a stream the error is io.EOF.
func (in *source) next() (meta, body []byte, err error) {
	length, err := in.number()
	if err == nil && length == goesOn {
		length, err = in.number()
	}
	switch {
	case err != nil:
		return nil, nil, err
	case length == 0 && in.footer:
		return nil, nil, fmt.Errorf("%w: an end in the place of a message", ErrFormat)
	case length == 0 && in.at < in.size:
		return nil, nil, fmt.Errorf("%w: %d bytes after the end of the stream", ErrFormat, in.size-in.at)
	case length == 0:
		return nil, nil, io.EOF
	}

	if meta, err = in.bytes(int64(length)); err != nil {
		return nil, nil, err
	}
	m, err := in.schema.checkMessage(meta)
	if err != nil {
		return nil, nil, err
	}
	if body, err = in.bytes(m.body); err != nil {
		return nil, nil, err
	}
	if m.batch != nil {
		body, err = m.batch.unpack(body, &in.unpacker)
	}
	return meta, body, err
}

func (in *source) number() (uint32, error) {
	b, err := in.bytes(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

// bytes reads what comes next. A stream ends by a mark, so that one that a writer did not finish is told from a whole
// one, though the format would allow it to be left out.
func (in *source) bytes(n int64) ([]byte, error) {
	if in.at < 0 || n < 0 || in.at > in.size || n > in.size-in.at {
		return nil, fmt.Errorf("%w: it ends in the middle; is the file whole?", ErrFormat)
	}
	if n > maxBody {
		return nil, fmt.Errorf("%w: a record batch of %d bytes (HINT: write the file anew in smaller batches)",
			ErrUnsupported, n)
	}
	if err := in.left.take(n); err != nil {
		return nil, err
	}

	b := make([]byte, n)
	switch got, err := in.r.ReadAt(b, in.at); {
	case int64(got) == n: // at the very end of the file with io.EOF, which says nothing new
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF // the file has become shorter
	default:
		return nil, err
	}
	in.at += n
	return b, nil
}

// fault is why the library stopped: what was wrong with a message before it got it, or what it says itself.
func (in *source) fault(err error) error {
	if in.err != nil || err == nil {
		return in.err
	}
	return wrapped(err)
}
