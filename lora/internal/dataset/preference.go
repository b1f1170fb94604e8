package dataset

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/corpus"
)

// preferences reads records of answers of which some are preferred.
type preferences struct {
	*reader
	single bool // answers with marks, rather than pairs
	good   []bool
}

// ReadPreferences reads a file of records with a prompt and two answers, "chosen" and "rejected": texts, or turns of
// conversations. The sequences of a pair follow each other. With single the records may also be a prompt and a
// "completion" with a "label", true or false, and every answer is followed by the same prompt with the answer of the
// record before; good has the marks.
func ReadPreferences(ctx context.Context, path string, tok Tokenizer, o Options, single bool) (
	w corpus.Windows, good []bool, counts Counts, err error,
) {
	if tok == nil {
		return w, nil, counts, fmt.Errorf("%s: %w", path, corpus.ErrNoTokenizer)
	}

	r := &reader{path: path, tok: tok, o: o}
	r.prefer = &preferences{reader: r, single: single}
	err = open(path, func(in io.Reader, records bool) error {
		name := strings.TrimSuffix(path, ".gz")
		if !records && !slices.ContainsFunc([]string{".jsonl", ".ndjson", ".json"}, func(e string) bool {
			return strings.HasSuffix(name, e)
		}) {
			return failure.Hinted(fmt.Errorf("%s: %w: preferences are records, a JSON object on each line", path,
				corpus.ErrRecord), "the name ends in .jsonl")
		}
		return r.records(ctx, in)
	})
	if err != nil {
		return w, nil, r.counts, err
	}

	switch {
	case len(r.list) == 0 && r.counts.Same > 0:
		err = fmt.Errorf("%s: %w: in all %d pairs the chosen answer is the rejected one, as far as the longest "+
			"sequence goes", path, corpus.ErrEmpty, r.counts.Same)
	case len(r.list) == 0:
		err = fmt.Errorf("%s: %w", path, corpus.ErrEmpty)
	case single:
		err = r.prefer.cross()
	}
	if err != nil {
		return w, nil, r.counts, err
	}

	return r.windows(), r.prefer.good, r.counts, nil
}

// record adds the sequences of one record.
func (p *preferences) record(line []byte) error {
	if !utf8.Valid(line) {
		return corpus.ErrUTF8
	}

	var rec struct {
		Prompt     json.RawMessage `json:"prompt"`
		Chosen     json.RawMessage `json:"chosen"`
		Rejected   json.RawMessage `json:"rejected"`
		Completion json.RawMessage `json:"completion"`
		Label      *bool           `json:"label"`
	}
	if err := json.Unmarshal(line, &rec); err != nil {
		return fmt.Errorf("%w: %w", corpus.ErrRecord, err)
	}

	for _, raw := range []*json.RawMessage{&rec.Prompt, &rec.Chosen, &rec.Rejected, &rec.Completion} {
		if string(*raw) == "null" {
			*raw = nil
		}
	}

	switch {
	case rec.Chosen != nil && rec.Rejected != nil:
		return p.pair(rec.Prompt, rec.Chosen, rec.Rejected)
	case p.single && rec.Completion != nil && rec.Label != nil:
		s, err := p.sample(rec.Prompt, rec.Completion, 0)
		if err == nil {
			p.mark(p.cut(s), *rec.Label)
		}
		return err
	case p.single:
		return fmt.Errorf("%w: neither prompt with completion and label (true or false), nor chosen and rejected",
			corpus.ErrRecord)
	}

	return fmt.Errorf("%w: no chosen and rejected answers", corpus.ErrRecord)
}

// pair adds a prompt with two answers, unless they are the same.
func (p *preferences) pair(prompt, chosen, rejected json.RawMessage) error {
	first := 0 // turns that both conversations begin with, where the prompt is not apart
	if prompt == nil {
		x, err := parseMessages(chosen)
		if err != nil {
			return fmt.Errorf("%w: chosen and rejected without a prompt are conversations", corpus.ErrRecord)
		}
		y, err := parseMessages(rejected)
		if err != nil {
			return err
		}
		for first < min(len(x), len(y)) && x[first] == y[first] {
			first++
		}
		if first == len(x) || first == len(y) { // one goes on where the other ends, or they are the same
			first = max(0, min(len(x), len(y))-1)
		}
	}

	good, err := p.sample(prompt, chosen, first)
	if err != nil {
		return err
	}
	bad, err := p.sample(prompt, rejected, first)
	if err != nil {
		return err
	}

	good, bad = p.cut(good), p.cut(bad)
	switch {
	case slices.Equal(good.ids, bad.ids):
		p.counts.Same++
	case p.single:
		p.mark(good, true)
		p.mark(bad, false)
	default:
		p.list = append(p.list, good, bad)
	}
	return nil
}

// sample is the sequence of a prompt and an answer, both texts or both turns of a conversation, or of a conversation
// whose first turns are the prompt.
func (p *preferences) sample(prompt, answer json.RawMessage, first int) (sample, error) {
	var text, before string
	if json.Unmarshal(answer, &text) == nil {
		if prompt == nil || json.Unmarshal(prompt, &before) != nil {
			return sample{}, fmt.Errorf("%w: the answer is a text, the prompt is not", corpus.ErrRecord)
		}
		return p.answer(before, text)
	}

	var turns []Message
	if prompt != nil {
		var err error
		if turns, err = parseMessages(prompt); err != nil {
			return sample{}, err
		}
		first = len(turns)
	}

	rest, err := parseMessages(answer)
	if err != nil {
		return sample{}, err
	}
	return p.chat(append(turns, rest...), first)
}

// mark adds an answer.
func (p *preferences) mark(s sample, good bool) {
	p.list = append(p.list, s)
	p.good = append(p.good, good)
}

// cross puts after every answer its prompt with the answer of the record before, of the first one the last's.
func (p *preferences) cross() error {
	if all := slices.Index(p.good, !p.good[0]); all < 0 {
		return failure.Hinted(fmt.Errorf("%s: %w: all %d answers have the label %v, so that nothing is preferred",
			p.path, corpus.ErrRecord, len(p.good), p.good[0]), "lora train without --objective learns good answers")
	}

	var list []sample
	for i, s := range p.list {
		other := p.list[(i+len(p.list)-1)%len(p.list)]
		k, from := s.split(), other.split()
		x := sample{
			append(slices.Clone(s.ids[:k]), other.ids[from:]...),
			append(slices.Clone(s.labels[:k]), other.labels[from:]...),
		}
		if len(x.ids) > p.o.SeqLen { // which is no record of the data, and not counted as one that was cut
			x.ids, x.labels = x.ids[:p.o.SeqLen], x.labels[:p.o.SeqLen]
		}
		list = append(list, s, x)
	}
	p.list = list
	return nil
}

// split is where the answer of a sequence begins.
func (s sample) split() int {
	if k := slices.IndexFunc(s.labels, func(y int32) bool { return y != corpus.Ignore }); k >= 0 {
		return k
	}
	return len(s.ids)
}
