package edit

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
)

// JournalName is the file beside the weights that holds the edits of a checkpoint.
const JournalName = "edits.journal"

const (
	journalFormat  = "compress edits journal"
	journalVersion = 1
)

// header is a journal's first line.
type header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Model   string `json:"model,omitempty"` // fingerprint of the model before the first edit
	Job     string `json:"job,omitempty"`   // what run it belongs to

	Files map[string]string `json:"files,omitempty"` // SHA-256 of the files beside the weights
	// the model that was edited, if its values are those of a quantised form
	Quantised []lm.Quantised `json:"source_quantization,omitempty"`
}

// baseLine is a matrix as it was before all edits.
type baseLine struct {
	Linear string `json:"linear"`
	DType  string `json:"dtype"`
	Data   []byte `json:"data"`
}

// stepLine is a step and its numbers, little-endian.
type stepLine struct {
	Step
	Parts []part `json:"parts,omitempty"` // of the deltas, in their order

	Keys   []layerPart `json:"keys,omitempty"` // and the rest: of past
	Anchor float64     `json:"anchor,omitempty"`
	Scales []scalePart `json:"scales,omitempty"`
}

type part struct {
	Left  *numbers `json:"left,omitempty"`
	Right *numbers `json:"right,omitempty"`
	Dense *numbers `json:"dense,omitempty"`
}

// numbers is a matrix of float64, or of float32 with half as many bytes.
type numbers struct {
	Rows int    `json:"rows"`
	Cols int    `json:"cols"`
	Data []byte `json:"data"`
}

func pack(m linalg.Matrix, single bool) *numbers {
	n := &numbers{Rows: m.Rows, Cols: m.Cols}
	for i := range m.Rows {
		for _, v := range m.Row(i) {
			if single {
				n.Data = binary.LittleEndian.AppendUint32(n.Data, math.Float32bits(float32(v)))
			} else {
				n.Data = binary.LittleEndian.AppendUint64(n.Data, math.Float64bits(v))
			}
		}
	}

	return n
}

func (n *numbers) unpack() (linalg.Matrix, error) {
	if n == nil {
		return linalg.Matrix{}, nil
	}
	if n.Rows < 1 || n.Cols < 1 || n.Rows > len(n.Data) || n.Cols > len(n.Data) ||
		(len(n.Data) != 8*n.Rows*n.Cols && len(n.Data) != 4*n.Rows*n.Cols) {
		return linalg.Matrix{}, fmt.Errorf("%w: a matrix of %d × %d with %d bytes", ErrJournal, n.Rows, n.Cols,
			len(n.Data))
	}

	m := linalg.New(n.Rows, n.Cols)
	for i := range m.Data {
		if len(n.Data) == 8*len(m.Data) {
			m.Data[i] = math.Float64frombits(binary.LittleEndian.Uint64(n.Data[8*i:]))
		} else {
			m.Data[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(n.Data[4*i:])))
		}
	}

	return m, m.CheckFinite()
}

// journalLine is one line: exactly one field is set. It is sealed by [stage.SealLine].
type journalLine struct {
	Header *header         `json:"header,omitempty"`
	Base   *baseLine       `json:"base,omitempty"`
	Step   *stepLine       `json:"step,omitempty"`
	Note   json.RawMessage `json:"note,omitempty"` // of a log
}

// WriteJournal writes what [Open] continues from: the matrices as they were before all edits, and every step
// with its deltas. model is the fingerprint of the model before the first edit, for people; job, which may be
// empty, names the run, so that it can be known again.
func (e *Editing) WriteJournal(w io.Writer, model, job string) error {
	return e.WriteJournalOf(w, Journal{Model: model, Job: job})
}

// WriteJournalOf is [Editing.WriteJournal] with all that a journal says about the checkpoint: of is what it
// names, its steps do not count.
func (e *Editing) WriteJournalOf(w io.Writer, of Journal) error {
	out := bufio.NewWriterSize(w, 1<<20)
	put := func(l journalLine) error {
		text, err := json.Marshal(l)
		if err != nil {
			return err
		}
		_, err = out.Write(stage.SealLine(text))
		return err
	}

	// Bases before steps: a reader must know the matrix that a step's deltas are added to.
	errs := []error{
		put(
			journalLine{Header: &header{
				Format: journalFormat, Version: journalVersion, Model: of.Model, Job: of.Job,
				Files: of.Files, Quantised: of.Quantised,
			}}),
	}

	for _, name := range e.order {
		wt := e.weights[name]
		errs = append(errs, put(journalLine{Base: &baseLine{name, wt.dtype.String(), wt.base}}))
	}

	for i := range e.steps {
		errs = append(errs, put(journalLine{Step: packStep(&e.steps[i])}))
	}

	return errors.Join(append(errs, out.Flush())...)
}

