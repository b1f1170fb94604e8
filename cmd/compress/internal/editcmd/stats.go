package editcmd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm/corpus"
)

// documentTokens is the length that documents of statistics are cut to.
const documentTokens = 512

// maxText bounds a text that is shorter than one window.
const maxText = 64 << 20

// Statistics tells what the covariance of keys was collected from.
type Statistics struct {
	Source string `json:"source"`
	Data   string `json:"data"` // hash of the tokens
	Tokens int    `json:"tokens"`
}

// statistics collects the covariance of keys, if the method needs it.
func (r *run) statistics() (*edit.Statistics, error) {
	if !edit.NeedsStatistics(r.o.Method, r.hp) {
		return nil, nil
	}

	docs, source, err := r.documents()
	if err != nil {
		return nil, err
	}

	bar := r.Bars()
	defer bar.End()

	show := func(done, total int) { bar.Show("statistics", int64(done), int64(total)) }
	var st *edit.Statistics
	if r.o.Cache != "" {
		model, err := r.m.Fingerprint(r.Ctx)
		if err != nil {
			return nil, err
		}

		st, err = edit.Cached(r.Ctx, r.m, docs, r.hp.Layers, r.o.Cache, model, show)
		if err != nil {
			return nil, err
		}
	} else if st, err = edit.Collect(r.Ctx, r.m, docs, r.hp.Layers, show); err != nil {
		return nil, err
	}

	st.Source = source
	r.r.Statistics = &Statistics{source, st.Data, st.Tokens}
	return st, nil
}

// documents are the texts of --stats, else the prompts of all records.
func (r *run) documents() ([][]int32, string, error) {
	if r.o.Stats == "" {
		docs, err := r.prompts()
		return docs, "prompts of " + r.o.Edits, err
	}

	limit := documentTokens
	if n := r.m.Config().MaxPositions; n > 0 {
		limit = min(limit, n)
	}

	if strings.HasSuffix(r.o.Stats, ".jsonl") {
		docs, err := r.lines(limit)
		return docs, r.o.Stats, err
	}

	w, err := r.Cut(r.m, r.o.Stats, corpus.CutOptions{SeqLen: limit, Limit: max(1, r.o.StatsTokens/limit)})
	if errors.Is(err, corpus.ErrShort) {
		text, err := safefile.ReadFile(r.o.Stats, maxText)
		if err != nil {
			return nil, "", err
		}
		ids, err := r.x.Document(string(text), limit)
		return [][]int32{ids}, r.o.Stats, err
	}

	return w.IDs, r.o.Stats, err
}

// lines are the records of a JSONL file, each a document.
func (r *run) lines(limit int) ([][]int32, error) {
	f, err := safefile.Open(r.o.Stats)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	in := bufio.NewScanner(f)
	in.Buffer(make([]byte, 1<<16), 64<<20)

	var docs [][]int32
	total := 0
	for n := 1; in.Scan() && total < r.o.StatsTokens; n++ {
		if strings.TrimSpace(in.Text()) == "" {
			continue
		}

		text, err := record(in.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", r.o.Stats, n, err)
		}

		ids, err := r.x.Document(text, min(limit, r.o.StatsTokens-total))
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", r.o.Stats, n, err)
		}

		if len(ids) > 0 {
			docs, total = append(docs, ids), total+len(ids)
		}
	}

	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", r.o.Stats, err)
	}
	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: %w", r.o.Stats, corpus.ErrEmpty)
	}

	return docs, nil
}

// record is the text of a line: a JSON string, or an object with "text".
func record(line []byte) (string, error) {
	var s string
	if json.Unmarshal(line, &s) == nil {
		return s, nil
	}

	var o struct {
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(line, &o); err != nil || o.Text == nil {
		return "", fmt.Errorf("%w: want a string, or an object with \"text\"", corpus.ErrRecord)
	}

	return *o.Text, nil
}

// prompts are all prompts of the file of edits with the answers that were true before, each a document, once.
func (r *run) prompts() ([][]int32, error) {
	var texts []string
	for i := range r.set.Records {
		e := &r.set.Records[i]
		texts = append(texts, e.Full()+" "+e.True)
		for _, p := range e.Near {
			texts = append(texts, p+" "+e.True)
		}

		texts = append(append(append(texts, e.Rephrase...), e.Same...), e.Generate...)
		for _, q := range e.Far {
			texts = append(texts, q.Prompt+" "+q.Answer)
		}
	}

	slices.Sort(texts)
	var docs [][]int32
	total := 0
	for _, text := range slices.Compact(texts) {
		ids, err := r.x.Document(text, documentTokens)
		if err != nil {
			return nil, err
		}

		if total += len(ids); total > r.o.StatsTokens {
			break
		}
		if len(ids) > 0 {
			docs = append(docs, ids)
		}
	}

	r.Note("no --stats: the covariance of keys comes from the prompts of %s (%s tokens)", r.o.Edits,
		cli.Thousands(int64(total)))
	return docs, nil
}
