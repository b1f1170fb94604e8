package runcmd

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// Bounds on a plan.
const (
	maxJobs = 1000
	maxText = 64 << 10 // of a value after references are put in
	maxName = 100
	maxAll  = 64 << 20 // of all values together, as often as they are used
)

// template is a job as the plan has it, before its matrix is multiplied out.
type template struct {
	strictyaml.Place
	name   string
	verb   *strictyaml.Node
	args   []*strictyaml.Node
	flags  []strictyaml.Entry
	recipe *strictyaml.Node
	needs  []*strictyaml.Node
	inputs []*strictyaml.Node
	out    *strictyaml.Node
	matrix []axis
}

// axis is a key of a matrix with its values.
type axis struct {
	key    string
	values []string
}

// binding is a name with its text.
type binding struct{ name, text string }

// sheet is a plan as it stands in the file.
type sheet struct {
	*strictyaml.Reader
	spent     int             // bytes of values so far
	said      map[string]bool // faults, which variants of a matrix have in common
	vars      []binding
	templates []*template
}

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)
	reference = regexp.MustCompile(`\$\$\{|\$\{[^{}]*\}?`)
)

// readPlan reads the text of a plan.
func readPlan(file string) ([]byte, error) {
	return safefile.ReadFile(file, strictyaml.MaxBytes)
}

// parse takes a plan apart. given replaces variables of the plan. Faults are noted in the sheet; the error is
// one of the YAML.
func parse(file string, text []byte, given map[string]string) (*sheet, error) {
	src, err := strictyaml.Parse(file, text)
	if err != nil {
		return nil, cli.Usage(err)
	}

	if len(src.Documents) != 1 {
		return nil, cli.Usagef("%s: want one document with version and jobs, found %d", file, len(src.Documents))
	}

	r := src.NewReader()
	s := &sheet{Reader: r, said: map[string]bool{}}
	o := r.Object(src.Documents[0], "a plan")
	if v := o.Need("version"); v != nil {
		r.Int(v, "version", 1, 1)
	}

	s.readVars(o.Get("vars"), given)
	if jobs := o.Need("jobs"); jobs != nil {
		s.readJobs(r, jobs)
	}

	o.Close()
	return s, nil
}

// Add notes a fault, once.
func (s *sheet) Add(at strictyaml.Place, kind error, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if key := fmt.Sprint(at, text); !s.said[key] {
		s.said[key] = true
		s.Reader.Add(at, kind, "%s", text)
	}
}

// readVars reads the variables, each of which may refer to those above it.
func (s *sheet) readVars(n *strictyaml.Node, given map[string]string) {
	r := s.Reader
	seen := map[string]string{}
	if n != nil {
		r.Object(n, "vars")

		for _, e := range n.Entries {
			if !plainName.MatchString(e.Key) || strings.Contains(e.Key, ".") || e.Key == "dir" || e.Key == "out" {
				r.Add(e.Place, strictyaml.ErrValue,
					"variable %.60q: want letters, digits, - and _, and not dir or out, which are there already", e.Key)
				continue
			}

			text, replaced := given[e.Key]
			if !replaced {
				text = s.expand(e.Value, r.Text(e.Value, "variable "+e.Key),
					func(ref string) (string, string) { return known(seen, ref) })
			}

			seen[e.Key] = text
			s.vars = append(s.vars, binding{e.Key, text})
		}
	}

	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := seen[name]; !ok {
			r.Add(strictyaml.Place{}, strictyaml.ErrUnknownKey, "--var %s: the plan has no such variable", name)
		}
	}
}

// known looks a variable up; the second result is a fault.
func known(vars map[string]string, ref string) (string, string) {
	if text, ok := vars[ref]; ok {
		return text, ""
	}
	// sorted, since of names that are as near the first is suggested
	return "", "there is no variable " + ref + strictyaml.Suggest(ref, slices.Sorted(maps.Keys(vars)))
}

// expand puts values in the place of references, ${NAME}; $${ stands for ${ itself.
func (s *sheet) expand(at *strictyaml.Node, text string, value func(ref string) (text, fault string)) string {
	if strings.ContainsRune(text, folderMark) {
		s.Add(at.Place, strictyaml.ErrValue, "a text with a zero byte")
		return ""
	}

	size := len(text)
	if !s.spend(at, size) {
		return ""
	}

	out := reference.ReplaceAllStringFunc(text, func(m string) string {
		if m == "$${" {
			return "${"
		}

		if !strings.HasSuffix(m, "}") {
			s.Add(at.Place, strictyaml.ErrValue, "%.60q: a reference is ${NAME}; $${ stands for the signs themselves",
				m)
			return ""
		}

		got, fault := value(strings.TrimSpace(m[2 : len(m)-1]))
		if fault != "" {
			s.Add(at.Place, strictyaml.ErrValue, "%.200s: %s", m, fault)
		}
		if size += len(got); size > maxText {
			return ""
		}

		return got
	})

	if size > maxText {
		s.Add(at.Place, strictyaml.ErrLimit, "a value of more than %d bytes", maxText)
		return ""
	}

	return out
}

