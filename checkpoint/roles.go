package checkpoint

import (
	"regexp"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/lm/arch"
)

// roleTable finds what a tensor does by its name, without expanding every block and expert of a configuration.
type roleTable struct {
	arch     *arch.Arch
	patterns []*regexp.Regexp // one for each of the architecture's tensors
}

func newRoleTable(a *arch.Arch) *roleTable {
	t := &roleTable{arch: a}
	for _, tensor := range a.Tensors {
		name, prefix := tensor.Name, ""
		if p := a.OptionalPrefix; p != "" && strings.HasPrefix(name, p) {
			name, prefix = strings.TrimPrefix(name, p), "(?:"+regexp.QuoteMeta(p)+")?"
		}
		expr := strings.NewReplacer(`\{l\}`, `[0-9]+`, `\{e\}`, `[0-9]+`, `\{h\}`, `[0-9]+`).Replace(regexp.QuoteMeta(name))
		t.patterns = append(t.patterns, regexp.MustCompile("^"+prefix+expr+"$"))
	}

	return t
}

// parseConfig reads a configuration without what it says about packing, which no architecture knows.
func parseConfig(file string, config *orderedjson.Object) (*arch.Config, error) {
	plain := config.Clone()
	plain.Delete("quantization_config")
	text, err := plain.Indent()
	if err != nil {
		return nil, err
	}
	return arch.ParseConfig(file, text)
}

// rolesOf makes the table for a configuration.
func rolesOf(file string, config *orderedjson.Object) (*roleTable, error) {
	c, err := parseConfig(file, config)
	if err != nil {
		return nil, err
	}
	return newRoleTable(c.Arch), nil
}

// find gives the architecture's entry for a tensor, nil if it has none.
func (t *roleTable) find(name string) *arch.Tensor {
	for i, p := range t.patterns {
		if p.MatchString(name) {
			return &t.arch.Tensors[i]
		}
	}
	return nil
}

// linear reports whether a tensor is a matrix of a block.
func (t *roleTable) linear(name string) bool {
	e := t.find(name)
	return e != nil && e.Part == "" && e.Role.Linear()
}
