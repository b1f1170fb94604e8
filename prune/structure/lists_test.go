package structure

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestParseLayers: lists are read as they are meant, in order, and anything else is refused.
func TestParseLayers(t *testing.T) {
	for text, want := range map[string][]int{
		"3": {3}, "3,5,20-22": {3, 5, 20, 21, 22}, " 7, 0-1 ": {0, 1, 7}, "4-4": {4}, "9999": {9999},
	} {
		if got, err := ParseLayers(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, why := range map[string]string{
		"": "no layer", ",": "no layer", "1,": "no layer", "x": "no layer", "-1": "no layer", "1-": "no layer",
		"1-2-3": "no layer", "1.5": "no layer", "+1": "no layer", "10000": "no layer", "0-99999999999": "no layer",
		"3-1": "ends before it begins", "2,2": "layer 2 is there twice", "1-3,2": "layer 2 is there twice",
	} {
		if list, err := ParseLayers(text); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
}

// TestNamedLayers: what goes and what stays are each other's rest, however it was said.
func TestNamedLayers(t *testing.T) {
	for _, c := range []struct{ drop, keep []int }{
		{[]int{0}, []int{1, 2, 3}}, {[]int{3}, []int{0, 1, 2}}, {[]int{1, 2}, []int{0, 3}}, {[]int{0, 1, 3}, []int{2}},
	} {
		drops, keeps := Options{DropLayers: c.drop}, Options{KeepLayers: c.keep}
		if a, b := drops.given(4), keeps.given(4); !slices.Equal(a, c.keep) || !slices.Equal(b, c.keep) {
			t.Errorf("%v and %v: %v, %v", c.drop, c.keep, a, b)
		}
		if a, b := drops.keeps(4), keeps.keeps(4); a != len(c.keep) || b != len(c.keep) {
			t.Errorf("%v and %v: %d, %d stay", c.drop, c.keep, a, b)
		}
	}
}
