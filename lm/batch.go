package lm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// ErrBatchFull says that the keys and values of a [Batch] have no room for more tokens. Closing or truncating sequences
// makes some.
var ErrBatchFull = errors.New("memory for keys and values is full")

// BatchOptions of [Model.NewBatch].
type BatchOptions struct {
	// Memory is the bytes that keys and values may take, in float32 or as [Options].KVBits says; 0: 1 GiB. It is
	// reserved at once; on the CPU it becomes real as it is used.
	Memory int64
	// NoSharing computes every sequence from its first token on.
	NoSharing bool

	page int // positions of a page, fewer in tests; 0: PagePositions
}

// Validate returns every fault of the options.
func (o *BatchOptions) Validate() error {
	if o.Memory < 0 {
		return fmt.Errorf("%w: %d bytes of memory", ErrInput, o.Memory)
	}
	return nil
}

// PagePositions is how many positions a page of a [Batch] holds.
const PagePositions = 64

// Batch is many sequences of a model that take steps together, their keys and values in pages of [PagePositions]
// positions (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023).
// Sequences that begin alike share the pages of their beginning. It is used by one goroutine at a time.
//
// Work may name an [Overlay], an adapter of its own; products with the model's weights are still computed for all at
// once.
//
// # What a sequence's numbers depend on
//
// On a CPU, the logits of a sequence are the same to the last bit whatever else is in the batch, whatever was shared,
// and for any number of threads: they depend on its tokens, on which of them were [Work].Prompt, and on where work with
// several tokens ended other than at a multiple of [PagePositions] (or ended at all, where rotary frequencies depend on
// the length of the whole; see [arch.Rope]). For that, the tokens of prompts go through the products for many rows and
// the others through those for few, also where there are fewer or more of them. They differ from the logits of a
// [Session] by rounding, since that takes for each product the way that is fastest for its rows alone. On a GPU,
// products may depend on the number of rows.
//
// Windows of attention do not free keys that have left them.
type Batch struct {
	m         *Model
	pool      *layer.Pool
	book      *pageBook
	sharing   bool
	open      int
	scratch   *scratch
	hidden    *kernels.Buffer
	logits    *kernels.Buffer
	host      []float32
	page      int // positions of a page
	positions int // of all pages
}

// NewBatch makes an empty batch. The error wraps [ErrInput] where the memory does not hold a page.
func (m *Model) NewBatch(o BatchOptions) (*Batch, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Memory == 0 {
		o.Memory = 1 << 30
	}

	if o.page == 0 {
		o.page = PagePositions
	}

	each := m.setup.PageBytes(o.page)
	pages := int(o.Memory / each)
	if pages < 1 {
		return nil, fmt.Errorf("%w: keys and values of %d positions take %d bytes, and may take %d", ErrInput,
			o.page, each, o.Memory)
	}

	pool, err := m.setup.NewPool(pages, o.page)
	if err != nil {
		return nil, err
	}

	b := &Batch{m: m, pool: pool, book: newPageBook(pages), sharing: !o.NoSharing, scratch: m.borrow(), page: o.page}
	// Where frequencies depend on the length of the whole, so do the keys of a common beginning.
	if r := m.config.Rope; r != nil && !r.Static() {
		b.sharing = false
	}
	b.positions = pages * o.page

	return b, nil
}

// Close gives the memory back. All sequences end.
func (b *Batch) Close() {
	if b.scratch == nil {
		return
	}

	b.pool.Free()
	b.m.giveBack(b.scratch)
	for _, x := range []*kernels.Buffer{b.hidden, b.logits} {
		if x != nil {
			x.Free()
		}
	}
	b.scratch = nil
}

// BatchUse is how full a batch is, in positions.
type BatchUse struct {
	Sequences int // that are open
	Positions int // in all
	Used      int // in pages of open sequences
	Kept      int // in pages that nobody uses, for sequences that begin with the same tokens
}

// Use tells how full the batch is.
func (b *Batch) Use() BatchUse {
	return BatchUse{
		Sequences: b.open, Positions: b.positions, Used: b.book.inUse * b.page, Kept: b.book.kept * b.page,
	}
}

