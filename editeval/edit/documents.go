package edit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm/corpus"
)

const (
	// documentTokens is the length that documents of statistics are cut to.
	documentTokens = 512
	// maxText bounds a text that is shorter than one document.
	maxText = 64 << 20
	// maxLine bounds a line of JSONL.
	maxLine = 64 << 20
)

// PromptTexts are all prompts of records with the answers that were true before, each once: the text that a covariance
// of keys comes from where there is no other.
func PromptTexts(records []Record) []string {
	var texts []string
	for i := range records {
		r := &records[i]
		texts = append(texts, r.Full()+" "+r.True)
		for _, p := range r.Near {
			texts = append(texts, p+" "+r.True)
		}

		texts = slices.Concat(texts, r.Rephrase, r.Same, r.Generate)
		for _, q := range r.Far {
			texts = append(texts, q.Prompt+" "+q.Answer)
		}
	}

	slices.Sort(texts)
	return slices.Compact(texts)
}

// statistics collects the covariance of keys, if the method needs it and none was given.
func (r *folderRun) statistics(ctx context.Context) error {
	if NeedsBackground(r.o.Method) {
		return r.background(ctx)
	}
	if r.o.Statistics != nil || !NeedsStatistics(r.o.Method, *r.o.HParams) {
		return nil
	}

	docs, source, err := r.documents(ctx)
	if err != nil {
		return err
	}

	show := func(done, total int) { r.progress("statistics", done, total) }
	layers := r.o.HParams.Layers
	var st *Statistics
	if r.o.Cache == "" {
		st, err = Collect(ctx, r.m, docs, layers, show)
	} else {
		// A covariance is only good for the weights that it was collected from: the cache knows it by their
		// fingerprint.
		var model string
		if model, err = r.m.Fingerprint(ctx); err == nil {
			st, err = Cached(ctx, r.m, docs, layers, r.o.Cache, model, show)
		}
	}
	if err != nil {
		return err
	}

	st.Source = source
	r.o.Statistics = st
	r.report.Statistics = &Collected{source, st.Data, st.Tokens}

	return nil
}

// background reads ordinary text, if the method needs it and none was given. The prompts of the edits will not do: they
// are what the text shall be unlike.
func (r *folderRun) background(ctx context.Context) error {
	if len(r.o.Background) > 0 {
		return nil
	}
	if r.o.Stats == "" {
		return failure.Hinted(fmt.Errorf("%w: %s holds facts against ordinary text", ErrStatistics, r.o.Method),
			"--stats with some of the kind that the model was trained on")
	}

	docs, source, err := r.documents(ctx)
	if err != nil {
		return err
	}

	r.o.Background = BackgroundOf(docs)
	tokens := 0
	for _, d := range r.o.Background {
		tokens += len(d)
	}
	r.report.Statistics = &Collected{source, corpus.HashIDs(r.o.Background), tokens}
	return nil
}

// documents are those of the statistics, and where they come from.
func (r *folderRun) documents(ctx context.Context) (docs [][]int32, source string, err error) {
	most := r.o.StatsTokens
	if most == 0 {
		most = defaultStatsTokens
	}

	if r.o.Stats == "" {
		docs, err := r.prompts(most)
		return docs, "prompts of " + r.set.File, err
	}

	limit := documentTokens
	if n := r.m.Config().MaxPositions; n > 0 {
		limit = min(limit, n)
	}

	if strings.HasSuffix(r.o.Stats, ".jsonl") {
		docs, err = r.lines(limit, most)
	} else {
		docs, err = r.text(ctx, limit, most)
	}

	return docs, r.o.Stats, err
}

// prompts are the prompts of all records, each a document.
func (r *folderRun) prompts(most int) ([][]int32, error) {
	var docs [][]int32
	total := 0
	for _, text := range PromptTexts(r.set.Records) {
		ids, err := r.x.Document(text, documentTokens)
		if err != nil {
			return nil, err
		}

		if total += len(ids); total > most {
			break
		}
		if len(ids) > 0 {
			docs = append(docs, ids)
		}
	}

	r.note("no text for statistics: the covariance of keys comes from the prompts of %s (%d tokens)", r.set.File, total)
	return docs, nil
}

// lines are the records of a JSONL file, each a document.
func (r *folderRun) lines(limit, most int) ([][]int32, error) {
	f, err := safefile.Open(r.o.Stats)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	in := bufio.NewScanner(f)
	in.Buffer(make([]byte, 1<<16), maxLine)

	var docs [][]int32
	total := 0
	for n := 1; in.Scan() && total < most; n++ {
		line := bytes.TrimSpace(in.Bytes())
		if len(line) == 0 {
			continue
		}

		text, err := corpus.RecordText(line)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", r.o.Stats, n, err)
		}

		// Never more than what is left of the limit: the last document is cut, so that the statistics stay within
		// it.
		ids, err := r.x.Document(text, min(limit, most-total))
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", r.o.Stats, n, err)
		}

		// A record without tokens would be a sequence of length 0, which no pass can run.
		if len(ids) > 0 {
			docs = append(docs, ids)
			total += len(ids)
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

// text is a plain text, or token ids, in documents of the same length.
func (r *folderRun) text(ctx context.Context, limit, most int) ([][]int32, error) {
	o := corpus.CutOptions{SeqLen: limit, Limit: max(1, most/limit), VocabSize: r.m.Config().Vocab}
	w, err := corpus.Cut(ctx, r.o.Stats, r.o.Tokenizer, o)
	if !errors.Is(err, corpus.ErrShort) {
		return w.IDs, err
	}

	text, err := safefile.ReadFile(r.o.Stats, maxText)
	if err != nil {
		return nil, err
	}

	ids, err := r.x.Document(string(text), limit)
	return [][]int32{ids}, err
}
