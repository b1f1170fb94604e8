package vocabulary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lm/tokenizer/trim"
)

// ErrNoText: the text has no token, or none was given.
var ErrNoText = failure.Misuse("no text to take the vocabulary from", "give a text with --vocab-from")

// RecordFile is the name of a trimmed folder's record, that of every pruned one.
const RecordFile = "pruning.json"

// Options of [Trim].
type Options struct {
	From     []string // files of text that say which tokens are needed: plain text or records, see package corpus
	HeldOut  []string // further files to count on what is encoded differently
	MinCount int64    // see trim.Options
	Size     int      // see trim.Options

	Out               string // folder to write
	Overwrite, Resume bool   // see lm.FolderOptions
	// Progress is told how many bytes of text are done; nil: nobody wants to know.
	Progress func(stage string, done int64)
}

// The stages of the work that Progress is told about.
const (
	StageCount   = "counting tokens"
	StageCompare = "comparing tokens"
)

// Report says what [Trim] has done.
type Report struct {
	Model       string         `json:"model"`
	Fingerprint string         `json:"model_fingerprint"` // of the model before
	Version     string         `json:"version"`
	Before      int            `json:"tokens_before"` // tokens of the tokenizer
	After       int            `json:"tokens_after"`
	Rows        int            `json:"rows_before"` // of the token table; it may have more rows than there are tokens
	RowsAfter   int            `json:"rows_after"`
	Reasons     Reasons        `json:"kept"`
	Texts       []Text         `json:"texts"`
	HeldOut     []Text         `json:"held_out,omitempty"`
	Tensors     []string       `json:"tensors"` // those that have fewer rows
	Bytes       int64          `json:"bytes_before"`
	BytesAfter  int64          `json:"bytes_after"`
	Logits      *Logits        `json:"logits,omitempty"` // nil where the text has no run of tokens that all stayed
	LeftOut     []string       `json:"files_left_out,omitempty"`
	Notes       []string       `json:"notes,omitempty"`
	Kept        string         `json:"kept_ids"` // the old ids in the order of the new ones: "0-255 260 270-300"
	Quantised   []lm.Quantised `json:"source_quantization,omitempty"`
}

// Reasons count the tokens that stay by why they do; the first that holds counts.
type Reasons struct {
	Rules  int `json:"rules"`  // added tokens, those that configurations name, the alphabet
	Text   int `json:"text"`   // the text has them
	Parts  int `json:"parts"`  // parts of others
	Filled int `json:"filled"` // further ones, up to the size
	Cut    int `json:"cut"`    // tokens of the text that the size had no room for, which do not stay
}

// Text is a file that the vocabulary was taken from, or that was held out.
type Text struct {
	Path    string      `json:"path"`
	Words   int         `json:"distinct_tokens,omitempty"` // of the tokenizer as it was; of a text that was held out not counted
	Changed trim.Change `json:"changed"`                   // how the trimmed tokenizer encodes it
}

// Logits compares the model and the trimmed one on runs of tokens that all stayed.
type Logits struct {
	Sequences int     `json:"sequences"`
	Positions int     `json:"positions"`
	Equal     bool    `json:"equal"`   // to the last bit
	MaxAbs    float64 `json:"max_abs"` // largest difference
	// Mass is the probability that the model gives to the tokens that stayed, on average over the positions.
	Mass float64 `json:"kept_probability"`
}

// work is one run.
type work struct {
	Options
	m        *lm.Model
	v        *trim.Vocabulary
	was, is  *tokenizer.Tokenizer
	counts   []int64
	s        *trim.Selection
	files    map[string][]byte
	examples [][]int32 // runs of ids of the text, to compare logits on
	report   *Report
}

// Trim writes the model with the tokens that the texts need to a folder. The model must be loaded from where its
// tokenizer is, and stays as it is. Errors wrap those of package trim, of package corpus, of lm.OpenFolder, or
// [ErrNoText]. After an error, or when ctx is cancelled, unfinished output stays for a run with Resume.
func Trim(ctx context.Context, m *lm.Model, o Options) (*Report, error) {
	if o.Progress == nil {
		o.Progress = func(string, int64) {}
	}
	if len(o.From) == 0 {
		return nil, ErrNoText
	}

	w := &work{Options: o, m: m, report: &Report{Model: m.Path(), Version: build.Version()}}
	w.report.Quantised, _ = m.Quantised()
	if err := w.choose(ctx); err != nil {
		return nil, err
	}

	if err := w.compare(ctx); err != nil {
		return nil, err
	}
	if err := w.write(ctx); err != nil {
		return nil, err
	}
	return w.report, w.check(ctx)
}

