package search

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// Variable is a number to be found.
type Variable struct {
	Name  string  `json:"name"` // the recipe's, or the path of keys to it
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Start float64 `json:"start"`
	Log   bool    `json:"log,omitempty"`
}

// openRecipe is a recipe with its open numbers.
type openRecipe struct {
	Variables []Variable

	documents []*strictyaml.Node
	holes     map[*strictyaml.Node]int // marker → variable
}

// maxVariables bounds a search; the covariance matrix grows with the square.
const maxVariables = 500

// parseOpen reads a recipe with open numbers; file is its name for messages. The error is a *strictyaml.Problems.
func parseOpen(file string, text []byte) (*openRecipe, error) {
	src, err := strictyaml.Parse(file, text)
	if err != nil {
		return nil, err
	}

	p := parser{r: src.NewReader(), space: &openRecipe{documents: src.Documents, holes: map[*strictyaml.Node]int{}}}
	for i, d := range src.Documents {
		name := ""
		if len(src.Documents) > 1 {
			name = strconv.Itoa(i + 1)
		}
		p.walk(d, name)
	}

	switch n := len(p.space.Variables); {
	case n == 0:
		p.r.Add(strictyaml.Place{Line: 1, Column: 1}, strictyaml.ErrMissingKey,
			"the recipe leaves no number open; write {search: [low, high]} in place of one")
	case n > maxVariables:
		p.r.Add(strictyaml.Place{Line: 1, Column: 1}, strictyaml.ErrLimit,
			"%d open numbers; at most %d can be searched for", n, maxVariables)
	}

	if err := p.r.Err(); err != nil {
		return nil, err
	}

	return p.space, nil
}

// parser finds the markers of a recipe.
type parser struct {
	r     *strictyaml.Reader
	space *openRecipe
}

// walk looks for markers below a node; path is the keys to it. The tree's depth is bounded by the reader.
func (p *parser) walk(n *strictyaml.Node, path string) {
	switch n.Kind {
	case strictyaml.List:
		for i, item := range n.Items {
			p.walk(item, fmt.Sprintf("%s[%d]", path, i))
		}
	case strictyaml.Map:
		if n.Get("search") != nil {
			p.marker(n, path)
			return
		}

		for _, e := range n.Entries {
			name := e.Key
			if path != "" {
				name = path + "." + name
			}
			p.walk(e.Value, name)
		}
	}
}

// marker reads a map with the key "search".
func (p *parser) marker(n *strictyaml.Node, path string) {
	if _, seen := p.space.holes[n]; seen {
		return // met again through an alias: the same number
	}

	v := Variable{Name: path}
	o := p.r.Object(n, "an open number")
	sound := p.bounds(o.Need("search"), &v)
	if x := o.Get("scale"); x != nil {
		v.Log = p.r.Choice(x, "scale", "linear", "log") == "log"
	}

	v.Start = (v.Low + v.High) / 2
	if v.Log {
		if sound && v.Low <= 0 {
			p.r.Add(n.Place, strictyaml.ErrValue, "a logarithmic scale needs bounds above 0, not %v", v.Low)
			v.Log = false
		} else if sound {
			v.Start = math.Sqrt(v.Low * v.High)
		}
	}

	if x := o.Get("start"); x != nil {
		if v.Start = p.r.Number(x, "start"); sound && (v.Start < v.Low || v.Start > v.High) {
			p.r.Add(x.Place, strictyaml.ErrValue, "start %v lies outside of [%v, %v]", v.Start, v.Low, v.High)
		}
	}

	named := false
	if x := o.Get("name"); x != nil {
		v.Name, named = p.r.Text(x, "name"), true
	}

	o.Close()
	p.space.holes[n] = p.variable(n, v, named)
}

// bounds reads [low, high], and reports whether they can be used.
func (p *parser) bounds(n *strictyaml.Node, v *Variable) (sound bool) {
	if n == nil {
		return false
	}

	list := p.r.List(n, "search")
	if n.Kind == strictyaml.List && len(list) != 2 {
		p.r.Add(n.Place, strictyaml.ErrValue, "search must be [low, high], not %d numbers", len(list))
		return false
	}

	if len(list) != 2 {
		return false
	}

	v.Low, v.High = p.r.Number(list[0], "the lower bound"), p.r.Number(list[1], "the upper bound")
	_, low := list[0].Number()
	_, high := list[1].Number()
	switch {
	case !low || !high:
		return false
	case !(v.Low < v.High):
		p.r.Add(n.Place, strictyaml.ErrValue, "search [%v, %v] leaves nothing to find; the lower bound comes first",
			v.Low, v.High)
		return false
	}

	return true
}