// Sequence is one sequence of a [Batch].
type Sequence struct {
	b      *Batch
	ids    []int32
	table  []int32
	names  []prefix // of the pages from the first on that were computed whole, as a prompt
	origin prefix
}

// Add begins an empty sequence. kind is what its keys and values depend on beside its tokens, such as the name of the
// adapter that is attached whenever it takes a step: only sequences of the same kind share.
func (b *Batch) Add(kind string) *Sequence {
	b.open++
	return &Sequence{b: b, origin: sha256.Sum256([]byte(kind))}
}

// Len is the number of tokens so far.
func (s *Sequence) Len() int { return len(s.ids) }

// IDs are the tokens so far. They must not be changed.
func (s *Sequence) IDs() []int32 { return s.ids }

// Begin takes what is known of the beginning of a prompt into an empty sequence, and returns how many of its tokens
// that is: whole pages, and at most all tokens but the last, since [Batch.Step] needs one to give logits.
func (s *Sequence) Begin(prompt []int32) int {
	p := s.b.page
	if !s.b.sharing || len(s.ids) > 0 {
		return 0
	}

	name := s.origin
	for end := p; end < len(prompt); end += p {
		name = name.after(prompt[end-p : end])
		at, there := s.b.book.named[name]
		if !there {
			break
		}

		s.b.book.share(at)
		s.table, s.names = append(s.table, at), append(s.names, name)
		s.ids = append(s.ids, prompt[end-p:end]...)
	}

	return len(s.ids)
}

// Fork makes another sequence with the same tokens, which takes memory only where the two go different ways.
func (s *Sequence) Fork() *Sequence {
	s.b.open++
	for _, at := range s.table {
		s.b.book.share(at)
	}
	return &Sequence{
		b: s.b, ids: slices.Clone(s.ids), table: slices.Clone(s.table), names: slices.Clone(s.names),
		origin: s.origin,
	}
}

// Truncate shortens the sequence to its first n tokens; the error wraps [ErrInput] if it has fewer.
func (s *Sequence) Truncate(n int) error {
	if n < 0 || n > len(s.ids) {
		return fmt.Errorf("%w: truncation of %d tokens to %d", ErrInput, len(s.ids), n)
	}
	s.ids = s.ids[:n]
	s.names = s.names[:min(len(s.names), n/s.b.page)]
	s.trim()
	return nil
}

// trim lets go of pages that hold no token.
func (s *Sequence) trim() {
	need := s.b.pagesOf(len(s.ids))
	for _, at := range slices.Backward(s.table[need:]) {
		s.b.book.release(at)
	}
	s.table = s.table[:need]
}

// Close ends the sequence. Its pages are kept for others as long as their memory is not needed.
func (s *Sequence) Close() {
	if s.b == nil {
		return
	}
	s.ids = s.ids[:0]
	s.trim()
	s.b.open--
	s.b = nil
}

// pagesOf is how many pages hold a number of positions.
func (b *Batch) pagesOf(positions int) int { return (positions + b.page - 1) / b.page }

// Work is what a sequence does in a step.
type Work struct {
	Sequence *Sequence // of the batch
	IDs      []int32   // its new tokens
	// Prompt says that the tokens are those of a prompt, or a part of it, and not generated ones; see [Batch]. Only
	// pages of prompts are shared.
	Prompt bool
	Logits Wanted
	// Overlay acts on these tokens, as on all others of the sequence; nil: none.
	Overlay *Overlay
	// Total is how many tokens the sequence will have once all of its prompt is there, for models whose rotary
	// frequencies depend on that (see [arch.Rope]); 0: these are the last.
	Total int
}

// Wanted says which logits of new tokens are wanted.
type Wanted uint8

const (
	// LastLogits are those after the last token.
	LastLogits Wanted = iota
	// NoLogits are none: more of the prompt follows.
	NoLogits
	// AllLogits are those after every new token.
	AllLogits
)