// choose counts the tokens and selects those that stay.
func (w *work) choose(ctx context.Context) error {
	var err error
	if w.v, err = trim.Read(w.m.Path()); err != nil {
		return err
	}
	w.was = w.v.Tokenizer()

	if err := w.count(ctx); err != nil {
		return err
	}

	w.s, err = w.v.Select(w.counts, trim.Options{MinCount: w.MinCount, Size: w.Size, Rows: w.m.Config().Vocab})
	if err != nil {
		return err
	}
	if w.files, w.report.LeftOut, err = w.v.Files(w.s); err != nil {
		return err
	}
	if w.is, err = tokenizer.Parse(w.files["tokenizer.json"]); err != nil {
		return err
	}

	r, s := w.report, w.s
	r.Before, r.After = s.Before, w.tokensAfter()
	r.Rows, r.RowsAfter = s.Rows, len(s.Old)
	r.Reasons = Reasons{Rules: s.Ruled, Text: s.Needed, Parts: s.Parts, Filled: s.Filled, Cut: s.Cut}
	r.Kept = runs(s.Old)
	return nil
}

// tokensAfter counts the rows that some token has.
func (w *work) tokensAfter() (n int) {
	for id := range w.s.Old {
		if _, ok := w.is.Token(int32(id)); ok {
			n++
		}
	}
	return n
}

// runs writes numbers as ranges of consecutive ones.
func runs(ids []int32) string {
	var b strings.Builder
	for i := 0; i < len(ids); {
		j := i + 1
		for j < len(ids) && ids[j] == ids[j-1]+1 {
			j++
		}

		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(int(ids[i])))
		if j > i+1 {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(int(ids[j-1])))
		}
		i = j
	}
	return b.String()
}

// ErrKept: a list of kept ids is not one.
var ErrKept = errors.New("malformed list of kept ids")

// Kept reads the old ids of a record's kept_ids, by the new ones.
func Kept(text string) (ids []int32, err error) {
	for part := range strings.FieldsSeq(text) {
		first, last, ranged := strings.Cut(part, "-")
		lo, err := strconv.ParseInt(first, 10, 32)
		hi := lo
		if err == nil && ranged {
			hi, err = strconv.ParseInt(last, 10, 32)
		}
		if err != nil || hi < lo || hi-lo > 1<<24 {
			return nil, fmt.Errorf("%w: %.40q", ErrKept, part)
		}
		for id := lo; id <= hi; id++ {
			ids = append(ids, int32(id))
		}
	}
	return ids, nil
}

// record is what [RecordFile] holds: of a report what neither places nor the comparison of the models have a part in,
// so that the same run gives the same bytes.
func (w *work) record() ([]byte, error) {
	r := *w.report
	texts := make([]string, len(r.Texts))
	for i, t := range r.Texts {
		texts[i] = t.Path
	}

	text, err := json.MarshalIndent(struct {
		Format      string         `json:"format"`
		Version     int            `json:"format_version"`
		Fingerprint string         `json:"model_fingerprint"`
		Vocabulary  any            `json:"vocabulary"`
		Quantised   []lm.Quantised `json:"source_quantization,omitempty"`
	}{
		"compress pruning", 1, r.Fingerprint, struct {
			From     []string `json:"from"`
			MinCount int64    `json:"min_count"`
			Size     int      `json:"size,omitempty"`
			Before   int      `json:"tokens_before"`
			After    int      `json:"tokens_after"`
			Rows     int      `json:"rows_before"`
			RowsNow  int      `json:"rows_after"`
			Reasons  Reasons  `json:"kept"`
			Tensors  []string `json:"tensors"`
			Kept     string   `json:"kept_ids"`
		}{
			texts, max(w.MinCount, 1), w.Size, r.Before, r.After, r.Rows, r.RowsAfter, r.Reasons, r.Tensors, r.Kept,
		}, r.Quantised,
	}, "", " ")
	return append(text, '\n'), err
}
