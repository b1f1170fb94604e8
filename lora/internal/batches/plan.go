// Package batches says which sequences a step of training sees. The answer depends on the lengths, the settings
// and the seed alone, so that a run can be continued at any step.
package batches

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// ErrEmpty: no sequence has a token whose loss counts.
var ErrEmpty = errors.New("no token of the data is trained on")

// ErrSets: the sets of the data are not what the data are made of.
var ErrSets = errors.New("sets of the data")

// Data is the sequences of a run.
type Data struct {
	IDs    [][]int32
	Labels [][]int32 // aligned with IDs; nil: every token after the first counts
}

// Options of [New].
type Options struct {
	Steps   int // 0: as many as the passes over the data take
	Passes  int // without Steps; 0: one
	Batch   int // sequences of a step
	Micro   int // sequences of one pass through the model; 0: all of a step
	Tokens  int // with Pack: tokens of a step at most, and Batch counts no more
	Ordered bool
	Seed    uint64
	// Group is how many neighbouring sequences of the data stay together; 0: 1. Batch and Micro count groups.
	Group int
	// Sets are parts of the data that follow each other and are drawn by their weights; nil: the data are one set.
	Sets []Set
}

// Set is a part of the data.
type Set struct {
	Sequences int     // how many it has
	Weight    float64 // its share of the draws is its weight over the sum of all; 0: none
}

// Use is what a run has seen of a set.
type Use struct {
	Usable int // sequences with a token that counts, or groups of such
	Drawn  int // how many the steps took, with repetitions
}

// Plan is the sequences of every step.
type Plan struct {
	Steps   [][]int32 // numbers of sequences, or of groups
	Dropped int       // sequences without a token that counts, or groups with one, which no step sees
	Uses    []Use     // of every set; nil without sets
	data    Data
	micro   int
	group   int
}

// New lays out a run. Every pass over the data takes the sequences in a new random order, or with Ordered as
// they stand; a step may reach from one pass into the next. Of several sets each has passes of its own, and a run
// without a number of steps draws as many sequences as those sets have together whose weight is not 0.
func New(d Data, o Options) (*Plan, error) {
	p := &Plan{data: d, micro: o.Micro, group: max(o.Group, 1)}
	sets := o.Sets
	if sets == nil {
		sets = []Set{{Sequences: len(d.IDs), Weight: 1}}
	}

	decks, err := p.decks(sets, o)
	if err != nil {
		return nil, err
	}

	next := sequence(decks, sets)
	passes := max(o.Passes, 1)
	for o.Steps == 0 || len(p.Steps) < o.Steps {
		step, epoch := p.step(next, o)
		if o.Steps == 0 && epoch >= passes {
			break
		}
		p.Steps = append(p.Steps, step)
	}

	if o.Sets != nil {
		p.count(decks, sets)
	}

	return p, nil
}

// decks sorts out the sequences of every set that can be trained on.
func (p *Plan) decks(sets []Set, o Options) ([]*deck, error) {
	all := 0
	for _, s := range sets {
		all += s.Sequences
	}
	if all != len(p.data.IDs) {
		return nil, fmt.Errorf("%w: the sets have %d sequences, the data %d", ErrSets, all, len(p.data.IDs))
	}

	var decks []*deck
	first := 0
	for k, s := range sets {
		if s.Sequences%p.group != 0 {
			return nil, fmt.Errorf("%w: set %d has %d sequences, which stay together by %d", ErrSets, k, s.Sequences,
				p.group)
		}

		var use []int32
		for g := first / p.group; g < (first+s.Sequences)/p.group; g++ {
			counts := true
			for i := range p.Members(int32(g)) {
				counts = counts && p.data.Counted(int(i)) > 0
			}
			if counts {
				use = append(use, int32(g))
			}
		}

		if len(use) == 0 && s.Weight > 0 {
			of := ""
			if len(sets) > 1 {
				of = fmt.Sprintf("set %d of %d: ", k+1, len(sets))
			}
			return nil, fmt.Errorf("%w: %s%d sequences, all of them empty, of one token, or masked", ErrEmpty, of,
				s.Sequences)
		}

		p.Dropped += s.Sequences/p.group - len(use)
		decks = append(decks, newDeck(use, k, o))
		first += s.Sequences
	}

	return decks, nil
}

// deck is the sequences of a set, which are taken pass by pass.
type deck struct {
	use, order []int32
	key        rng.Key
	ordered    bool
	epoch, at  int
}

// newDeck lays out the first pass over the sequences of set k.
func newDeck(use []int32, k int, o Options) *deck {
	// The key of the first set is that of data without sets, so that one set has the order of none.
	name := "order"
	if k > 0 {
		name = fmt.Sprintf("order of set %d", k)
	}

	d := &deck{use: use, order: append([]int32(nil), use...), key: rng.New(o.Seed, name), ordered: o.Ordered}
	d.shuffle()
	return d
}

// shuffle lays out a pass.
func (d *deck) shuffle() {
	if !d.ordered {
		copy(d.order, d.use)
		d.key.With(uint64(d.epoch)).Shuffle(d.order)
	}
}

// top is the sequence that comes next. A deck that is used up begins its next pass.
func (d *deck) top() int32 {
	if d.at == len(d.order) {
		d.epoch, d.at = d.epoch+1, 0
		d.shuffle()
	}
	return d.order[d.at]
}

// sequence gives the sequences one after the other, each with the number of its pass: how often as many have come
// before as all sets have.
func sequence(decks []*deck, sets []Set) func(peek bool) (int32, int) {
	drawn := make([]int, len(sets))
	n, all := 0, 0
	sum := 0.0
	for k, s := range sets {
		sum += s.Weight
		if s.Weight > 0 {
			all += len(decks[k].use)
		}
	}

	return func(peek bool) (int32, int) {
		k := owed(sets, drawn, n, sum)
		i, epoch := decks[k].top(), n/all
		if !peek {
			decks[k].at++
			drawn[k]++
			n++
		}
		return i, epoch
	}
}

// owed is the set that is furthest behind its share of n+1 draws; of several the first. No set is ever a whole draw
// ahead of its share.
func owed(sets []Set, drawn []int, n int, sum float64) int {
	best, most := -1, 0.0
	for k, s := range sets {
		if s.Weight == 0 {
			continue
		}

		// The conversions keep processors that fuse products and sums from rounding otherwise than the rest.
		behind := float64(s.Weight*float64(n+1)) - float64(sum*float64(drawn[k]))
		if best < 0 || behind > most {
			best, most = k, behind
		}
	}
	return best
}

// count notes what the steps see of every set.
func (p *Plan) count(decks []*deck, sets []Set) {
	var of []int // the set of every group
	for k, s := range sets {
		of = append(of, slices.Repeat([]int{k}, s.Sequences/p.group)...)
		p.Uses = append(p.Uses, Use{Usable: len(decks[k].use)})
	}

	for _, step := range p.Steps {
		for _, g := range step {
			p.Uses[of[g]].Drawn++
		}
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
		case o.Steps == 0 && e >= max(o.Passes, 1) && len(list) > 0: // the last step of the last pass is short
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
