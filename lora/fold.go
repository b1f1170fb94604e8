package lora

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/fold"
	"github.com/modelcompress/compress/lora/internal/sparse"
	"github.com/modelcompress/compress/safetensors"
)

// FoldOptions of [Fold].
type FoldOptions struct {
	Overwrite bool // replace a checkpoint that is there
	Resume    bool // continue an interrupted run of the same work
	Safe      bool // round the delta to the base's element type before it is added
	// KeepZeros leaves zeros of the base's matrices alone: what the adapter would put there is lost, and the
	// report says how much that is.
	KeepZeros      bool
	MaxShardSize   int64 // bytes per file; 0: files as in the base
	Threads        int   // CPU threads; 0: one for each processor
	AllowOtherBase bool  // take an adapter whose files say that it was trained on other weights
	// Progress gets how many bytes of the output are written, of how many; nil: nobody wants to know.
	Progress func(name string, done, total int64)

	batch int64 // bytes that may have to be written again after a crash; 0: 64 MiB
	block int   // see [fold.Editor]
}

// FoldReport says what [Fold] did.
type FoldReport struct {
	Model   string   `json:"model"`
	Adapter string   `json:"adapter"`
	Notes   []string `json:"notes,omitempty"` // what was accepted without effect

	Out     string         `json:"out"`
	Edited  int            `json:"edited"`          // tensors that the adapter changes
	Copied  int            `json:"copied"`          // tensors that stay as they are
	Resumed int            `json:"resumed"`         // edited tensors that an interrupted run had finished; not in Tensors
	Bytes   int64          `json:"bytes"`           // of the output's weights
	Untied  bool           `json:"untied"`          // the head is no longer the token table
	Zeros   *FoldedZeros   `json:"zeros,omitempty"` // of the tensors; nil where none has any before or after
	Tensors []FoldedTensor `json:"tensors"`
}

// FoldedTensor says how a tensor has changed.
type FoldedTensor struct {
	Name     string  `json:"name"`
	Elements int64   `json:"elements"`
	Moved    int64   `json:"moved"`    // elements whose stored value has changed
	MaxAbs   float64 `json:"max_abs"`  // largest change
	Relative float64 `json:"relative"` // norm of the change by the norm of what was there

	Before int64 `json:"zeros_before"`
	After  int64 `json:"zeros_after"`
	// norm of the change that keeping zeros left out, by the norm of the whole change
	Lost float64 `json:"lost,omitempty"`

	sums   fold.Sums
	matrix bool
}

// FoldedZeros counts the elements that are zero in the matrices that the adapter changes.
type FoldedZeros struct {
	Kept     bool  `json:"kept"`   // where the base has them
	Pruned   int   `json:"pruned"` // matrices with at least 30 % zeros before
	Elements int64 `json:"elements"`
	Before   int64 `json:"before"`
	After    int64 `json:"after"`
	// norm of the change that keeping zeros left out, by the norm of the whole change
	Lost float64 `json:"lost,omitempty"`
}

// Fold writes the checkpoint in the folder model with an adapter of any kind folded into its weights to the
// folder out. The weights keep their element types; one block of rows is in memory at a time, beside the
// adapter. An interrupted run is continued with Resume, to the same bytes. An adapter whose files say that it was
// trained on other weights is refused (ErrOtherBase) unless that is allowed. The errors wrap this package's, those of
// package safetensors and of [lm.OpenFolder].
func Fold(ctx context.Context, model, dir, out string, o FoldOptions) (*FoldReport, error) {
	base, err := adapter.OpenCheckpoint(ctx, model)
	if err != nil {
		return nil, err
	}
	defer base.Close()

	a, notes, sum, err := loadSummed(dir, base)
	if err != nil {
		return nil, err
	}

	// The fingerprint says which base this is, for the check and for the name of the job; it reads all weights
	// once.
	weights, err := lm.Fingerprint(ctx, base.Dir)
	if err != nil {
		return nil, err
	}

	remark := otherBase(&a.Config, weights)
	if err := refuseOther(remark, o.AllowOtherBase); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}

	// The weights agree, or the adapter doesn't say: then the name is the only hint that it was another base.
	if remark == "" {
		remark = otherName(&a.Config, base.Dir)
	}
	if remark != "" {
		notes = append(notes, remark)
	}

	w := &writer{
		FoldOptions: o, base: base, job: foldJob(weights, sum, o),
		report: &FoldReport{Model: model, Adapter: dir, Out: out, Tensors: []FoldedTensor{}},
	}
	if err := w.fold(ctx, a); err != nil {
		return nil, err
	}

	w.report.Notes = append(notes, zerosOf(w.report)...)
	return w.report, nil
}

