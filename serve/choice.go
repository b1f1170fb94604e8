package serve

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// choice is one continuation of a prompt.
type choice struct {
	of       *task
	index    int // among the choices of the request
	sequence *lm.Sequence
	ids      []int32 // new tokens; those from the sequence's end on have not been computed with
	sampler  *lm.Sampler
	counts   map[int32]int // of new tokens, where penalties need them
	scaled   []float32
	decoder  *tokenizer.StreamDecoder
	held     string // text that may be the beginning of a stop text
	draft    draft
	finish   string // why it ended; empty: it goes on
	err      error
}

// begin makes what chooses and decodes tokens.
func (c *choice) begin() error {
	o := c.of.shape.options
	o.Seed += uint64(c.index - c.of.first)

	var err error
	if c.sampler, err = lm.NewSampler(o); err != nil {
		return err
	}
	c.sampler.See(c.of.prompt)

	// How a token is spelt depends on what is before it.
	c.decoder = c.of.of.model.Tokenizer.StreamDecoder(true)
	for _, id := range c.of.prompt {
		c.decoder.Next(id)
	}

	if c.of.shape.frequency != 0 || c.of.shape.presence != 0 {
		c.counts = map[int32]int{}
	}
	return nil
}

// next chooses a token by the logits after the last one, and says what it adds.
func (c *choice) next(logits []float32) (event, error) {
	t := c.of
	id, err := c.sampler.Next(c.shaped(logits), len(t.prompt)+len(c.ids))
	if err != nil {
		return event{}, err
	}

	c.ids = append(c.ids, id)
	c.sampler.See([]int32{id})
	if c.counts != nil {
		c.counts[id]++
	}

	e := event{choice: c.index}
	if t.scored {
		e.tokens = []tokenInfo{scoreOf(logits, id, t.tops)}
	}

	text := c.held + c.decoder.Next(id)
	if slices.Contains(t.stop, id) {
		c.finish = "stop"
	}

	at, end := stopAt(text, t.stops)
	if end {
		c.finish = "stop"
		text = text[:at]
	}
	if c.finish == "" && len(c.ids) >= t.max {
		c.finish = "length"
	}

	if c.finish != "" && !end {
		text += c.decoder.Flush()
		if at, end = stopAt(text, t.stops); end {
			text = text[:at]
		}
		at = len(text)
	}

	e.text, c.held = text[:at], text[at:]
	if c.finish != "" {
		e.finish = c.finish
		e.count = len(c.ids)
	}
	return e, nil
}

// stopAt finds the first stop text, or where one may begin at the end of a text: otherwise the end.
func stopAt(text string, stops []string) (at int, found bool) {
	at = len(text)
	for _, s := range stops {
		if i := strings.Index(text, s); i >= 0 && (i < at || !found) {
			at, found = i, true
		}
	}
	if found {
		return at, true
	}

	for _, s := range stops {
		for n := min(len(s)-1, len(text)); n > 0; n-- {
			if strings.HasSuffix(text, s[:n]) {
				at = min(at, len(text)-n)
				break
			}
		}
	}
	return at, false
}

// shaped are the logits with bias and penalties.
func (c *choice) shaped(logits []float32) []float32 {
	s := &c.of.shape
	if len(s.bias) == 0 && len(c.counts) == 0 {
		return logits
	}

	c.scaled = append(c.scaled[:0], logits...)
	for id, b := range s.bias {
		c.scaled[id] += b
	}
	for id, n := range c.counts {
		c.scaled[id] -= float32(s.frequency*float64(n) + s.presence)
	}
	return c.scaled
}

// scoreOf is a token with its probability, and those of the most likely ones, of equal ones the lower first.
func scoreOf(logits []float32, id int32, tops int) tokenInfo {
	top := float64(slices.Max(logits)) // not a number if any is not
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}

	total := top + math.Log(sum)
	info := tokenInfo{id: id, logprob: float64(logits[id]) - total}
	for _, k := range highest(logits, tops) {
		info.tops = append(info.tops, candidate{k, float64(logits[k]) - total})
	}
	return info
}

// highest are the tokens of the n highest logits.
func highest(logits []float32, n int) []int32 {
	var list []int32
	for i, v := range logits {
		if len(list) == n && (n == 0 || !(v > logits[list[n-1]])) {
			continue
		}

		at, _ := slices.BinarySearchFunc(list, v, func(k int32, v float32) int {
			return cmp.Or(-cmp.Compare(logits[k], v), -1) // behind those that are as high
		})
		list = slices.Insert(list, at, int32(i))
		list = list[:min(len(list), n)]
	}
	return list
}