func packStep(s *Step) *stepLine {
	l := &stepLine{Step: *s}
	for i := range s.Deltas {
		d := &s.Deltas[i]
		if d.dense.Rows > 0 {
			l.Parts = append(l.Parts, part{Dense: pack(d.dense, true)})
		} else {
			l.Parts = append(l.Parts, part{Left: pack(d.left, false), Right: pack(d.right, false)})
		}
	}

	s.past.pack(l)
	return l
}

// Journal is a journal that was read.
type Journal struct {
	Model string // fingerprint of the model before the first edit
	Steps []Step
	Job   string // what run wrote it, as [Editing.WriteJournal] was told; empty: unknown
	// Files are the SHA-256 of the files beside the weights when they were written, by name; nil: unknown.
	Files map[string]string
	// Quantised is the model that was edited, if its values are those of a quantised form.
	Quantised []lm.Quantised

	bases []baseLine
}

// ReadJournal reads a journal. A damaged one is an error that wraps [ErrJournal] and names the line.
func ReadJournal(r io.Reader) (*Journal, error) {
	j := &Journal{}
	if err := j.lines(r, nil); err != nil {
		return nil, err
	}
	return j, nil
}

// lines reads all lines. With a look at the steps, which then have no numbers, only these are read.
func (j *Journal) lines(r io.Reader, look func(*Step) error) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(text) == 0 {
			if n == 1 {
				return fmt.Errorf("%w: empty", ErrJournal)
			}
			return nil
		}

		// Every whole line ends in a newline: what stands after the last one was cut off by a crash or a copy.
		if err != nil {
			return fmt.Errorf("%w: line %d is not complete", ErrJournal, n)
		}

		body, ok := stage.UnsealLine(bytes.TrimSuffix(text, []byte("\n")))
		if !ok {
			return fmt.Errorf("%w: line %d is damaged", ErrJournal, n)
		}

		// Whoever only looks at steps (a reader of codebooks) is spared the decoding of matrices, but not the check
		// of the header.
		if look == nil || n == 1 {
			err = j.line(n, body)
		} else {
			err = glance(n, body, look)
		}
		if err != nil {
			return err
		}
	}
}

// glance shows a step without its numbers.
func glance(n int, body []byte, look func(*Step) error) error {
	if !bytes.HasPrefix(body, []byte(`{"step":`)) {
		return nil
	}

	var l struct {
		Step *Step `json:"step"`
	}
	if err := json.Unmarshal(body, &l); err != nil || l.Step == nil {
		return fmt.Errorf("%w: line %d: %w", ErrJournal, n, err)
	}

	return look(l.Step)
}

// line takes one line in.
func (j *Journal) line(n int, body []byte) error {
	var l journalLine
	if err := json.Unmarshal(body, &l); err != nil {
		return fmt.Errorf("%w: line %d: %w", ErrJournal, n, err)
	}

	switch {
	case n == 1 && (l.Header == nil || l.Header.Format != journalFormat || l.Header.Version != journalVersion):
		return fmt.Errorf("%w: line 1 is not the header of version %d", ErrJournal, journalVersion)
	case n == 1:
		j.Model = l.Header.Model
		j.Job = l.Header.Job
		j.Files = l.Header.Files
		j.Quantised = l.Header.Quantised
	case l.Base != nil:
		j.bases = append(j.bases, *l.Base)
	case l.Step != nil:
		s, err := l.Step.unpack()
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		j.Steps = append(j.Steps, *s)
	default:
		return fmt.Errorf("%w: line %d is of no known kind", ErrJournal, n)
	}

	return nil
}

func (l *stepLine) unpack() (*Step, error) {
	s := l.Step
	if len(l.Parts) != len(s.Deltas) {
		return nil, fmt.Errorf("%w: %d deltas with numbers for %d", ErrJournal, len(s.Deltas), len(l.Parts))
	}

	for i, p := range l.Parts {
		d := &s.Deltas[i]
		var errs [3]error
		d.left, errs[0] = p.Left.unpack()
		d.right, errs[1] = p.Right.unpack()
		d.dense, errs[2] = p.Dense.unpack()
		if err := errors.Join(errs[:]...); err != nil {
			return nil, err
		}
	}

	return &s, s.past.unpack(l)
}

