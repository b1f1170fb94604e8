package ggufmodel

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/safetensors"
)

// Encoding is how the values of a tensor are stored.
type Encoding struct {
	Type gguf.Type
	// Encode writes rows, of which first is the number of the first one, to dst, whole blocks of the type. It may be
	// called from several goroutines at once, and keeps neither; nil for F32, F16 and BF16.
	Encode func(dst []byte, rows []float32, first int) error
}

// Journal notes which tensors are on the disk, so that a killed run is continued.
type Journal interface {
	// Done reports whether a tensor was noted.
	Done(name string) (bool, error)
	// Note notes tensors whose bytes are durable.
	Note(names []string) error
}

// noteAfter is how many bytes of tensors are written between two entries of the journal, each of which waits for the
// disk.
const noteAfter = 64 << 20

// WriteOptions says how a file is written. Read must be there.
type WriteOptions struct {
	Read RowReader
	// As is how a tensor is stored; nil: in F32. It is called once for each tensor, in their order.
	As        func(t *Target) (Encoding, error)
	Overwrite bool
	// Journal makes that an unfinished file is continued, if it has the layout of this one; nil: a new one is begun.
	Journal Journal
	Threads int // 0: as many as there are processors
	Window  int // float32 values that each thread holds; 0: 1 Mi
}

// Write writes the file, which gets its name when it is complete. The errors are those of [gguf.Create], of Read and of
// the callbacks, and of a context that ends; nothing is left then, or with a Journal what the next run continues.
func (e *Export) Write(ctx context.Context, path string, o WriteOptions) (err error) {
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Window <= 0 {
		o.Window = 1 << 20
	}

	stored, infos, err := e.encodings(o)
	if err != nil {
		return err
	}
	w, resumed, err := e.start(path, infos, o)
	if err != nil {
		return err
	}
	done := &finished{journal: o.Journal}
	defer func() {
		if err == nil {
			return
		}
		_ = done.note(w) // what is not noted the next run makes again
		if o.Journal == nil {
			err = errors.Join(err, w.Abort())
		} else {
			err = errors.Join(err, w.Suspend())
		}
	}()

	for i, t := range e.Tensors {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := e.tensor(ctx, w, t, stored[i], resumed, o, done); err != nil {
			return err
		}
	}

	return w.Finish()
}

// finished is the tensors that are written and not noted yet.
type finished struct {
	journal Journal // nil: nobody notes
	names   []string
	bytes   int64
}

// add takes a tensor, and notes all where enough has come together.
func (f *finished) add(w *gguf.Writer, name string, bytes int64) error {
	if f.journal == nil {
		return nil
	}
	f.names = append(f.names, name)
	f.bytes += bytes
	if f.bytes < noteAfter {
		return nil
	}
	return f.note(w)
}

// note makes the tensors durable and notes them.
func (f *finished) note(w *gguf.Writer) error {
	if len(f.names) == 0 {
		return nil
	}
	if err := w.Sync(); err != nil {
		return err
	}
	if err := f.journal.Note(f.names); err != nil {
		return err
	}
	f.names = f.names[:0]
	f.bytes = 0
	return nil
}

// encodings asks how every tensor is stored.
func (e *Export) encodings(o WriteOptions) (stored []Encoding, infos []gguf.Info, err error) {
	for _, t := range e.Tensors {
		one := Encoding{Type: gguf.F32}
		if o.As != nil {
			if one, err = o.As(t); err != nil {
				return nil, nil, err
			}
		}
		if one.Encode == nil {
			if one.Encode, err = Plain(one.Type); err != nil {
				return nil, nil, err
			}
		}
		stored = append(stored, one)
		infos = append(infos, t.Info(one.Type))
	}
	return stored, infos, nil
}

