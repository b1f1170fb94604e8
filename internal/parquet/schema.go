package parquet

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Kinds of values and of repetition.
const (
	typeBool = iota
	typeInt32
	typeInt64
	typeInt96
	typeFloat
	typeDouble
	typeBytes
	typeFixed
)

const (
	required = iota
	optional
	repeated
)

const (
	convertedList   = 3
	maxSchemaNodes  = 10_000
	maxSchemaDepth  = 32
	logicalList     = 3 // field of the union LogicalType
	convertedAbsent = -1
)

// Columns of bytes that are declared to be UTF-8: strings, names of enumerations, and JSON, in both ways of declaring.
var (
	convertedTexts = []int64{0, 4, 19}
	logicalTexts   = []int{1, 4, 12}
)

// node is a column, or a group of them.
type node struct {
	name     string
	kind     int64 // of a column
	length   int64 // of texts of fixed length
	text     bool  // what the column holds is UTF-8 by its declaration, and not any bytes
	repeat   int64
	isList   bool
	children []*node
	leaves   int // columns below, itself included
	def, rep int // levels from which a value is there, and at which it repeats
}

// entry is a value of a column with its levels.
type entry struct {
	rep, def uint8
	v        any // an error instead of a text that is no UTF-8
}

// schema makes the tree of a flat list of elements.
func schema(list []any) (*node, error) {
	if len(list) == 0 || len(list) > maxSchemaNodes {
		return nil, fmt.Errorf("%w: schema of %d elements", ErrFormat, len(list))
	}
	root, rest, err := element(list, 0, 0, 0)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: %d elements are outside of the schema", ErrFormat, len(rest))
	}
	return root, err
}

func element(list []any, depth, def, rep int) (*node, []any, error) {
	if len(list) == 0 || depth > maxSchemaDepth {
		return nil, nil, fmt.Errorf("%w: schema", ErrFormat)
	}

	f, ok := list[0].(fields)
	if !ok {
		return nil, nil, fmt.Errorf("%w: schema", ErrFormat)
	}

	n := &node{name: f.text(4), kind: f.int(1), length: f.int(2), repeat: f.int(3)}
	if depth > 0 && n.repeat != required {
		def++
	}
	if depth > 0 && n.repeat == repeated {
		rep++
	}

	n.def, n.rep = def, rep
	converted := int64(convertedAbsent)
	if v, ok := f[6].(int64); ok {
		converted = v
	}

	_, logical := f.sub(10)[logicalList]
	n.isList = converted == convertedList || logical
	n.text = slices.Contains(convertedTexts, converted)
	for _, kind := range logicalTexts {
		if _, ok := f.sub(10)[kind]; ok {
			n.text = true
		}
	}
	rest := list[1:]
	children := f.int(5)
	if children < 0 || children > int64(len(rest)) {
		return nil, nil, fmt.Errorf("%w: %s has %d children", ErrFormat, n.name, children)
	}

	if children == 0 {
		n.leaves = 1
		return n, rest, nil
	}

	for range children {
		var c *node
		var err error
		if c, rest, err = element(rest, depth+1, def, rep); err != nil {
			return nil, nil, err
		}
		n.children, n.leaves = append(n.children, c), n.leaves+c.leaves
	}

	return n, rest, nil
}

// leaf is a column by its number, and its name with those of the groups that it is in.
func (n *node) leaf(i int) (column *node, path []string) {
	for len(n.children) > 0 {
		for _, c := range n.children {
			if i < c.leaves {
				n = c
				break
			}
			i -= c.leaves
		}
		path = append(path, n.name)
	}

	return n, path
}

// record puts the columns of one record together.
func (n *node) record(columns [][]entry) *pyvalue.Dict {
	d := pyvalue.NewDict()
	for _, c := range n.children {
		d.Set(c.name, c.field(columns[:c.leaves]))
		columns = columns[c.leaves:]
	}
	return d
}

// field is the value of a node in what is left of a record: a list where it repeats.
func (n *node) field(columns [][]entry) any {
	if n.repeat == repeated {
		return n.items(columns, n.one)
	}
	return n.one(columns)
}

// one is a single value: nil where it is absent.
func (n *node) one(columns [][]entry) any {
	e := columns[0][0]
	switch {
	case int(e.def) < n.def:
		return nil
	case len(n.children) == 0:
		return e.v
	case n.isList && len(n.children) == 1 && n.children[0].repeat == repeated:
		c := n.children[0]
		if len(c.children) == 1 { // the group in between has no meaning of its own
			return c.items(columns, c.children[0].field)
		}
		return c.items(columns, c.one)
	}

	return n.record(columns)
}

// items lists the values of a node that repeats.
func (n *node) items(columns [][]entry, each func([][]entry) any) any {
	list := []any{}
	if int(columns[0][0].def) < n.def {
		return list
	}

	rest := append([][]entry(nil), columns...)
	item := make([][]entry, len(columns))
	for len(rest[0]) > 0 {
		for i := range rest {
			end := min(1, len(rest[i]))
			for end < len(rest[i]) && int(rest[i][end].rep) > n.rep {
				end++
			}
			if end == 0 {
				return list // columns of one group that disagree; what is there counts
			}

			item[i], rest[i] = rest[i][:end], rest[i][end:]
		}

		list = append(list, each(item))
	}

	return list
}
