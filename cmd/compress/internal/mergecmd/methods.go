package mergecmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
)

// MethodsReport lists merge methods.
type MethodsReport struct {
	Methods []merge.Method `json:"methods"`
}

// Methods are those that give one model, and mediate.
func Methods() []merge.Method { return append(merge.Methods(), mediate.Method()) }

// ShowMethods prints the merge methods, or all about the named ones.
func ShowMethods(j *cli.Job, names []string) (any, error) {
	all := Methods()
	if len(names) == 0 {
		t := &report.Table{Columns: report.Columns("method", "what it writes")}
		for _, m := range all {
			t.Add(m.Name, m.Summary)
		}
		j.Table(t)
		return &MethodsReport{all}, nil
	}

	r := &MethodsReport{}
	for _, name := range names {
		i := slices.IndexFunc(all, func(m merge.Method) bool { return m.Name == name })
		if i < 0 {
			return nil, cli.Usagef("merge method %.60q is not known (HINT: compress merge methods lists them)", name)
		}
		m := all[i]
		r.Methods = append(r.Methods, m)
		j.Printf("%s: %s\n\n  %s\n\nWhen: %s\nModels: %s\nSource: %s\n\n", m.Name, m.Summary, m.Formula, m.Fits,
			Inputs(m), m.Source)
		if len(m.Parameters) > 0 {
			t := &report.Table{Columns: report.Columns("parameter", "of", "default", "what it does")}
			for _, p := range m.Parameters {
				t.Add(p.Name, Of(p), Default(p), p.Meaning)
			}
			j.Table(t)
			j.Printf("\n")
		}
		j.Printf("%s", indented(m.Example()))
	}
	return r, nil
}

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

// Inputs says what models a method takes.
func Inputs(m merge.Method) string {
	models, base := m.Least, ""
	switch {
	case m.Base:
		models, base = max(models-1, 1), "base_model and "
	case m.MayBase:
		base = "base_model if wanted, and "
	}
	most := m.Most
	if m.Base && most > 0 {
		most--
	}

	switch {
	case most == models && models == 1:
		return base + "1 model"
	case most == models:
		return fmt.Sprintf("%s%d models", base, models)
	case models == 1:
		return base + "1 model or more"
	}
	return fmt.Sprintf("%s%d models or more", base, models)
}

// Of says for what a parameter has a value.
func Of(p merge.Parameter) string {
	switch p.Of {
	case "model":
		return "each model"
	case "input":
		return "each model and the base"
	}
	return "the merge"
}

// Default is a parameter's default, or that it has to be given.
func Default(p merge.Parameter) string {
	switch {
	case p.Required:
		return "required"
	case p.Default == "":
		return "none"
	}
	return p.Default
}
