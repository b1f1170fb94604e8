package edit

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Baseline is what a model says before it is edited, at the ends of some prompts.
type Baseline struct {
	prompts [][]int32
	logp    [][]float32
}

// Drift is how far an edited model has moved from its baseline.
type Drift struct {
	Prompts   int     `json:"prompts"`
	KL        float64 `json:"kl"`               // mean KL(before ‖ after) of the next token, in nats
	Agreement float64 `json:"argmax_agreement"` // fraction of prompts with the same top-1 token
}

// Prompts are what drift is measured at: one prompt of each record that the edit should leave alone, another
// subject's or an unrelated one, at most limit.
func (x *Encoder) Prompts(records []Record, limit int) ([][]int32, error) {
	var out [][]int32
	for i := range records {
		var text string
		switch r := &records[i]; {
		case len(out) >= limit:
			return out, nil
		case len(r.Near) > 0:
			text = r.Near[0]
		case len(r.Far) > 0:
			text = r.Far[0].Prompt
		default:
			continue
		}

		ids, err := x.Prompt(text)
		if err != nil {
			return nil, err
		}

		out = append(out, ids)
	}

	return out, nil
}

// Baseline notes what the model says now.
func (e *Editing) Baseline(ctx context.Context, prompts [][]int32) (*Baseline, error) {
	b := &Baseline{prompts: prompts}
	for _, p := range prompts {
		z, err := e.next(ctx, p)
		if err != nil {
			return nil, err
		}

		row := make([]float32, len(z))
		for i, v := range z {
			row[i] = float32(v)
		}

		b.logp = append(b.logp, row)
	}

	return b, nil
}

// next is the log-probabilities after a prompt.
func (e *Editing) next(ctx context.Context, prompt []int32) ([]float64, error) {
	p := e.prompt(prompt)
	h, err := e.run(ctx, [][]int32{p}, []int{len(p) - 1})
	if err != nil {
		return nil, err
	}
	defer h.Free()

	logits, err := e.m.Logits(h, len(p)-1)
	if err != nil {
		return nil, err
	}
	defer logits.Buf.Free()

	z, err := site.Rows{Dev: e.m.Device()}.Get(logits, 0)
	if err != nil {
		return nil, err
	}

	optimize.LogSoftmax(z)
	return z, nil
}

// Drift compares the model with a baseline. A distribution that is not finite makes KL infinite.
func (e *Editing) Drift(ctx context.Context, b *Baseline) (*Drift, error) {
	d := &Drift{Prompts: len(b.prompts)}
	n := float64(len(b.prompts))
	for i, p := range b.prompts {
		z, err := e.next(ctx, p)
		if err != nil {
			return nil, err
		}

		kl := 0.0
		before := 0
		after := 0
		for j, v := range z {
			was := float64(b.logp[i][j])
			kl += math.Exp(was) * (was - v)
			if b.logp[i][j] > b.logp[i][before] {
				before = j
			}
			if v > z[after] {
				after = j
			}
		}

		// Every comparison with NaN is false, so a broken model would pass as unmoved. JSON has no infinity, and n
		// of these still sum to a finite mean.
		if math.IsNaN(kl) {
			kl = math.MaxFloat64 / n
		}

		// rounding can leave a divergence of nearly equal distributions a little below zero.
		d.KL += max(kl, 0) / n
		d.Agreement += truth(before == after) / n
	}

	return d, nil
}

// Texts continues a record's generation prompts (else the prompt itself) to a hundred tokens, drawing among the
// five most probable, as ROME's evaluation does, with a seed of its own for each prompt.
func (e *Editing) Texts(ctx context.Context, x *Encoder, r *Record, seed uint64) ([]string, error) {
	prompts := r.Generate
	if len(prompts) == 0 {
		prompts = []string{r.Full()}
	}

	var out []string
	for i, text := range prompts {
		ids, err := x.Prompt(text)
		if err != nil {
			return nil, err
		}

		p := e.prompt(ids)

		// Context that an in-context edit puts before the prompt is no part of the hundred tokens, but of the
		// positions.
		room := 100 - len(ids)
		if limit := e.m.Config().MaxPositions; limit > 0 {
			room = min(room, limit-len(p))
		}

		if room <= 0 {
			out = append(out, text)
			continue
		}

		// An end-of-text token doesn't stop: the entropy of n-grams is comparable only between texts of one length.
		fresh, err := e.m.Generate(ctx, p,
			lm.GenerateOptions{MaxTokens: room, Temperature: 1, TopK: 5, Seed: seed + uint64(i), Stop: []int32{}})
		if err != nil {
			return nil, err
		}

		out = append(out, x.Tokenizer.Decode(append(append([]int32(nil), ids...), fresh...), true))
	}

	return out, nil
}

// continued is what the model says to a prompt, its most probable token at each place, with no room none.
func (e *Editing) continued(ctx context.Context, x *Encoder, text string) (string, error) {
	ids, err := x.Prompt(text)
	if err != nil {
		return "", err
	}

	p := e.prompt(ids)
	room := exampleTokens
	if limit := e.m.Config().MaxPositions; limit > 0 {
		room = min(room, limit-len(p))
	}
	if room <= 0 {
		return "", nil
	}

	fresh, err := e.m.Generate(ctx, p, lm.GenerateOptions{MaxTokens: room})
	if err != nil {
		return "", err
	}

	// Decoded together with the prompt, since what stands between two words may belong to either.
	whole := x.Tokenizer.Decode(append(slices.Clone(ids), fresh...), true)
	return strings.TrimPrefix(whole, x.Tokenizer.Decode(ids, true)), nil
}

// Document is the tokens of a text that statistics are collected from, without special tokens and cut to a length.
func (x *Encoder) Document(text string, limit int) ([]int32, error) {
	ids, err := x.Tokenizer.Encode(text, tokenizer.EncodeOptions{NoSpecial: true})
	if limit > 0 && len(ids) > limit {
		ids = ids[:limit]
	}
	return ids, err
}