// Step runs the new tokens of several sequences, each of which may be there once: those that generate in one pass, and
// the prompts in another. each gets the logits that are wanted, [vocabulary], valid until it returns: i is the place in
// work, and at the place of the token after which they are among the new ones. An error of each ends the step.
//
// After an error all sequences have the lengths they had. It wraps [ErrBatchFull] where pages lack, and nothing was
// computed then.
func (b *Batch) Step(ctx context.Context, work []Work, each func(i, at int, logits []float32) error) error {
	if err := b.check(work); err != nil {
		return err
	}

	err := b.reserve(work)
	for _, prompt := range []bool{false, true} {
		if err == nil {
			err = b.run(ctx, work, prompt, each)
		}
	}

	for i := range work {
		if err == nil {
			work[i].Sequence.grown(work[i].IDs, work[i].Prompt)
		} else {
			work[i].Sequence.trim()
		}
	}

	return err
}

// check refuses work that cannot be done.
func (b *Batch) check(work []Work) error {
	if len(work) == 0 {
		return fmt.Errorf("%w: no work", ErrInput)
	}

	for i, w := range work {
		switch s := w.Sequence; {
		case s == nil || s.b != b:
			return fmt.Errorf("%w: work %d is of a sequence that is closed, or of another batch", ErrInput, i)
		case len(w.IDs) == 0:
			return fmt.Errorf("%w: work %d has no tokens", ErrInput, i)
		case w.Overlay != nil && w.Overlay.m != b.m:
			return fmt.Errorf("%w: work %d has the overlay of another model", ErrInput, i)
		case slices.ContainsFunc(work[:i], func(o Work) bool { return o.Sequence == s }):
			return fmt.Errorf("%w: work %d is of a sequence that is there twice", ErrInput, i)
		}
		if err := b.m.checkIDs(i, w.IDs, w.Sequence.Len()); err != nil {
			return err
		}
	}

	return nil
}

// Room is how many more tokens a sequence could have if it were the only one that takes a step.
func (b *Batch) Room(s *Sequence) int {
	room := b.book.spare() * b.page
	used := len(s.ids) % b.page
	switch {
	case used == 0:
	case b.book.own(s.table[len(s.table)-1]):
		room += b.page - used
	default: // its last page has to be copied
		room -= used
	}
	return max(room, 0)
}

// reserve makes room for all new tokens: pages of their own where they are written.
func (b *Batch) reserve(work []Work) error {
	for _, w := range work {
		s := w.Sequence
		if used := len(s.ids) % b.page; used > 0 && !b.book.own(s.table[len(s.table)-1]) {
			k := len(s.table) - 1
			at, ok := b.book.take(s.before(k))
			if !ok {
				return b.full()
			}
			b.pool.Copy(at, s.table[k], used)
			b.book.release(s.table[k])
			s.table[k] = at
		}

		for len(s.table) < b.pagesOf(len(s.ids)+len(w.IDs)) {
			at, ok := b.book.take(s.before(len(s.table)))
			if !ok {
				return b.full()
			}
			s.table = append(s.table, at)
		}
	}
	return nil
}

func (b *Batch) full() error {
	return fmt.Errorf("%w: it holds %d positions", ErrBatchFull, b.positions)
}

// before is the page before page k of the sequence.
func (s *Sequence) before(k int) int32 {
	if k == 0 {
		return -1
	}
	return s.table[k-1]
}

// grown takes tokens in whose keys and values have been written.
func (s *Sequence) grown(ids []int32, prompt bool) {
	p := s.b.page
	start := len(s.ids)
	s.ids = append(s.ids, ids...)
	if !prompt || !s.b.sharing {
		return
	}

	// A page that was computed in parts, or follows one, does not have the bits that it has for others.
	for k := len(s.names); k*p >= start && (k+1)*p <= len(s.ids); k++ {
		name := s.origin
		if k > 0 {
			name = s.names[k-1]
		}
		name = name.after(s.ids[k*p : (k+1)*p])
		s.names = append(s.names, name)
		s.b.book.call(s.table[k], name)
	}
}