// start begins the file, or goes on with it.
func (e *Export) start(path string, infos []gguf.Info, o WriteOptions) (w *gguf.Writer, resumed bool, err error) {
	options := gguf.Options{Overwrite: o.Overwrite}
	if o.Journal != nil {
		w, err = gguf.Reopen(path, infos, e.Metadata, options)
		if !errors.Is(err, gguf.ErrNoPartial) && !errors.Is(err, gguf.ErrLayoutChanged) {
			return w, true, err
		}
	}
	w, err = gguf.Create(path, infos, e.Metadata, options)
	return w, false, err
}

// tensor writes a tensor, if it is not there.
func (e *Export) tensor(ctx context.Context, w *gguf.Writer, t *Target, as Encoding, resumed bool, o WriteOptions,
	done *finished,
) error {
	if w.Done(t.Name) {
		return nil
	}
	if resumed {
		if there, err := o.Journal.Done(t.Name); err != nil {
			return err
		} else if there {
			return w.MarkDone(t.Name)
		}
	}

	err := t.write(ctx, w, as, o)
	if fault := (*gguf.Error)(nil); errors.As(err, &fault) && fault.Tensor == t.Name {
		return err // of the file that is written, which names the tensor by itself
	}
	if err != nil {
		return fmt.Errorf("%s: tensor %q: %w", e.path, t.Name, err)
	}
	return done.add(w, t.Name, int64(t.Rows())*t.Info(as.Type).RowSize())
}

// write writes the rows of a tensor, some by each thread.
func (t *Target) write(ctx context.Context, w *gguf.Writer, as Encoding, o WriteOptions) error {
	row := int(t.Info(as.Type).RowSize())
	step := max(o.Window/max(t.width, 1)/t.Band, 1) * t.Band
	pieces := (t.Rows() + step - 1) / step
	next := make(chan int)
	group, ctx := mmapsafe.WithContext(ctx)
	group.Go(func() error {
		defer close(next)
		for i := range pieces {
			select {
			case next <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})

	for range min(o.Threads, pieces) {
		group.Go(func() error {
			values := make([]float32, min(step, t.Rows())*t.width)
			data := make([]byte, min(step, t.Rows())*row)
			for i := range next {
				n := min(step, t.Rows()-i*step)
				rows := values[:n*t.width]
				if err := t.ReadRows(rows, i*step, n, o.Read); err != nil {
					return err
				}
				if err := as.Encode(data[:n*row], rows, i*step); err != nil {
					return t.located(err, rows, i*step)
				}
				if err := w.WriteAt(t.Name, data[:n*row], int64(i)*int64(step)*int64(row)); err != nil {
					return err
				}
			}
			return nil
		})
	}

	return group.Wait()
}

// located says where in the checkpoint the value is that cannot be written, if it is none: rows of a file may be rows
// of others, and in another order. first is the number of the first of the rows.
func (t *Target) located(err error, rows []float32, first int) error {
	at := dtype.NonFinite(rows)
	if at < 0 || t.values != nil {
		return err
	}

	row, col := first+at/t.width, at%t.width
	for _, s := range t.matrices[row/t.height] {
		in := row%t.height - s.first
		switch {
		case s.vector || t.flipped || in < 0 || in >= s.rows:
			continue
		case s.transposed:
			return fmt.Errorf("%w; in the model, element [%d, %d] of %q", err, col, s.at(in), s.source)
		}
		return fmt.Errorf("%w; in the model, element [%d, %d] of %q", err, s.at(in), col, s.source)
	}
	return err
}

// Plain gives the encoder of a type of floating-point numbers: F32, or F16 and BF16 rounded to the nearest.
func Plain(as gguf.Type) (func(dst []byte, rows []float32, first int) error, error) {
	types := map[gguf.Type]safetensors.DType{
		gguf.F32: safetensors.F32, gguf.F16: safetensors.F16, gguf.BF16: safetensors.BF16,
	}
	d, ok := types[as]
	if !ok {
		return nil, fmt.Errorf("%v needs an encoder", as)
	}
	return func(dst []byte, rows []float32, _ int) error { return dtype.Encode(dst, rows, d) }, nil
}
