package fold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/sparse"
	"github.com/modelcompress/compress/safetensors"
)

// Options of [Run].
type Options struct {
	Overwrite bool // replace a checkpoint that is there
	Resume    bool // continue an interrupted run of the same work
	Safe      bool // round the delta to the base's element type before it is added
	// KeepZeros leaves zeros of the base's matrices alone: what the adapter would put there is lost, and the
	// report says how much that is.
	KeepZeros    bool
	MaxShardSize int64  // bytes per file; 0: files as in the base
	Threads      int    // 0: all processors
	Job          string // fingerprint of base, adapter and options
	// elements that one thread computes at a time, in whole rows; 0: 512 Ki; only DoRA's norms of columns
	// depend on it, by rounding
	Block int
	Batch int64 // bytes that may have to be written again after a crash; 0: 64 MiB
	// Progress is told how many bytes of the output are there; nil: nobody wants to know.
	Progress func(name string, done, total int64)
}

// Report says what folding did.
type Report struct {
	Out     string
	Edited  int // tensors that the adapter changes
	Copied  int // tensors that stay as they are
	Resumed int // edited tensors that an interrupted run had finished; they are not in Tensors
	Bytes   int64
	Untied  bool   // the head is no longer the token table
	Zeros   *Zeros // of the tensors; nil where none has any before or after
	Tensors []Tensor
}

// Tensor says how a tensor has changed.
type Tensor struct {
	Name     string
	Elements int64
	Moved    int64   // elements whose stored value has changed
	MaxAbs   float64 // largest change
	Relative float64 // norm of the change by the norm of what was there

	Before int64
	After  int64
	// norm of the change that keeping zeros left out, by the norm of the whole change
	Lost float64

	change, left float64 // squares of the whole change, and of what was left out
}

// Zeros counts the elements that are zero in the matrices that the adapter changes.
type Zeros struct {
	Kept     bool // where the base has them
	Pruned   int  // matrices with at least [sparse.Pruned] zeros before
	Elements int64
	Before   int64
	After    int64
	// norm of the change that keeping zeros left out, by the norm of the whole change
	Lost float64
}

// Run writes the base with the adapter folded in to the folder out. After an error, or when ctx is cancelled,
// the unfinished output is kept if a run with Resume can continue it. The errors wrap [adapter.ErrBase],
// [adapter.ErrUnsupported], [adapter.ErrFile] for a result that is not finite, or are those of [lm.OpenFolder].
func Run(ctx context.Context, base *adapter.Checkpoint, a *adapter.Adapter, out string, o Options) (*Report, error) {
	p, err := makePlan(base, a)
	if err != nil {
		return nil, err
	}

	w := &writer{base: base, plan: p, opts: o, report: &Report{Out: out, Untied: p.untie, Tensors: []Tensor{}}}
	files := w.layout()
	w.folder, err = lm.OpenFolder(out, files, lm.FolderOptions{
		Overwrite: o.Overwrite, Resume: o.Resume, Fingerprint: o.Job, Source: base.Dir, Config: w.config(),
	})
	if err != nil {
		return nil, err
	}

	if a.Config.KeepZeros { // it was trained so, and what its factors say there has never counted
		w.opts.KeepZeros = true
		w.trained = true
	}

	if err := w.run(ctx, files.Tensors); err != nil {
		if hopeless(err) {
			return nil, joined(err, w.folder.Abort())
		}
		return nil, joined(err, w.folder.Suspend())
	}

	w.zeros()
	return w.report, nil
}

// zeros sums the zeros of the matrices up.
func (w *writer) zeros() {
	z := Zeros{Kept: w.opts.KeepZeros}
	change, left := 0.0, 0.0
	for _, t := range w.report.Tensors {
		if !w.plan.edits[t.Name].matrix() {
			continue
		}

		z.Elements += t.Elements
		z.Before += t.Before
		z.After += t.After
		change += t.change
		left += t.left
		if float64(t.Before) >= sparse.Pruned*float64(t.Elements) {
			z.Pruned++
		}
	}

	if change > 0 {
		z.Lost = math.Sqrt(left / change)
	}
	if z.Before+z.After > 0 {
		w.report.Zeros = &z
	}
}

// hopeless reports whether the same inputs would fail again.
func hopeless(err error) bool {
	return errors.Is(err, adapter.ErrBase) || errors.Is(err, adapter.ErrFile) || errors.Is(err, adapter.ErrUnsupported)
}

// joined is the first error, with the second if there is one.
func joined(err, other error) error {
	if other == nil {
		return err
	}
	return fmt.Errorf("%w (and then: %w)", err, other)
}

// writer writes one output.
type writer struct {
	base *adapter.Checkpoint
	plan *plan
	opts Options
	// trained: the adapter keeps zeros by itself, so that nothing of its change is lost.
	trained bool
	folder  *lm.Folder
	report  *Report
	total   int64 // bytes
	count   int   // parameters
	buf     []byte
}