// Open continues the edits of a checkpoint that was edited before: the model's matrices become what the journal
// says after all its steps. Strict refuses a model whose matrices are not that already; otherwise any state
// that the journal knows will do, as an interrupted undo leaves them.
func Open(m *lm.Model, j *Journal, strict bool, o Options) (*Editing, error) {
	e, err := New(m, o)
	if err != nil {
		return nil, err
	}

	for i := range j.bases {
		if err := e.adopt(&j.bases[i], j, strict); err != nil {
			return nil, err
		}
	}

	if err := e.play(j, 0); err != nil {
		return nil, err
	}

	return e, nil
}

// adopt takes a matrix under care with the base of a journal, after a look at what the model has.
func (e *Editing) adopt(b *baseLine, j *Journal, strict bool) error {
	if _, ok := e.weights[b.Linear]; ok {
		return fmt.Errorf("%w: two bases of %.200q", ErrJournal, b.Linear)
	}

	w, err := e.weight(b.Linear)
	if err != nil {
		return err
	}

	if b.DType != w.dtype.String() || len(b.Data) != len(w.base) {
		return fmt.Errorf("%w: tensor %q is stored in another way than the journal says", ErrJournal, b.Linear)
	}

	// The journal's last word on this matrix, and whether what the model has is any state on the way there.
	now := stage.Sum(w.base)
	last, known := stage.Sum(b.Data), now == stage.Sum(b.Data)
	for _, s := range j.Steps {
		if h, ok := s.State[b.Linear]; ok {
			last, known = h, known || h == now
		}
	}

	if strict && now != last || !known {
		return fmt.Errorf("%w: tensor %q of %s is not what the journal says (HINT: an interrupted undo is finished "+
			"by running it again)", ErrJournal, b.Linear, e.m.Path())
	}

	// The stored bytes of before the first edit, not the model's present ones: deltas are added to these.
	w.base = b.Data
	if err := w.reset(); err != nil {
		return err
	}

	w.norm = w.sum.Norm()
	return nil
}

// Changed are the names of the matrices that the edits change, and their present bytes, as stored.
func (e *Editing) Changed() map[string][]byte {
	out := map[string][]byte{}
	for name, w := range e.weights {
		out[name] = w.bytes()
	}
	return out
}

// CheckSum compares every edited matrix with what was stored plus the sum of all deltas, computed anew, and
// returns the largest distance, relative to the norm of the sum of the deltas; 0 for none. It is what rounding
// to the stored type leaves.
func (e *Editing) CheckSum() (float64, error) {
	worst := 0.0
	for _, name := range e.order {
		// Both ends are read from bytes as they are stored: sums carried along would agree with themselves.
		w := e.weights[name]
		base, final, sum := &weight{linear: w.linear, dtype: w.dtype, base: w.base},
			&weight{linear: w.linear, dtype: w.dtype, base: w.bytes()}, &weight{linear: w.linear}
		if err := errors.Join(base.reset(), final.reset()); err != nil {
			return 0, err
		}

		sum.sum = linalg.New(w.linear.Out, w.linear.In)
		// In the order of the steps, as they were added at first.
		for i := range e.steps {
			for k := range e.steps[i].Deltas {
				if d := &e.steps[i].Deltas[k]; d.Linear == name {
					if err := sum.add(d); err != nil {
						return 0, err
					}
				}
			}
		}

		// The norm is taken before the sum is overwritten by the distances.
		scale := sum.sum.Norm()
		for i, v := range sum.sum.Data {
			sum.sum.Data[i] = final.sum.Data[i] - base.sum.Data[i] - v
		}
		if scale > 0 {
			worst = max(worst, sum.sum.Norm()/scale)
		}
	}

	return worst, nil
}

// Norms measures what all edits together changed, by matrix.
func (e *Editing) Norms() (map[string]Norms, error) {
	out := map[string]Norms{}
	for _, name := range e.order {
		w := e.weights[name]
		d := Delta{Linear: name, dense: w.sum.Clone()}
		base := &weight{linear: w.linear, dtype: w.dtype, base: w.base}
		if err := base.reset(); err != nil {
			return nil, err
		}
		for i, v := range base.sum.Data {
			d.dense.Data[i] -= v
		}
		if err := w.measure(&d); err != nil {
			return nil, err
		}

		out[name] = d.Norms
	}

	return out, nil
}