// run runs the work that is of prompts, or that is not.
func (b *Batch) run(ctx context.Context, work []Work, prompt bool, each func(i, at int, logits []float32) error) error {
	var lens []int
	var past []layer.Past
	var ids, rows []int32
	var of [][2]int // of every row whose logits are wanted: its work, and its place there
	list := inOrder(work, prompt)
	for _, i := range list {
		w := work[i]
		for at := range w.IDs {
			if w.Logits == AllLogits || w.Logits == LastLogits && at == len(w.IDs)-1 {
				rows, of = append(rows, int32(len(ids)+at)), append(of, [2]int{i, at})
			}
		}
		past = append(past, layer.Past{
			Pages: &layer.Pages{Pool: b.pool, Table: w.Sequence.table}, Start: w.Sequence.Len(), Total: w.Total,
		})
		lens, ids = append(lens, len(w.IDs)), append(ids, w.IDs...)
	}
	if len(ids) == 0 {
		return nil
	}

	m := b.m
	p, err := m.beginAfter(b.scratch, lens, nil, past)
	if err != nil {
		return err
	}
	defer p.End()

	p.Overlays = overlays(work, list)
	p.Company = layer.Few
	if prompt {
		p.Company = layer.Many
	}
	if err := m.grow(&b.hidden, kernels.F32, len(ids)*m.config.Hidden); err != nil {
		return fmt.Errorf("embeddings of %d tokens: %w", len(ids), err)
	}

	x := kernels.MatOf(b.hidden, len(ids), m.config.Hidden)
	if err := p.extend(ctx, x, ids, func(int) error { return nil }); err != nil {
		return err
	}

	return b.give(ctx, p, x, rows, func(row int, logits []float32) error {
		return each(of[row][0], of[row][1], logits)
	})
}

// inOrder lists the work that is of prompts, or that is not: what has the same overlay together, in the order in which
// overlays come up.
func inOrder(work []Work, prompt bool) []int {
	var list []int
	rank := map[*Overlay]int{}
	for i, w := range work {
		if w.Prompt == prompt {
			list = append(list, i)
			if _, there := rank[w.Overlay]; !there {
				rank[w.Overlay] = len(rank)
			}
		}
	}
	slices.SortStableFunc(list, func(i, j int) int { return rank[work[i].Overlay] - rank[work[j].Overlay] })
	return list
}

// overlays says which rows of a pass over the listed work have which overlay.
func overlays(work []Work, list []int) (over []layer.Overlay) {
	at := int32(0)
	for k, i := range list {
		w := work[i]
		end := at + int32(len(w.IDs))
		switch {
		case w.Overlay == nil:
		case k > 0 && work[list[k-1]].Overlay == w.Overlay:
			over[len(over)-1].Hi = end
		default:
			over = append(over, layer.Overlay{Lo: at, Hi: end, Of: w.Overlay.of})
		}
		at = end
	}
	return over
}

// give computes the logits of some rows of x.
func (b *Batch) give(ctx context.Context, p *pass, x kernels.Mat, rows []int32,
	each func(row int, logits []float32) error,
) error {
	m, v := b.m, b.m.config.Vocab
	if err := m.grow(&b.logits, kernels.F32, m.chunk(len(rows))*v); err != nil {
		return fmt.Errorf("logits of %d tokens: %w", m.chunk(len(rows)), err)
	}

	return p.headChunks(ctx, x, rows,
		func(lo, hi int) kernels.Mat { return kernels.MatOf(b.logits, hi-lo, v) },
		func(lo, _ int, logits kernels.Mat) error {
			if err := m.ops.Sync(); err != nil {
				return err
			}
			for i := range logits.Rows {
				row, err := b.onHost(logits, i)
				if err == nil {
					err = each(lo+i, row)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
}

// onHost is a row of logits in host memory.
func (b *Batch) onHost(logits kernels.Mat, i int) ([]float32, error) {
	if b.m.host {
		return logits.RowF32(i), nil
	}
	if b.host == nil {
		b.host = make([]float32, logits.Cols)
	}
	return b.host, b.m.dev.Download(kernels.WrapF32(b.host).Bytes(), logits.Buf, logits.Off+i*logits.Stride)
}