// spend counts a value; false if it is, or all together are, too large. That is a fault, said once.
func (s *sheet) spend(at *strictyaml.Node, n int) bool {
	before := s.spent
	if s.spent += n + 64; n > maxText || before <= maxAll && s.spent > maxAll {
		s.Add(at.Place, strictyaml.ErrLimit, "a value of more than %d bytes, or more than %d in all", maxText, maxAll)
	}
	return n <= maxText && s.spent <= maxAll
}

// readJobs reads the jobs.
func (s *sheet) readJobs(r *strictyaml.Reader, n *strictyaml.Node) {
	r.Object(n, "jobs")
	if n.Kind == strictyaml.Map && len(n.Entries) == 0 {
		r.Add(n.Place, strictyaml.ErrValue, "jobs is empty")
	}

	for _, e := range n.Entries {
		if !plainName.MatchString(e.Key) || len(e.Key) > maxName {
			r.Add(e.Place, strictyaml.ErrValue,
				"job %.60q: a name has letters, digits, and . _ + - after the first, %d at most", e.Key, maxName)
			continue
		}
		s.templates = append(s.templates, readJob(r, e))
	}
}

// readJob reads one job.
func readJob(r *strictyaml.Reader, e strictyaml.Entry) *template {
	t := &template{Place: e.Place, name: e.Key}
	o := r.Object(e.Value, "job "+e.Key)
	t.verb = o.Need("verb")
	t.args = list(r, o.Get("args"), "args")

	if f := o.Get("flags"); f != nil {
		r.Object(f, "flags")
		t.flags = f.Entries
	}

	if t.recipe = o.Get("recipe"); t.recipe != nil && t.recipe.Kind != strictyaml.Map {
		r.Add(t.recipe.Place, strictyaml.ErrType, "recipe must be a map: the document that the verb reads")
	}

	t.needs, t.inputs = list(r, o.Get("needs"), "needs"), list(r, o.Get("inputs"), "inputs")
	t.out = o.Get("out")
	if m := o.Get("matrix"); m != nil {
		t.matrix = readMatrix(r, m)
	}

	o.Close()
	return t
}

// list reads a list, for which a single value may stand.
func list(r *strictyaml.Reader, n *strictyaml.Node, what string) []*strictyaml.Node {
	switch {
	case n == nil:
		return nil
	case n.Kind == strictyaml.Scalar:
		return []*strictyaml.Node{n}
	}
	return r.List(n, what)
}

// readMatrix reads the axes of a matrix, in the order of the file.
func readMatrix(r *strictyaml.Reader, n *strictyaml.Node) []axis {
	r.Object(n, "matrix")
	var axes []axis
	for _, e := range n.Entries {
		a := axis{key: e.Key}
		if !plainName.MatchString(e.Key) {
			r.Add(e.Place, strictyaml.ErrValue, "matrix key %.60q: want letters, digits, . _ + and -", e.Key)
		}

		for _, v := range r.List(e.Value, "matrix key "+e.Key) {
			text := r.Text(v, "a value of "+e.Key)
			if strings.ContainsRune(text, folderMark) || strings.Contains(text, "${") || len(text) > maxText {
				r.Add(v.Place, strictyaml.ErrValue, "%.60q: values of a matrix are plain texts without references",
					text)
				text = ""
			}

			if text != "" && slices.Contains(a.values, text) {
				r.Add(v.Place, strictyaml.ErrValue, "value %.60q is twice in matrix key %s", text, e.Key)
				continue
			}

			a.values = append(a.values, text)
		}

		if len(a.values) == 0 {
			r.Add(e.Place, strictyaml.ErrValue, "matrix key %s has no values", e.Key)
			a.values = []string{""}
		}

		axes = append(axes, a)
	}

	return axes
}

// variants multiplies a matrix out: the last key runs fastest. Too many are cut to one more than is allowed.
func variants(axes []axis) [][]binding {
	all := [][]binding{nil}
	for _, a := range axes {
		var next [][]binding
		for _, head := range all {
			for _, v := range a.values {
				if len(next) > maxJobs {
					break
				}
				next = append(next, append(head[:len(head):len(head)], binding{a.key, v}))
			}
		}

		all = next
	}

	return all
}

// nameOf is the name of a variant: that of the job with the values of its matrix, with _ for what does not fit
// into names.
func nameOf(base string, values []binding) string {
	name := base
	for _, v := range values {
		name += "-" + strings.Map(func(c rune) rune {
			if c < 128 && plainName.MatchString("a"+string(c)) {
				return c
			}
			return '_'
		}, v.text)
	}

	return name
}
