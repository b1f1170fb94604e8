package strictyaml

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// converter turns the parser's tree into nodes. Aliases share the node of their anchor; since a later walk
// visits it once per alias, the nodes are counted as often as they are met.
type converter struct {
	options  Options
	problems *Problems
	anchors  map[string]*Node // those complete so far: an anchor cannot hold an alias of itself
	spent    int              // nodes so far, aliases expanded
	offset   int              // lines of the file before the document
}

// add notes a fault.
func (c *converter) add(at Place, kind error, format string, args ...any) {
	c.problems.add(Problem{Place: at, Message: fmt.Sprintf(format, args...), Err: kind})
}

// place gives a token's position in the file.
func (c *converter) place(t *token.Token) Place {
	at := place(t)
	if at.Line > 0 {
		at.Line += c.offset
	}
	return at
}

// node converts a value; depth counts the levels above it. It returns nil, with the fault noted, for what
// cannot be used.
func (c *converter) node(n ast.Node, depth int) *Node {
	at := Place{}
	if n != nil {
		at = c.place(n.GetToken())
	}

	c.spent++
	if c.spent > maxNodes || depth > c.options.MaxDepth {
		c.add(at, ErrLimit, "too many values, or lists and maps too deep within each other")
		return nil
	}

	switch v := n.(type) {
	case nil, *ast.NullNode:
		return &Node{Place: at, nodes: 1}
	case *ast.AnchorNode:
		if c.options.NoAliases {
			c.add(at, ErrUnsupported, "an anchor (HINT: write the value out)")
			return nil
		}
		return c.anchor(v, depth)
	case *ast.AliasNode:
		if c.options.NoAliases {
			c.add(at, ErrUnsupported, "an alias (HINT: write the value out)")
			return nil
		}
		return c.alias(v, at)
	case *ast.TagNode:
		return c.tag(v, at, depth)
	case *ast.SequenceNode:
		return c.list(v, at, depth)
	case *ast.MappingNode:
		return c.entries(v.Values, at, depth)
	case *ast.MappingValueNode:
		return c.entries([]*ast.MappingValueNode{v}, at, depth)
	case *ast.LiteralNode:
		return &Node{Place: at, Kind: Scalar, Text: v.Value.Value, Quoted: true, nodes: 1}
	case *ast.StringNode:
		return &Node{Place: at, Kind: Scalar, Text: v.Value, Quoted: inQuotes(v.Token), nodes: 1}
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode, *ast.MergeKeyNode:
		return &Node{Place: at, Kind: Scalar, Text: n.GetToken().Value, nodes: 1}
	}

	c.add(at, ErrSyntax, "this kind of YAML value has no meaning here")
	return nil
}

// inQuotes reports whether a word stands in quotes.
func inQuotes(t *token.Token) bool {
	return t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType
}

// list converts a sequence.
func (c *converter) list(v *ast.SequenceNode, at Place, depth int) *Node {
	out := &Node{Place: at, Kind: List, nodes: 1}
	for _, item := range v.Values {
		n := c.node(item, depth+1)
		if n == nil {
			return nil
		}
		if n.Line == 0 {
			n.Place = at
		}

		out.Items = append(out.Items, n)
		out.nodes += n.nodes
	}

	return out
}

// entries converts the keys of a map. A key of "<<" takes over the keys of one map, or of several, that the map
// does not have itself.
func (c *converter) entries(values []*ast.MappingValueNode, at Place, depth int) *Node {
	out := &Node{Place: at, Kind: Map, nodes: 1}
	seen := map[string]Place{}
	var merged []*Node
	for i, v := range values {
		keyAt := c.place(v.Key.GetToken())
		if i == 0 {
			out.Place = keyAt
		}

		key, merges, ok := c.key(v.Key)
		if !ok {
			c.add(keyAt, ErrSyntax, "a key must be plain text")
			return nil
		}
		if merges && c.options.NoAliases {
			c.add(keyAt, ErrUnsupported, "a merge key (HINT: write the keys out)")
			return nil
		}

		value := c.node(v.Value, depth+1)
		if value == nil {
			return nil
		}
		if value.Line == 0 {
			value.Place = keyAt
		}

		if merges {
			merged = append(merged, value)
			continue
		}

		if first, twice := seen[key]; twice {
			c.add(keyAt, ErrDuplicateKey, "key %q is given twice, first on line %d", key, first.Line)
			continue
		}

		seen[key] = keyAt
		quoted := inQuotes(v.Key.GetToken())
		out.Entries = append(out.Entries, Entry{Place: keyAt, Key: key, Quoted: quoted, Value: value})
		out.nodes += value.nodes
	}

	for _, m := range merged {
		c.merge(out, m, seen)
	}

	return out
}

// key reads the key of a map entry; merges tells the merge key.
func (c *converter) key(k ast.MapKeyNode) (key string, merges, ok bool) {
	switch k.(type) {
	case *ast.MergeKeyNode:
		return "", true, true
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode,
		*ast.NanNode:
		return k.GetToken().Value, false, true
	}
	return "", false, false
}

// merge adds the keys of a map, or of each map of a list, that out lacks.
func (c *converter) merge(out, from *Node, seen map[string]Place) {
	switch from.Kind {
	case Map:
		for _, e := range from.Entries {
			if _, have := seen[e.Key]; have {
				continue
			}
			seen[e.Key] = e.Place
			out.Entries = append(out.Entries, e)
			out.nodes += e.Value.nodes
		}
	case List:
		for _, item := range from.Items {
			if item.Kind != Map {
				c.add(item.Place, ErrType, `"<<" takes maps only`)
				return
			}
			c.merge(out, item, seen)
		}
	default:
		c.add(from.Place, ErrType, `"<<" takes a map`)
	}
}

// anchor converts a named value and remembers it.
func (c *converter) anchor(v *ast.AnchorNode, depth int) *Node {
	n := c.node(v.Value, depth)
	if n != nil {
		c.anchors[v.Name.GetToken().Value] = n
	}
	return n
}

// alias gives the value of an anchor and counts it once more.
func (c *converter) alias(v *ast.AliasNode, at Place) *Node {
	name := v.Value.GetToken().Value
	n, ok := c.anchors[name]
	if !ok {
		c.add(at, ErrSyntax, "alias *%s has no anchor &%s before it", name, name)
		return nil
	}

	if c.spent += n.nodes; c.spent > maxNodes {
		c.add(at, ErrLimit, "aliases expand to more than %d values", maxNodes)
		return nil
	}

	return n
}

// tag converts a value with one of YAML's own tags for scalars, or with any where the schema looks at them; "!!str"
// makes text of it.
func (c *converter) tag(v *ast.TagNode, at Place, depth int) *Node {
	name := strings.TrimSpace(v.GetToken().Value)
	switch name {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq":
	default:
		if !c.options.Tags {
			c.add(at, ErrSyntax, "the tag %s has no meaning here", name)
			return nil
		}
	}

	n := c.node(v.Value, depth)
	if n == nil {
		return nil
	}

	tagged := *n // an anchor's node is shared with its aliases, which have no tag
	tagged.Tag = name
	tagged.Place = at
	if name == "!!str" && n.Kind <= Scalar { // "!!str ~" is the text "~"
		tagged.Kind = Scalar
		tagged.Quoted = true
		if null, ok := v.Value.(*ast.NullNode); ok && null.Token.Type != token.ImplicitNullType {
			tagged.Text = null.Token.Value
		}
	}

	return &tagged
}
