package structure

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
)

// The scores of experts; the package's documentation says what each is.
const (
	REAP      = "reap"
	Frequency = "frequency"
	Outputs   = "outputs"
	Subsets   = "subsets"
	Clusters  = "clusters"
)

// ExpertScores lists what experts are chosen by.
func ExpertScores() []string { return []string{REAP, Frequency, Outputs, Subsets, Clusters} }

// Experts is which experts stay, and why.
type Experts struct {
	By   string `json:"by"`    // one of [ExpertScores]
	Of   int    `json:"of"`    // experts of a layer before
	Keep int    `json:"keep"`  // and after
	TopK int    `json:"top_k"` // of a token, before and after
	// Blocks are the mixtures.
	Blocks []Mixture `json:"blocks"`
	// Unreached counts the experts that no token of the text reached; they go first. Subsets counts none.
	Unreached int `json:"unreached"`
}

// Mixture is one of the mixtures.
type Mixture struct {
	Block  int       `json:"block"`
	Kept   []int     `json:"kept"`
	Scores []float64 `json:"scores,omitempty"`
	Tokens []int64   `json:"tokens,omitempty"` // that reached each
	// Of subsets: how many were tried, and the squares of what the layer gives otherwise by what it adds to the stream.
	Tried int     `json:"tried,omitempty"`
	Lost  float64 `json:"lost,omitempty"`
	// Clusters are the experts of which each that stays is the mean, first in its own.
	Clusters [][]int `json:"clusters,omitempty"`
}

// experts is a choice of experts under way.
type experts struct {
	m        *lm.Model
	calib    corpus.Windows
	by       string
	keep     int
	progress func(done, of int64)
}

// expertCount is how many experts stay: of a share that goes, the part of an expert stays; every group of a router that
// chooses groups keeps as many.
func (o *Options) expertCount(c *lm.Config) (int, error) {
	if o.Experts.Zero() {
		return c.Experts, nil
	}
	if c.Experts == 0 {
		return 0, fmt.Errorf("%w: experts: this %s has none", ErrOptions, c.ModelType)
	}

	if o.ExpertScore == Subsets && c.Groups > 1 {
		return 0, fmt.Errorf("%w: %s: the router chooses among %d groups first; %s does that", ErrOptions, Subsets,
			c.Groups, REAP)
	}

	n := o.Experts.Keep
	groups := max(1, c.Groups)
	if o.Experts.Drop > 0 {
		n = c.Experts - int(o.Experts.Drop*float64(c.Experts)+1e-9)
		if n < c.Experts {
			n = min((n+groups-1)/groups*groups, max(c.Experts-groups, groups))
		}
	}
	switch {
	case n > c.Experts:
		return 0, fmt.Errorf("%w: %d experts are to stay, there are %d", ErrOptions, n, c.Experts)
	case n == c.Experts:
		return 0, fmt.Errorf("%w: all %d experts stay", ErrOptions, n)
	case n < c.TopK:
		return 0, fmt.Errorf("%w: %d experts: every token goes to %d; %s would do", ErrOptions, n, c.TopK,
			expertCounts(c, n))
	case n%groups != 0:
		return 0, fmt.Errorf("%w: %d experts: the router chooses among %d groups, which keep as many each; %s would do",
			ErrOptions, n, groups, expertCounts(c, n))
	case o.ExpertScore == Subsets && countSubsets(c.Experts, n) > maxSubsets:
		return 0, fmt.Errorf("%w: %s: there are %.3g choices of %d of %d experts, more than %d; %s does with one run",
			ErrOptions, Subsets, countSubsets(c.Experts, n), n, c.Experts, maxSubsets, REAP)
	}

	return n, nil
}

// expertCounts names the numbers next to n that a router of groups can choose from, below the present one.
func expertCounts(c *lm.Config, n int) string {
	groups := max(1, c.Groups)
	low, high := 0, 0
	for m := groups; m < c.Experts; m += groups {
		chosen := m // that a token can have: those of its groups
		if c.TopGroups > 0 {
			chosen = c.TopGroups * (m / groups)
		}
		switch {
		case chosen < c.TopK:
		case m <= n:
			low = m
		case high == 0:
			high = m
		}
	}
	switch {
	case low > 0 && high > 0:
		return fmt.Sprintf("%d or %d", low, high)
	case low > 0:
		return fmt.Sprint(low)
	case high > 0:
		return fmt.Sprintf("%d or more", high)
	}
	return fmt.Sprintf("nothing below %d", c.Experts)
}

