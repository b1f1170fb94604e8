package cli

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// number is that of a layer or an expert in a name.
var number = regexp.MustCompile(`\b\d+\b`)

// Kind is a name with * for the numbers of layers and experts between its dots: what tensors of a kind have in common.
func Kind(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		if number.FindString(p) == p && p != "" {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// Group is tensors of a kind, in their order.
type Group[T any] struct {
	Kind  string // the name itself, where there is one tensor
	Items []T
	Where string // the numbers of their layers: "0–29"
}

// OnePerKind is the note below a table of groups.
const OnePerKind = "one line for each kind; --tensors prints all"

// TensorsFlag adds the flag that shows all lines.
func TensorsFlag(f *pflag.FlagSet, all *bool) {
	f.BoolVar(all, "tensors", false, "print a line for each tensor instead of one for each kind of tensor")
}

// few is how many lines are shown as they are.
const few = 12

// Grouped puts tensors of a kind together, in the order in which kinds appear; key says what else they must have in
// common, and may be nil. It reports whether that makes a shorter list of a long one: otherwise every line is shown by
// itself, and so it is with all.
func Grouped[T any](list []T, all bool, name, key func(T) string) ([]Group[T], bool) {
	if all || len(list) <= few {
		return nil, false
	}

	at := map[string]int{}
	var groups []Group[T]
	layers := map[int][]int{}
	for _, x := range list {
		id := Kind(name(x))
		if key != nil {
			id += "\x00" + key(x)
		}
		i, there := at[id]
		if !there {
			i = len(groups)
			at[id] = i
			groups = append(groups, Group[T]{Kind: Kind(name(x))})
		}
		groups[i].Items = append(groups[i].Items, x)
		if n, ok := layer(name(x)); ok {
			layers[i] = append(layers[i], n)
		}
	}

	for i := range groups {
		g := &groups[i]
		g.Where = Spans(layers[i])
		if len(g.Items) == 1 {
			g.Kind, g.Where = name(g.Items[0]), ""
		}
	}
	return groups, len(groups) < len(list)
}

// layer is the first number of a name.
func layer(name string) (int, bool) {
	for p := range strings.SplitSeq(name, ".") {
		if n, err := strconv.Atoi(p); err == nil {
			return n, true
		}
	}
	return 0, false
}

// Spans writes numbers with runs of them as spans: "0–3, 7".
func Spans(list []int) string {
	list = slices.Clone(list)
	slices.Sort(list)
	list = slices.Compact(list)

	var parts []string
	for i := 0; i < len(list); {
		k := i
		for k+1 < len(list) && list[k+1] == list[k]+1 {
			k++
		}
		text := strconv.Itoa(list[i])
		if k > i {
			text += "–" + strconv.Itoa(list[k])
		}
		parts = append(parts, text)
		i = k + 1
	}
	return strings.Join(parts, ", ")
}
