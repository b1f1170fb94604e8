package structure

import (
	"fmt"
	"math"

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
	var err error
	if z.hidden, err = o.Hidden.row("hidden channels", c.Hidden); err != nil {
		return z, err
	}

	dense := false
	mixture := false
	for _, m := range c.Mixture {
		dense, mixture = dense || !m, mixture || m
	}
	if o.FFN.Keep > 0 && (dense && mixture || c.SharedInner > 0) {
		return z, fmt.Errorf("%w: %d neurons: this %s has MLPs of several sizes; give the share that goes, such as "+
			"25%%", ErrOptions, o.FFN.Keep, c.ModelType)
	}
	if dense {
		if z.inner, err = o.FFN.row("neurons", c.Inner); err != nil {
			return z, err
		}
	}
	if mixture {
		if z.expert, err = o.FFN.row("neurons of an expert", c.ExpertInner); err != nil {
			return z, err
		}
	}
	if c.SharedInner > 0 && z.expert != c.ExpertInner {
		// A multiple of an expert's size, where that is how it is said.
		z.shared = int(math.Round(float64(c.SharedInner) * float64(z.expert) / float64(c.ExpertInner)))
	}

	return z, o.headSizes(c, &z)
}

// headSizes works out the numbers of heads.
func (o *Options) headSizes(c *lm.Config, z *sizes) error {
	each := c.Heads / c.KVHeads
	z.kv = o.KVHeads.Of(c.KVHeads)
	if !o.Heads.Zero() && o.KVHeads.Zero() && each == 1 {
		z.kv = o.Heads.Of(c.Heads) // a head of queries has keys and values of its own
	}
	if z.kv < 1 || z.kv > c.KVHeads {
		return fmt.Errorf("%w: %d of %d key/value heads", ErrOptions, z.kv, c.KVHeads)
	}

	z.heads = z.kv * each
	if o.Heads.Zero() {
		return nil
	}

	z.heads = o.Heads.Of(c.Heads)
	if o.Heads.Drop > 0 {
		z.heads = max(1, (z.heads+z.kv/2)/z.kv) * z.kv
	}
	if z.heads%z.kv != 0 || z.heads < z.kv || z.heads > z.kv*each {
		low := min(max(z.heads/z.kv, 1), each) * z.kv
		high := min(low+z.kv, z.kv*each)
		would := fmt.Sprint(low)
		if high > low {
			would = fmt.Sprintf("%d or %d", low, high)
		}
		return fmt.Errorf("%w: %d heads: with %d key/value heads, %s would do", ErrOptions, z.heads, z.kv, would)
	}

	return nil
}

// row is how many of the elements of a row stay.
func (s Share) row(what string, n int) (int, error) {
	switch {
	case s.Zero():
		return n, nil
	case s.Keep > n:
		return 0, fmt.Errorf("%w: %d %s are to stay, there are %d", ErrOptions, s.Keep, what, n)
	case s.Keep > 0:
		if n%rowBlock == 0 && s.Keep%rowBlock != 0 {
			low := s.Keep / rowBlock * rowBlock
			return 0, fmt.Errorf("%w: %d %s: quantised formats have blocks of %d; %d or %d would do", ErrOptions,
				s.Keep, what, rowBlock, max(low, rowBlock), low+rowBlock)
		}
		return s.Keep, nil
	}

	// The largest unit that leaves the share about what was asked for.
	unit := rounded
	for unit > 1 && (n%unit != 0 || n < 8*unit) {
		unit /= 2
	}
	stay := max(1, int(math.Round((1-s.Drop)*float64(n)/float64(unit)))) * unit

	return stay, nil
}
