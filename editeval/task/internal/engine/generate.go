package engine

import (
	"context"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Prompt is a text to be continued greedily.
type Prompt struct {
	IDs []int32
	Max int      // tokens to add at most
	End []string // texts that end it, in order
}

// Text is what a prompt was continued with.
type Text struct {
	Text   string
	Tokens int    // generated, the ones of the stop text included
	Ended  string // what ended it: stop, eos, length, or nonfinite where logits were not finite
}

// The reasons in Text.Ended.
const (
	EndStop      = "stop"
	EndEOS       = "eos"
	EndLength    = "length"
	EndNonFinite = "nonfinite"
)

// Limits on texts that are generated at a time.
const (
	defaultSlots  = 16 // products of up to so many rows read the weights once, as they lie in memory
	defaultMemory = 2 << 30
)

// slot is a text in the making.
type slot struct {
	index   int
	s       *lm.Session
	prompt  *Prompt
	out     []int32
	windows []int // of each stop text: tokens at the end that may hold it
	next    int32
}

// generator runs several texts side by side.
type generator struct {
	e       *Engine
	tok     *tokenizer.Tokenizer
	root    *lm.Session // the beginning that all prompts share
	shared  int
	eos     []int32
	eosText string      // where the tokenizer does not know the token as special, it is in the text
	pad     *lm.Session // a second row, so that a single text runs on the kernels that several do
	slots   []*slot
	widths  map[string]int
}

// Generate continues prompts. known and flush are as in Likelihoods; flush is told of texts as they end. Each
// prompt's first tokens run by themselves, and its later ones with those of other texts.
func (e *Engine) Generate(ctx context.Context, tok *tokenizer.Tokenizer, prompts []Prompt, known func(i int) bool,
	flush func(i int, t Text) error,
) error {
	g := &generator{e: e, tok: tok, eos: e.Model.StopTokens(), widths: map[string]int{}}
	if id, ok := tok.EOS(); ok && !slices.Contains(g.eos, id) {
		g.eos = append(g.eos, id)
	}
	if id, ok := tok.EOS(); ok {
		g.eosText, _ = tok.Token(id)
	}
	defer g.close()

	if err := g.start(ctx, prompts); err != nil {
		return err
	}

	waiting := make([]int, 0, len(prompts))
	for i := range prompts {
		if !known(i) {
			waiting = append(waiting, i)
		}
	}

	for len(waiting) > 0 || len(g.slots) > 0 {
		for len(waiting) > 0 && g.room(&prompts[waiting[0]]) {
			if err := g.admit(ctx, waiting[0], &prompts[waiting[0]]); err != nil {
				return err
			}
			waiting = waiting[1:]
		}

		if err := g.retire(flush); err != nil {
			return err
		}

		if len(g.slots) > 0 {
			if err := g.step(ctx); err != nil {
				return err
			}
		}
	}

	return nil
}

// start computes what all prompts begin with, and a second row.
func (g *generator) start(ctx context.Context, prompts []Prompt) error {
	if len(prompts) == 0 {
		return nil
	}

	g.shared = len(prompts[0].IDs) - 1
	for i := range prompts {
		p := &prompts[i]
		g.shared = min(g.shared, common(prompts[0].IDs, p.IDs), len(p.IDs)-1)
	}

	if g.shared < minShared || len(prompts) == 1 || !g.e.shares() {
		g.shared = 0
	}

	var err error
	if g.root, err = g.e.Model.NewSession(lm.SessionOptions{}); err != nil {
		return err
	}
	if g.pad, err = g.e.Model.NewSession(lm.SessionOptions{KeepAll: true}); err != nil {
		return err
	}
	if g.shared > 0 {
		_, err = g.e.read(ctx, g.root, prompts[0].IDs[:g.shared])
	}

	return err
}

// room reports whether another text may begin: one always may.
func (g *generator) room(p *Prompt) bool {
	n, memory := g.e.Slots, g.e.Memory
	if n <= 0 {
		n = defaultSlots
	}
	if memory <= 0 {
		memory = defaultMemory
	}

	used := g.bytes(p)
	for _, s := range g.slots {
		used += g.bytes(s.prompt)
	}

	return len(g.slots) == 0 || len(g.slots) < min(n, defaultSlots) && used <= memory
}

// bytes is what the keys and values of a text take in the end.
func (g *generator) bytes(p *Prompt) int64 {
	c := g.e.Model.Config()
	return int64(len(p.IDs)+p.Max) * int64(g.e.Model.Blocks()) * int64(c.KVHeads*c.HeadDim) * 8
}

// admit runs a prompt and finds its first token.
func (g *generator) admit(ctx context.Context, i int, p *Prompt) error {
	s, err := g.root.Clone(len(p.IDs) - g.shared + p.Max)
	if err != nil {
		return err
	}

	sl := &slot{index: i, s: s, prompt: p}
	g.slots = append(g.slots, sl)

	for _, stop := range p.End {
		w, err := g.width(stop)
		if err != nil {
			return err
		}
		sl.windows = append(sl.windows, w)
	}

	next, err := g.e.read(ctx, s, p.IDs[g.shared:])
	if err != nil {
		return err
	}

	sl.take(next)
	if g.e.Done != nil {
		g.e.Done(len(p.IDs))
	}

	return nil
}

// width is how many tokens at the end of a text may hold a stop text: those that it takes itself and two more.
func (g *generator) width(stop string) (int, error) {
	if w, ok := g.widths[stop]; ok {
		return w, nil
	}
	ids, err := g.tok.Encode(stop, tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		return 0, err
	}
	g.widths[stop] = len(ids) + 2
	return len(ids) + 2, nil
}

func (s *slot) take(id int32) {
	s.next = id
	if id >= 0 {
		s.out = append(s.out, id)
	}
}

// step adds a token to every text.
func (g *generator) step(ctx context.Context) error {
	sessions, ids := make([]*lm.Session, 0, len(g.slots)+1), make([][]int32, 0, len(g.slots)+1)
	for _, s := range g.slots {
		sessions, ids = append(sessions, s.s), append(ids, []int32{s.next})
	}

	if len(sessions) == 1 {
		if err := g.pad.Truncate(0); err != nil {
			return err
		}
		sessions, ids = append(sessions, g.pad), append(ids, []int32{0})
	}

	h, err := g.e.Model.Step(ctx, sessions, ids)
	if err != nil {
		return err
	}
	defer h.Free()

	rows, want := make([]int32, len(sessions)), make([][]int32, len(sessions))
	for i := range rows {
		rows[i] = int32(i)
	}

	_, best, err := g.e.Model.Score(ctx, h, rows, want)
	if err != nil {
		return err
	}

	for i, s := range g.slots {
		s.take(best[i])
	}

	return nil
}

// retire takes out the texts that have ended.
func (g *generator) retire(flush func(i int, t Text) error) error {
	kept := g.slots[:0]
	var fault error
	for _, s := range g.slots {
		why := g.ended(s)
		if why == "" || fault != nil {
			kept = append(kept, s)
			continue
		}

		text := valid(g.tok.Decode(s.out, true))
		fault = flush(s.index,
			Text{
				CutAtStops(text, append(s.prompt.End[:len(s.prompt.End):len(s.prompt.End)], g.eosText)), len(s.out),
				why,
			})
		s.s.Close()
		if g.e.Done != nil {
			g.e.Done(s.prompt.Max)
		}
	}

	g.slots = kept
	return fault
}

// ended says why a text is at its end; "" if it is not.
func (g *generator) ended(s *slot) string {
	switch {
	case s.next < 0:
		return EndNonFinite
	case slices.Contains(g.eos, s.next):
		return EndEOS
	}

	for i, stop := range s.prompt.End {
		tail := s.out[max(0, len(s.out)-s.windows[i]):]
		if stop != "" && strings.Contains(g.tok.Decode(tail, false), stop) {
			return EndStop
		}
	}

	if len(s.out) >= s.prompt.Max {
		return EndLength
	}

	return ""
}

func (g *generator) close() {
	for _, s := range g.slots {
		s.s.Close()
	}
	for _, s := range []*lm.Session{g.root, g.pad} {
		if s != nil {
			s.Close()
		}
	}
}
