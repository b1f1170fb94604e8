package structure

import (
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/lm"
)

// sizes are those of the smaller model.
type sizes struct {
	inner, expert, shared int
	heads, kv             int
	hidden                int
}

// What runtimes ask of the sizes of rows: blocks of 32 in all quantised formats but those that ask for more. A share is
// rounded to what tensor cores and most kernels like.
const (
	rowBlock = 32
	rounded  = 64
)

// sizes works out what the options leave. The error wraps [ErrOptions] and names sizes that would do.
func (o *Options) sizes(c *lm.Config) (sizes, error) {
	z := sizes{c.Inner, c.ExpertInner, c.SharedInner, c.Heads, c.KVHeads, c.Hidden}
	if err := o.neuronSizes(c, &z); err != nil {
		return z, err
	}

	// transformers refuses the configurations of many families whose hidden size is no multiple of the heads, also
	// where these have a size of their own. A hidden size that is given decides for the heads, otherwise it is rounded
	// to them.
	divide := c.Hidden%c.Heads == 0
	z.hidden = o.Hidden.Of(c.Hidden)
	if err := o.headSizes(c, &z, divide && o.Hidden.Drop == 0); err != nil {
		return z, err
	}

	unit := 1
	if divide {
		unit = z.heads
	}
	var err error
	z.hidden, err = o.Hidden.row("hidden channels", c.Hidden, unit)

	return z, err
}

// neuronSizes works out the sizes of MLPs.
func (o *Options) neuronSizes(c *lm.Config, z *sizes) error {
	dense := false
	mixture := false
	for _, m := range c.Mixture {
		dense, mixture = dense || !m, mixture || m
	}
	if o.FFN.Keep > 0 && (dense && mixture || c.SharedInner > 0) {
		return fmt.Errorf("%w: %d neurons: this %s has MLPs of several sizes; give the share that goes, such as 25%%",
			ErrOptions, o.FFN.Keep, c.ModelType)
	}

	var err error
	if dense {
		if z.inner, err = o.FFN.row("neurons", c.Inner, 1); err != nil {
			return err
		}
	}
	if mixture {
		if z.expert, err = o.FFN.row("neurons of an expert", c.ExpertInner, 1); err != nil {
			return err
		}
	}
	if c.SharedInner > 0 && z.expert != c.ExpertInner {
		// A multiple of an expert's size, where that is how it is said.
		z.shared = int(math.Round(float64(c.SharedInner) * float64(z.expert) / float64(c.ExpertInner)))
	}

	return nil
}

// headSizes works out the numbers of heads: of the possible ones those that are nearest to a share, and no other than
// was asked for in numbers. divide asks that they divide the hidden size.
func (o *Options) headSizes(c *lm.Config, z *sizes, divide bool) error {
	if o.Heads.Zero() && o.KVHeads.Zero() {
		return nil
	}

	each := c.Heads / c.KVHeads
	heads, kv := o.Heads.target(c.Heads), o.KVHeads.target(c.KVHeads)
	switch {
	case o.Heads.Zero():
		heads = kv * float64(each)
	case o.KVHeads.Zero() && each == 1: // a head of queries has keys and values of its own
		kv = heads
	}

	// All pairs of numbers that are possible; the one that is nearest, and of two as near the larger. Who gives another
	// number than the present one is not told to keep that.
	whole := (o.Heads.Keep == 0 || o.Heads.Keep == c.Heads) && (o.KVHeads.Keep == 0 || o.KVHeads.Keep == c.KVHeads)
	least := math.Inf(1)
	for v := 1; v <= c.KVHeads; v++ {
		for g := 1; g <= each; g++ {
			fits := (!divide || z.hidden%(v*g) == 0) && (!o.Heads.Zero() || g == each) &&
				(whole || v < c.KVHeads || g < each)
			if o.KVHeads.Zero() && each > 1 {
				fits = fits && v == c.KVHeads
			}
			far := math.Abs(float64(v*g)-heads) + float64(c.Heads)*math.Abs(float64(v)-kv)
			if fits && far <= least {
				least = far
				z.heads, z.kv = v*g, v
			}
		}
	}

	asked := o.Heads.Keep > 0 && o.Heads.Keep != z.heads || o.KVHeads.Keep > 0 && o.KVHeads.Keep != z.kv
	switch same := z.heads == c.Heads && z.kv == c.KVHeads; {
	case !asked && !same:
		return nil
	case !asked:
		return fmt.Errorf("%w: all %d heads would stay, on %d of keys and values", ErrOptions, c.Heads, c.KVHeads)
	}

	var why []string
	if divide {
		why = append(why, fmt.Sprintf("divide the %d channels", z.hidden))
	}
	if each > 1 && !o.Heads.Zero() {
		why = append(why, fmt.Sprintf("be as many for each of %d key/value heads", z.kv))
	}
	what := fmt.Sprintf("%d heads", o.Heads.Keep)
	would := fmt.Sprint(z.heads)
	if o.Heads.Keep == 0 {
		what = fmt.Sprintf("%d key/value heads of %d", o.KVHeads.Keep, c.KVHeads)
		would = fmt.Sprintf("%d, with %d heads,", z.kv, z.heads)
	}
	if math.IsInf(least, 1) {
		would = "no other number"
	}
	if why == nil {
		return fmt.Errorf("%w: %s: %s would do", ErrOptions, what, would)
	}

	return fmt.Errorf("%w: %s: heads have to %s; %s would do", ErrOptions, what, strings.Join(why, " and "), would)
}

