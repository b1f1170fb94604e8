package benchcmd

import (
	"context"
	"encoding/json"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// editCases edit the program's small model, and take it back.
func editCases(ctx context.Context, dev kernels.Device, b *bed, _ Options) ([]timed, error) {
	m, tok, err := b.small(ctx, dev)
	if err != nil {
		return nil, err
	}

	docs, blocks := numbers(m.Config(), 16, 128), []int{}
	for l := range m.Blocks() {
		blocks = append(blocks, l)
	}

	stats, err := edit.Collect(ctx, m, docs, blocks, nil)
	if err != nil {
		return nil, err
	}

	weights, _ := multiplied(m)
	cases := []timed{{
		name: "covariances of all blocks, 2048 tokens", flops: 2 * weights * 2048,
		run: func() error { _, err := edit.Collect(ctx, m, docs, blocks, nil); return err },
	}}

	for _, c := range []struct {
		name, method string
		edits        int
	}{{"rome, one edit", "rome", 1}, {"memit, 8 edits in a batch", "memit", len(people)}, {"ft, one edit", "ft", 1}} {
		one, err := editCase(ctx, m, tok, stats, c.method, c.edits)
		if err != nil {
			return nil, err
		}
		one.name = c.name
		cases = append(cases, one)
	}

	return cases, nil
}

// editCase writes some facts in one batch; each repetition starts from the model as it was.
func editCase(ctx context.Context, m *lm.Model, tok *tokenizer.Tokenizer, stats *edit.Statistics, method string,
	n int,
) (timed, error) {
	requests, err := facts(m, tok, method, n)
	if err != nil {
		return timed{}, err
	}

	o := edit.Options{Method: method, Threads: m.Device().Info().Threads}
	hp, err := edit.Defaults(method, m.Config())
	if err != nil {
		return timed{}, err
	}

	if edit.NeedsStatistics(method, hp) {
		o.Statistics = stats
	}

	var e *edit.Editing
	return timed{
		run: func() (err error) {
			if e, err = edit.New(m, o); err == nil {
				_, err = e.Apply(ctx, requests, nil)
			}
			return err
		},
		after: func() error { defer e.Close(); return e.Undo(0) },
	}, nil
}

// facts are requests that move people to other towns.
func facts(m *lm.Model, tok *tokenizer.Tokenizer, method string, n int) (list []edit.Encoded, err error) {
	var records []map[string]any
	for i, name := range people[:n] {
		records = append(records, map[string]any{"case_id": i, "requested_rewrite": map[string]any{
			"prompt": "The birthplace of {} is", "subject": name, "relation_id": "born",
			"target_true": map[string]any{"str": cities[i%4]}, "target_new": map[string]any{"str": cities[(i+1)%4]},
		}})
	}

	text, err := json.Marshal(records)
	if err != nil {
		return nil, err
	}

	set, err := edit.Parse(text)
	if err != nil {
		return nil, err
	}

	hp, err := edit.Defaults(method, m.Config())
	if err != nil {
		return nil, err
	}

	x := &edit.Encoder{Tokenizer: tok, Templates: hp.Templates, Positions: m.Config().MaxPositions}
	for i := range set.Records {
		r, err := x.Record(&set.Records[i])
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}

	return list, nil
}
