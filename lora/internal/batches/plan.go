// Package batches says which sequences a step of training sees. The answer depends on the lengths, the settings
// and the seed alone, so that a run can be continued at any step.
package batches

import (
	"errors"
	"fmt"
	"iter"

	"github.com/modelcompress/compress/internal/rng"
)

// ErrEmpty: no sequence has a token whose loss counts.
var ErrEmpty = errors.New("no token of the data is trained on")

// Data is the sequences of a run.
type Data struct {
	IDs    [][]int32
	Labels [][]int32 // aligned with IDs; nil: every token after the first counts
}

// Options of [New].
type Options struct {
	Steps   int // 0: as many as one pass over the data takes
	Batch   int // sequences of a step
	Micro   int // sequences of one pass through the model; 0: all of a step
	Tokens  int // with Pack: tokens of a step at most, and Batch counts no more
	Ordered bool
	Seed    uint64
	// Group is how many neighbouring sequences of the data stay together; 0: 1. Batch and Micro count groups.
	Group int
}

// Plan is the sequences of every step.
type Plan struct {
	Steps   [][]int32 // numbers of sequences, or of groups
	Dropped int       // sequences without a token that counts, or groups with one, which no step sees
	data    Data
	micro   int
	group   int
}

// New lays out a run. Every pass over the data takes the sequences in a new random order, or with Ordered as
// they stand; a step may reach from one pass into the next.
func New(d Data, o Options) (*Plan, error) {
	p := &Plan{data: d, micro: o.Micro, group: max(o.Group, 1)}
	var use []int32
	for g := range len(d.IDs) / p.group {
		counts := true
		for i := range p.Members(int32(g)) {
			counts = counts && d.Counted(int(i)) > 0
		}
		if counts {
			use = append(use, int32(g))
		}
	}

	p.Dropped = len(d.IDs)/p.group - len(use)
	if len(use) == 0 {
		return nil, fmt.Errorf("%w: %d sequences, all of them empty, of one token, or masked", ErrEmpty, len(d.IDs))
	}

	next := sequence(use, o)
	for o.Steps == 0 || len(p.Steps) < o.Steps {
		step, epoch := p.step(next, o)
		if o.Steps == 0 && epoch > 0 {
			break
		}
		p.Steps = append(p.Steps, step)
	}

	return p, nil
}

// sequence gives the sequences one after the other, pass by pass, each with the number of its pass.
func sequence(use []int32, o Options) func(peek bool) (int32, int) {
	key := rng.New(o.Seed, "order")
	epoch := 0
	at := 0
	order := append([]int32(nil), use...)
	shuffle := func() {
		if !o.Ordered {
			copy(order, use)
			key.With(uint64(epoch)).Shuffle(order)
		}
	}

	shuffle()
	return func(peek bool) (int32, int) {
		if at == len(order) {
			epoch, at = epoch+1, 0
			shuffle()
		}
		if peek {
			return order[at], epoch
		}
		at++
		return order[at-1], epoch
	}
}

// step takes the sequences of one step, and gives the pass in which the first of them lies.
func (p *Plan) step(next func(bool) (int32, int), o Options) (list []int32, epoch int) {
	_, epoch = next(true)
	tokens := 0
	for {
		i, e := next(true)
		n := p.size(i)
		switch {
		case o.Steps == 0 && e > epoch && len(list) > 0: // the last step of the only pass is short
			return list, epoch
		case o.Tokens == 0 && len(list) == o.Batch, o.Tokens > 0 && len(list) > 0 && tokens+n > o.Tokens:
			return list, epoch
		}

		next(false)
		list, tokens = append(list, i), tokens+n
	}
}

// Batch is what one pass through the model sees.
type Batch struct {
	IDs, Labels [][]int32
	Seqs        []int32 // their numbers in the data
}

// At gives the batches of a step, and the number of tokens whose loss counts in all of them.
func (p *Plan) At(step int) (list []Batch, counted int) {
	for _, g := range p.Steps[step] {
		if len(list) == 0 || p.micro > 0 && len(list[len(list)-1].IDs) == p.micro*p.group {
			list = append(list, Batch{})
		}
		b := &list[len(list)-1]
		for i := range p.Members(g) {
			b.IDs, b.Labels = append(b.IDs, p.data.IDs[i]), append(b.Labels, p.data.LabelsOf(int(i)))
			b.Seqs = append(b.Seqs, i)
			counted += p.data.Counted(int(i))
		}
	}
	return list, counted
}

// Members are the sequences of a group.
func (p *Plan) Members(group int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for k := range int32(p.group) {
			if !yield(group*int32(p.group) + k) {
				return
			}
		}
	}
}

// size is the number of tokens of a group.
func (p *Plan) size(group int32) int {
	n := 0
	for i := range p.Members(group) {
		n += len(p.data.IDs[i])
	}
	return n
}

// Tokens counts the tokens of a step.
func (p *Plan) Tokens(step int) int {
	n := 0
	for _, g := range p.Steps[step] {
		n += p.size(g)
	}
	return n
}

// LabelsOf gives the labels of a sequence.
func (d Data) LabelsOf(i int) []int32 {
	if d.Labels == nil {
		return d.IDs[i]
	}
	return d.Labels[i]
}

// Counted is the number of tokens of a sequence whose loss counts.
func (d Data) Counted(i int) int {
	n := 0
	for _, y := range d.LabelsOf(i)[min(1, len(d.IDs[i])):] {
		if y >= 0 {
			n++
		}
	}
	return n
}