// layout lists the tensors of the output: those of the base in its order and files, and a head of its own for a
// tied model that needs one.
func (w *writer) layout() lm.FolderPlan {
	src := w.base.Source
	p := lm.FolderPlan{Metadata: maps.Clone(src.Metadata())}
	if p.Metadata == nil {
		p.Metadata = map[string]string{}
	}
	if p.Metadata["format"] == "" {
		p.Metadata["format"] = "pt" // what other tools look for
	}

	p.Files.MaxShardSize = w.opts.MaxShardSize
	split := src.Indexed() && w.opts.MaxShardSize == 0
	if split {
		p.Files.ShardOf = map[string]string{}
	}

	add := func(info safetensors.Info, home string) {
		p.Tensors = append(p.Tensors, info)
		w.total, w.count = w.total+info.Size, w.count+max(1, len(w.base.Tensors.Parts(info.Name)))
		if split {
			p.Files.ShardOf[info.Name] = src.ShardOf(home)
		}
	}

	for _, name := range src.Names() {
		info, _ := src.Info(name)
		add(info, name)
	}

	if h := w.plan.head; h != "" {
		if _, stored := src.Info(h); !stored {
			add(w.plan.edits[h].info, w.plan.edits[h].from)
		}
	}

	return p
}

// run writes what is not there yet.
func (w *writer) run(ctx context.Context, tensors []safetensors.Info) error {
	if w.folder.Complete() {
		w.report.Resumed, w.report.Copied = len(w.plan.names), w.count-len(w.plan.names)
		w.report.Edited, w.report.Bytes = len(w.plan.names), w.total
		return nil
	}

	batch := w.opts.Batch
	if batch == 0 {
		batch = 64 << 20
	}

	var pending []string
	var size int64
	for _, info := range tensors {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.tensor(ctx, info); err != nil {
			return err
		}

		pending, size = append(pending, info.Name), size+info.Size
		w.report.Bytes += info.Size

		if size >= batch {
			if err := w.folder.Commit(pending); err != nil {
				return err
			}
			pending, size = pending[:0], 0
		}

		if w.opts.Progress != nil {
			w.opts.Progress("fold", w.report.Bytes, w.total)
		}
	}

	if err := w.folder.Commit(pending); err != nil {
		return err
	}

	return w.folder.Finish()
}

// tensor writes one tensor of the output, parameter by parameter where it holds several, unless an interrupted run has.
func (w *writer) tensor(ctx context.Context, info safetensors.Info) error {
	parts := w.base.Tensors.Parts(info.Name)
	if parts == nil {
		return w.parameter(ctx, info.Name, info.Name)
	}

	for _, p := range parts {
		if err := w.parameter(ctx, p.Name, info.Name); err != nil {
			return err
		}
	}

	return nil
}

// parameter writes one parameter into a tensor of the output.
func (w *writer) parameter(ctx context.Context, name, to string) error {
	e := w.plan.edits[name]
	done := w.folder.Done(to)

	switch {
	case e == nil:
		w.report.Copied++
	default:
		w.report.Edited++
	}

	switch {
	case done && e != nil:
		w.report.Resumed++
		return nil
	case done:
		return nil
	case e == nil:
		return w.copy(name, to)
	}

	t, err := w.edit(ctx, e)
	if err != nil {
		return err
	}

	w.report.Tensors = append(w.report.Tensors, t)
	return nil
}

// copy writes a parameter as it is.
func (w *writer) copy(name, to string) error {
	if w.buf == nil {
		w.buf = make([]byte, 4<<20)
	}
	if name == to {
		return safetensors.Copy(w.folder.Writer(), name, w.base.Source, name, w.buf)
	}

	info, _ := w.base.Tensors.Info(name)
	_, first := w.base.Tensors.Place(name)
	first *= int64(info.DType.Bits()) / 8
	for off := int64(0); off < info.Size; {
		n, err := w.base.Tensors.ReadAt(name, w.buf[:min(int64(len(w.buf)), info.Size-off)], off)
		if err != nil {
			return err
		}

		if err := w.folder.Writer().WriteAt(to, w.buf[:n], first+off); err != nil {
			return err
		}

		off += int64(n)
	}

	return nil
}

// config is the change of config.json: none, or the head is untied.
func (w *writer) config() func(text []byte) []byte {
	if !w.plan.untie {
		return nil
	}
	key := w.base.Config.Arch.Config["tied"].Key
	return func(text []byte) []byte { return setFalse(text, key) }
}

// setFalse sets a key at the top of a JSON object to false and leaves the rest of the text as it is.
func setFalse(text []byte, key string) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return text
	}

	first := int(d.InputOffset())

	for d.More() {
		name, err := d.Token()
		if err != nil {
			return text
		}

		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return text
		}

		if name == key {
			end := int(d.InputOffset())
			return append(append(append([]byte{}, text[:end-len(value)]...), "false"...), text[end:]...)
		}
	}

	entry := fmt.Sprintf("\n  %q: false,", key)
	return append(append(append([]byte{}, text[:first]...), entry...), text[first:]...)
}