// variable gives the number of a variable: a new one, or that of the same name, which must have the same range.
func (p *parser) variable(n *strictyaml.Node, v Variable, named bool) int {
	if named {
		if i := slices.IndexFunc(p.space.Variables, func(w Variable) bool { return w.Name == v.Name }); i >= 0 {
			if p.space.Variables[i] != v {
				p.r.Add(n.Place, strictyaml.ErrValue, "%q has another range or start elsewhere in the recipe", v.Name)
			}
			return i
		}
	}

	p.space.Variables = append(p.space.Variables, v)
	return len(p.space.Variables) - 1
}

// Recipe writes the recipe with values for its open numbers, in the order of Variables. Comments are not kept.
func (s *openRecipe) Recipe(x []float64) []byte {
	var parts [][]byte
	for _, d := range s.documents {
		parts = append(parts, strictyaml.Marshal(s.fill(d, x)))
	}
	return bytes.Join(parts, []byte("---\n"))
}

// fill copies a tree with numbers in place of the markers.
func (s *openRecipe) fill(n *strictyaml.Node, x []float64) *strictyaml.Node {
	if i, ok := s.holes[n]; ok {
		return &strictyaml.Node{Place: n.Place, Kind: strictyaml.Scalar, Text: strconv.FormatFloat(x[i], 'g', -1, 64)}
	}

	out := *n
	out.Items, out.Entries = slices.Clone(n.Items), slices.Clone(n.Entries)
	for i := range out.Items {
		out.Items[i] = s.fill(out.Items[i], x)
	}
	for i := range out.Entries {
		out.Entries[i].Value = s.fill(out.Entries[i].Value, x)
	}

	return &out
}

// Check finds out whether a text is what [openRecipe.Recipe] writes for some values, each within its bounds.
func (s *openRecipe) Check(recipe []byte) error {
	src, err := strictyaml.Parse("candidate", recipe)
	if err != nil {
		return err
	}

	x := make([]float64, len(s.Variables))
	for i := range x {
		x[i] = math.NaN()
	}

	for i, d := range s.documents {
		if i < len(src.Documents) {
			s.collect(d, src.Documents[i], x)
		}
	}

	for i, v := range s.Variables {
		if !(x[i] >= v.Low && x[i] <= v.High) {
			return fmt.Errorf("%w: %s is %g, not within [%g, %g]", errCandidate, v.Name, x[i], v.Low, v.High)
		}
	}

	// Whatever else the text says, or says otherwise, shows here.
	if !bytes.Equal(s.Recipe(x), recipe) {
		return fmt.Errorf("%w: it is not the recipe with other numbers", errCandidate)
	}

	return nil
}

// collect finds the numbers that stand in the place of markers.
func (s *openRecipe) collect(n, filled *strictyaml.Node, x []float64) {
	if i, ok := s.holes[n]; ok {
		if v, ok := filled.Number(); ok {
			x[i] = v
		}
		return
	}

	for i := range min(len(n.Items), len(filled.Items)) {
		s.collect(n.Items[i], filled.Items[i], x)
	}
	for i := range min(len(n.Entries), len(filled.Entries)) {
		s.collect(n.Entries[i].Value, filled.Entries[i].Value, x)
	}
}

// Start gives the starting point.
func (s *openRecipe) Start() []float64 {
	out := make([]float64, len(s.Variables))
	for i, v := range s.Variables {
		out[i] = v.Start
	}
	return out
}

// digits is the precision of the numbers that are tried, so that a recipe reads well and repeats its score exactly.
const digits = 6

// value maps a coordinate from [0, 1] to the variable's range, rounded to a few significant digits.
func (v *Variable) value(u float64) float64 {
	x := v.Low + u*(v.High-v.Low)
	if v.Log {
		x = v.Low * math.Pow(v.High/v.Low, u)
	}
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64) // what FormatFloat writes can be read
	return min(max(x, v.Low), v.High)
}

// unit maps a value to [0, 1].
func (v *Variable) unit(x float64) float64 {
	if v.Log {
		return math.Log(x/v.Low) / math.Log(v.High/v.Low)
	}
	return (x - v.Low) / (v.High - v.Low)
}

// mirror brings a coordinate into [0, 1] by reflecting it at the bounds.
func mirror(u float64) float64 {
	u = math.Mod(math.Abs(u), 2)
	if u > 1 {
		u = 2 - u
	}
	return u
}