// zerosOf are the remarks about zeros of the base: what was left out to keep them, or that they are gone.
func zerosOf(r *FoldReport) []string {
	z := r.Zeros
	switch {
	case z == nil:
		return nil
	case z.Kept && z.Lost > 0:
		return []string{fmt.Sprintf("zeros of the base are kept: what the adapter would put there, %.1f %% of the "+
			"norm of its change, is left out", 100*z.Lost)}
	case !z.Kept && z.Pruned > 0 && z.After < z.Before:
		return []string{fmt.Sprintf("%d of the changed matrices are pruned, and the adapter fills them: %.1f %% "+
			"zeros before, %.1f %% after", z.Pruned, percent(z.Before, z.Elements), percent(z.After, z.Elements))}
	}

	return nil
}

func percent(part, all int64) float64 { return 100 * float64(part) / float64(max(all, 1)) }

// foldJob identifies the work of folding by all that the output depends on: what is in the files, wherever they lie.
func foldJob(weights, adapter string, o FoldOptions) string {
	text := fmt.Appendf(nil, "fold 3\n%s\n%s\n%v %d\n", weights, adapter, o.Safe, o.MaxShardSize)
	if o.KeepZeros {
		text = append(text, "keep zeros\n"...)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// zeros sums the zeros of the matrices up.
func (w *writer) zeros() {
	z := FoldedZeros{Kept: w.KeepZeros}
	var sums fold.Sums
	for _, t := range w.report.Tensors {
		if !t.matrix {
			continue
		}

		z.Elements += t.Elements
		sums.Add(t.sums)
		if float64(t.Before) >= sparse.Pruned*float64(t.Elements) {
			z.Pruned++
		}
	}

	z.Before = sums.Before
	z.After = sums.After
	z.Lost = sums.Lost()
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
	FoldOptions
	base   *adapter.Checkpoint
	job    string // see foldJob
	plan   *fold.Plan
	editor *fold.Editor
	folder *lm.Folder
	report *FoldReport
	total  int64 // bytes
	count  int   // parameters
	buf    []byte
}

// fold writes the output and fills the report. After an error, or when ctx is cancelled, the unfinished output is
// kept if a run with Resume can continue it.
func (w *writer) fold(ctx context.Context, a *adapter.Adapter) (err error) {
	if w.plan, err = fold.NewPlan(w.base, a); err != nil {
		return err
	}

	w.report.Untied = w.plan.Untie
	files := w.layout()
	w.folder, err = lm.OpenFolder(w.report.Out, files, lm.FolderOptions{
		Overwrite: w.Overwrite, Resume: w.Resume, Fingerprint: w.job, Source: w.base.Dir, Config: w.config(),
	})
	if err != nil {
		return err
	}

	// An adapter that was trained to keep zeros has them kept whatever is asked for.
	trained := a.Config.KeepZeros
	w.KeepZeros = w.KeepZeros || trained
	w.editor = &fold.Editor{
		Base: w.base, Out: w.folder.Writer(), Threads: w.Threads, Safe: w.Safe, KeepZeros: w.KeepZeros,
		Trained: trained, Block: w.block,
	}

	if err := w.run(ctx, files.Tensors); err != nil {
		if hopeless(err) {
			return joined(err, w.folder.Abort())
		}
		return joined(err, w.folder.Suspend())
	}

	w.zeros()
	return nil
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

	p.Files = w.base.Tensors.Layout(w.MaxShardSize)

	add := func(info safetensors.Info, home string) {
		p.Tensors = append(p.Tensors, info)
		w.total, w.count = w.total+info.Size, w.count+max(1, len(w.base.Tensors.Parts(info.Name)))
		if of := p.Files.ShardOf; of != nil {
			of[info.Name] = of[home]
		}
	}

	for _, name := range src.Names() {
		info, _ := src.Info(name)
		add(info, name)
	}

	if h := w.plan.Head; h != "" {
		if _, stored := src.Info(h); !stored {
			add(w.plan.Edits[h].Info, w.plan.Edits[h].From)
		}
	}

	return p
}

// run writes what is not there yet.
func (w *writer) run(ctx context.Context, tensors []safetensors.Info) error {
	if w.folder.Complete() {
		w.report.Edited = len(w.plan.Names)
		w.report.Resumed = len(w.plan.Names)
		w.report.Copied = w.count - len(w.plan.Names)
		w.report.Bytes = w.total
		return nil
	}

	batch := w.batch
	if batch == 0 {
		batch = 64 << 20
	}

	// A commit flushes to disk, which would cost more than the work on small tensors: they are noted in batches.
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

		if w.Progress != nil {
			w.Progress("fold", w.report.Bytes, w.total)
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
	e := w.plan.Edits[name]
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

	s, err := w.editor.Edit(ctx, e)
	if err != nil {
		return err
	}

	w.report.Tensors = append(w.report.Tensors, FoldedTensor{
		Name: e.Info.Name, Elements: e.Info.Elements(), Moved: s.Moved, MaxAbs: s.MaxAbs, Relative: s.Relative(),
		Before: s.Before, After: s.After, Lost: s.Lost(), sums: s, matrix: e.Matrix(),
	})

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
	if !w.plan.Untie {
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
