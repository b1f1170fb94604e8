package structure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Given stands in place of a way to choose layers where they were named.
const Given = "given"

// maxLayer bounds the numbers of lists, before there is a model to compare them with: a range is written out.
const maxLayer = 9999

// ParseLayers reads numbers of layers, counted from 0, and ranges of them with both ends: "3,5,20-22". They are given
// in ascending order; none may be there twice.
func ParseLayers(text string) ([]int, error) {
	bad := func(format string, args ...any) ([]int, error) {
		return nil, fmt.Errorf("%w: %q: "+format, append([]any{ErrOptions, text}, args...)...)
	}

	var list []int
	for _, entry := range strings.Split(text, ",") {
		from, to, span := strings.Cut(strings.TrimSpace(entry), "-")
		if !span {
			to = from
		}
		first, err := layerNumber(from)
		if err != nil {
			return bad("%q is no layer: want numbers from 0 and ranges, such as 3,5,20-22", entry)
		}
		last, err := layerNumber(to)
		switch {
		case err != nil:
			return bad("%q is no layer: want numbers from 0 and ranges, such as 3,5,20-22", entry)
		case last < first:
			return bad("the range %s ends before it begins", entry)
		}
		for l := first; l <= last; l++ {
			list = append(list, l)
		}
	}

	slices.Sort(list)
	for i := 1; i < len(list); i++ {
		if list[i] == list[i-1] {
			return bad("layer %d is there twice", list[i])
		}
	}
	return list, nil
}

func layerNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n > maxLayer {
		return 0, ErrOptions
	}
	return int(n), nil
}

// listed reports whether layers are named.
func (o *Options) listed() bool { return len(o.DropLayers) > 0 || len(o.KeepLayers) > 0 }

// shortens reports whether layers go.
func (o *Options) shortens() bool { return !o.Layers.Zero() || o.listed() }

// NeedsCalibration reports whether a text decides about something: all but layers that are named.
func (o *Options) NeedsCalibration() bool {
	return !o.Layers.Zero() || !o.Experts.Zero() || o.narrows()
}

// listFaults finds faults of lists by themselves.
func (o *Options) listFaults() (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}
	if len(o.DropLayers) > 0 && len(o.KeepLayers) > 0 {
		fault("layers that go and layers that stay are named: the others follow from either")
	}
	if o.listed() && !o.Layers.Zero() {
		fault("layers are named, and a number of them is to be chosen")
	}
	if o.listed() && o.By != "" {
		fault("%s chooses layers, which are named", o.By)
	}
	for _, list := range [][]int{o.DropLayers, o.KeepLayers} {
		if !within(list, maxLayer+1) {
			fault("layers %v are not numbers from 0 that rise", list)
		}
	}
	return faults
}

// checkLayers finds faults of numbers of layers for a model of n.
func (o *Options) checkLayers(n int) error {
	for _, list := range [][]int{o.DropLayers, o.KeepLayers} {
		if len(list) > 0 && list[len(list)-1] >= n {
			return fmt.Errorf("%w: there is no layer %d; the model has %d, counted from 0", ErrOptions,
				list[len(list)-1], n)
		}
	}

	switch keep := o.keeps(n); {
	case keep > n:
		return fmt.Errorf("%w: %d layers are to stay, the model has %d", ErrOptions, keep, n)
	case keep == n && o.shortens():
		return fmt.Errorf("%w: all %d layers stay", ErrOptions, n)
	case keep < 1:
		return fmt.Errorf("%w: none of %d layers stays", ErrOptions, n)
	}
	return nil
}

// given are the layers that stay of n where they are named, ascending; nil: they are not.
func (o *Options) given(n int) []int {
	switch {
	case len(o.KeepLayers) > 0:
		return o.KeepLayers
	case len(o.DropLayers) > 0:
		return others(o.DropLayers, n)
	}
	return nil
}

// keeps is how many layers of n stay.
func (o *Options) keeps(n int) int {
	if o.listed() {
		return len(o.given(n))
	}
	return o.Layers.Of(n)
}

// others are the numbers below n that are not in a list.
func others(list []int, n int) []int {
	rest := []int{}
	for i := range n {
		if !slices.Contains(list, i) {
			rest = append(rest, i)
		}
	}
	return rest
}
