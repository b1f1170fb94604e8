package lm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/lm/corpus"
)

// Variants are forms of a model that differ in the weights of blocks. They run side by side, block by block, so that
// they share a pass through the files, and what comes before the first block in which they differ.
type Variants struct {
	// Forms numbers the weights, for each variant by blocks: where two variants have the same number in a block, they
	// have the same weights there.
	Forms [][]int
	// Put gives a block the weights of a form. The forms of a block come in ascending order.
	Put func(ctx context.Context, block, form int) error
	// Back gives a block its own weights again, and their memory back, after the last of its forms or an error.
	Back func(block int) error
}

// check finds faults of the caller.
func (v Variants) check(m *Model) error {
	for i, forms := range v.Forms {
		if len(forms) != m.Blocks() {
			return fmt.Errorf("%w: variant %d has forms of %d blocks, the model %d", ErrInput, i, len(forms),
				m.Blocks())
		}
	}
	return nil
}

// CompareVariants is [Baseline.Compare] for variants of a model, which has to be streamed if only one block of it is
// to be in memory. What flows between blocks is held for as many sequences at a time as take, with all variants, no
// more memory than those of the baseline; where the sequences make one batch, for all. Figures are those that the
// variants have by themselves, to the last bit.
func (b *Baseline) CompareVariants(ctx context.Context, m *Model, v Variants) ([]*Divergence, error) {
	if err := v.check(m); err != nil {
		return nil, err
	}

	sums := make([]divergences, len(v.Forms))
	parts := b.windows.Batches(lossBatch)
	for lo, hi := 0, 0; lo < len(parts) && len(sums) > 0; lo = hi {
		hi = b.together(lo, len(sums))
		if err := b.compareParts(ctx, m, v, parts, lo, hi, sums); err != nil {
			return nil, err
		}
	}

	out := make([]*Divergence, len(sums))
	for i := range sums {
		var err error
		if out[i], err = sums[i].summary(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// together is the end of the batches, from lo on, that run through the blocks together.
func (b *Baseline) together(lo, variants int) int {
	room := 0
	for _, h := range b.states {
		room += h.X.Rows
	}

	hi, rows := lo+1, b.states[lo].X.Rows
	for hi < len(b.states) && variants*(rows+b.states[hi].X.Rows) <= room {
		rows += b.states[hi].X.Rows
		hi++
	}
	return hi
}

// compareParts adds up what the batches from lo to hi come to.
func (b *Baseline) compareParts(ctx context.Context, m *Model, v Variants, parts []corpus.Windows, lo, hi int,
	sums []divergences,
) error {
	j := &jointPass{m: m, v: v}
	defer j.free()
	parts = slices.Clone(parts[lo:hi])
	for k, part := range parts {
		var err error
		if parts[k], err = labelled(b.m, m, part); err != nil {
			return err
		}
	}

	if err := j.embed(parts); err != nil {
		return err
	}
	for l := range m.Blocks() {
		if err := j.block(ctx, l); err != nil {
			return err
		}
	}

	for k, part := range parts {
		forms := make([]tally, len(sums))
		for _, s := range j.streams {
			for _, i := range s.variants {
				forms[i] = tally{sum: &sums[i], now: s.states[k]}
			}
		}
		if err := compareBatch(ctx, b.m, m, b.states[lo+k], part, forms); err != nil {
			return err
		}
	}
	return nil
}

// jointPass is one pass of variants through the blocks.
type jointPass struct {
	m       *Model
	v       Variants
	streams []*stream
}

// stream is what flows in variants that have been the same so far.
type stream struct {
	variants []int
	states   []*Hidden // of each batch
}

func (j *jointPass) free() {
	for _, s := range j.streams {
		for _, h := range s.states {
			h.Free()
		}
	}
}

// embed begins with one stream of all variants.
func (j *jointPass) embed(parts []corpus.Windows) error {
	s := &stream{}
	for i := range j.v.Forms {
		s.variants = append(s.variants, i)
	}

	j.streams = []*stream{s}
	for _, part := range parts {
		h, err := j.m.Embed(part.IDs)
		if err != nil {
			return err
		}
		s.states = append(s.states, h)
	}
	return nil
}

// block runs a block in all of its forms.
func (j *jointPass) block(ctx context.Context, l int) (err error) {
	if err := j.part(l); err != nil {
		return err
	}

	var forms []int
	for _, s := range j.streams {
		forms = append(forms, j.form(s, l))
	}
	slices.Sort(forms)

	defer func() { err = errors.Join(err, j.v.Back(l)) }()
	for _, form := range slices.Compact(forms) {
		if err := j.v.Put(ctx, l, form); err != nil {
			return err
		}
		for _, s := range j.streams {
			if j.form(s, l) != form {
				continue
			}
			for _, h := range s.states {
				if err := j.m.RunBlock(ctx, l, h, nil); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (j *jointPass) form(s *stream, l int) int { return j.v.Forms[s.variants[0]][l] }

// part gives variants a stream of their own that have been the same until this block.
func (j *jointPass) part(l int) error {
	for _, s := range slices.Clone(j.streams) {
		first := j.form(s, l)
		own := map[int]*stream{first: s}
		all := s.variants
		s.variants = nil
		for _, i := range all {
			form := j.v.Forms[i][l]
			if own[form] == nil {
				branch := &stream{}
				own[form] = branch
				j.streams = append(j.streams, branch)
				for _, h := range s.states {
					c, err := j.m.CopyHidden(h)
					if err != nil {
						return err
					}
					branch.states = append(branch.states, c)
				}
			}
			own[form].variants = append(own[form].variants, i)
		}
	}
	return nil
}