// target is how many of n a share is before it is rounded.
func (s Share) target(n int) float64 {
	if s.Drop > 0 {
		return (1 - s.Drop) * float64(n)
	}
	return float64(s.Of(n))
}

// row is how many of the elements of a row stay, a multiple of unit.
func (s Share) row(what string, n, unit int) (int, error) {
	switch {
	case s.Zero() && n%unit == 0:
		return n, nil
	case s.Zero():
		return 0, fmt.Errorf("%w: %d %s are no multiple of %d heads", ErrOptions, n, what, unit)
	case s.Keep > n:
		return 0, fmt.Errorf("%w: %d %s are to stay, there are %d", ErrOptions, s.Keep, what, n)
	case s.Keep == n:
		return 0, fmt.Errorf("%w: all %d %s would stay", ErrOptions, n, what)
	case s.Keep > 0:
		block := max(unit, leastBlock(n, unit))
		if s.Keep%block == 0 {
			return s.Keep, nil
		}
		var why []string
		if leastBlock(n, unit) > 1 {
			why = append(why, fmt.Sprintf("quantised formats have blocks of %d", rowBlock))
		}
		if unit > 1 {
			why = append(why, fmt.Sprintf("%d heads have to divide it", unit))
		}
		low := max(s.Keep/block*block, block)
		would := fmt.Sprintf("%d or %d", low, low+block)
		switch {
		case low >= n:
			would = fmt.Sprintf("nothing below %d", n)
		case low+block >= n:
			would = fmt.Sprint(low)
		}
		return 0, fmt.Errorf("%w: %d %s: %s; %s would do", ErrOptions, s.Keep, what,
			strings.Join(why, ", and "), would)
	}

	// The largest block that leaves the share about what was asked for, and what a number would have to be.
	block := rounded
	for block > 1 && (n%block != 0 || n < 8*common(block, unit)) {
		block /= 2
	}
	block = max(common(block, unit), leastBlock(n, unit))
	stay := max(1, int(math.Round((1-s.Drop)*float64(n)/float64(block)))) * block
	if stay >= n {
		return 0, fmt.Errorf("%w: %g %% of %d %s: %d or fewer would have to stay, in steps of %d", ErrOptions,
			100*s.Drop, n, what, n-block, block)
	}

	return stay, nil
}

// leastBlock is what sizes below n have to be multiples of for quantised formats, and of unit; 1 where n is none
// itself, or none below it would do.
func leastBlock(n, unit int) int {
	if block := common(unit, rowBlock); n%rowBlock == 0 && block < n {
		return block
	}
	return 1
}

// common is the least common multiple.
func common(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