// takeExperts adds to a cut what would stay if all experts were alike.
func (o *Options) takeExperts(c *lm.Config, k *arch.Cut) error {
	n, err := o.expertCount(c)
	if err != nil || n == c.Experts {
		return err
	}

	groups := max(1, c.Groups)
	var stay []int
	for g := range groups {
		for i := range n / groups {
			stay = append(stay, g*c.Experts/groups+i)
		}
	}
	for l := range c.Layers {
		if c.Mixture[l] {
			k.Experts = put(k.Experts, l, stay)
		}
	}

	return nil
}

// choose adds the experts that stay to a cut.
func (x *experts) choose(ctx context.Context, k *arch.Cut) (*Experts, error) {
	c := x.m.Config()
	r := &Experts{By: x.by, Of: c.Experts, Keep: x.keep, TopK: c.TopK}
	var err error
	switch x.by {
	case Subsets:
		r.Blocks, err = x.trySubsets(ctx)
	case Clusters:
		r.Blocks, err = x.cluster(ctx, r)
	default:
		r.Blocks, err = x.score(ctx, r)
	}
	if err != nil {
		return nil, err
	}

	for _, b := range r.Blocks {
		k.Experts = put(k.Experts, b.Block, b.Kept)
	}
	return r, nil
}

// score chooses by a figure of each expert.
func (x *experts) score(ctx context.Context, r *Experts) (list []Mixture, err error) {
	c := x.m.Config()
	sums := make([][]float64, c.Layers)
	tokens := make([][]int64, c.Layers)
	for l := range c.Layers {
		sums[l], tokens[l] = make([]float64, c.Experts), make([]int64, c.Experts)
	}
	if err := x.measure(ctx, sums, tokens); err != nil {
		return nil, err
	}

	groups := max(1, c.Groups)
	each := c.Experts / groups
	for l := range c.Layers {
		if !c.Mixture[l] {
			continue
		}

		for e, n := range tokens[l] {
			switch {
			case n == 0:
				r.Unreached++
			case x.by == REAP:
				sums[l][e] /= float64(n)
			}
		}

		mixture := Mixture{Block: l, Scores: sums[l], Tokens: tokens[l]}
		for g := range groups {
			for _, e := range best(sums[l][g*each:(g+1)*each], x.keep/groups) {
				mixture.Kept = append(mixture.Kept, g*each+e)
			}
		}
		list = append(list, mixture)
	}

	return list, nil
}

// measure sums up over the tokens that reach each expert.
func (x *experts) measure(ctx context.Context, sums [][]float64, tokens [][]int64) error {
	var failed error
	hooks := &lm.Hooks{Expert: func(r lm.Routed) {
		if failed != nil {
			return
		}
		failed = x.add(r, &sums[r.Block][r.Expert])
		tokens[r.Block][r.Expert] += int64(len(r.Rows))
	}}

	done := int64(0)
	of := int64(x.m.Blocks()) * int64(len(x.calib.IDs))
	return through(ctx, x.m, x.calib, batchTokens, func(l, _ int, h *lm.Hidden) error {
		err := x.m.RunBlock(ctx, l, h, hooks)
		done += int64(len(h.Lens))
		x.progress(done, of)
		return errors.Join(err, failed)
	})
}

// add adds what an expert's tokens count for.
func (x *experts) add(r lm.Routed, sum *float64) error {
	if x.by == Frequency {
		*sum += float64(len(r.Rows))
		return nil
	}

	y, err := hostmat.F32(x.m.Device(), r.Y)
	if err != nil {
		return err
	}
	for i, weight := range r.Weights {
		square := 0.0
		for _, v := range y.RowF32(i) {
			square += float64(v) * float64(v)
		}
		norm := math.Sqrt(square)
		if norm-norm != 0 {
			return fmt.Errorf("block %d: expert %d: %w: its output", r.Block, r.Expert, lm.ErrNonFinite)
		}
		if x.by == REAP {
			norm *= float64(weight)
		}
		*sum += norm
	}

	return nil
}
