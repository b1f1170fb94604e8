package reportcmd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// Write reads reports and writes them side by side, in the form that the ending of out names.
func Write(j *cli.Job, paths []string, out string, overwrite bool) (any, error) {
	form := strings.TrimPrefix(filepath.Ext(out), ".")
	if !slices.Contains([]string{"html", "md", "csv", "svg"}, form) {
		return nil, cli.Usagef("--out %s: want a name that ends in .html, .md, .csv or .svg", out)
	}
	if _, err := os.Stat(out); err == nil && !overwrite {
		return nil, cli.Usagef("--out %s: output already exists (HINT: choose another --out, or pass --overwrite)", out)
	}
	if err := (cli.Place{
		Flag: "out", Path: out, Own: func(string) bool { return true },
		Inputs: j.Inputs,
	}).Check(); err != nil {
		return nil, err
	}

	var runs []*Run
	for _, p := range paths {
		some, err := ReadAll(p)
		if err != nil {
			return nil, err
		}
		runs = append(runs, some...)
	}
	apart(runs)

	var b bytes.Buffer
	side := SideBySide(runs)
	var err error
	switch form {
	case "csv":
		err = side.CSV(&b)
	case "svg":
		c, left := front(runs)
		if c == nil {
			return nil, cli.Usagef("--out %s: a drawing takes three runs or more of compress ppl --against one model "+
				"on one text, with a size and a divergence above 0", out)
		}
		if note := without(left); note != "" {
			j.Note("%s", note)
		}
		b.WriteString(c.SVG())
	case "md":
		err = InWords(side).Markdown(&b)
		for _, r := range runs {
			for _, text := range r.sources {
				fmt.Fprintf(&b, "\n%s: %s\n", r.name, text)
			}
			for _, t := range r.Tables {
				b.WriteByte('\n')
				err = firstError(err, readable(t).Markdown(&b))
			}
		}
	default:
		err = Page(runs, side).HTML(&b)
	}
	if err != nil {
		return nil, err
	}
	if err := j.Write(out, b.Bytes()); err != nil {
		return nil, err
	}

	j.Table(Upright(InWords(side)))
	j.Printf("written to %s\n", out)
	return map[string]any{"out": out, "runs": side}, nil
}

// without says which runs a drawing leaves out; "" for none.
func without(left []string) string {
	if len(left) == 0 {
		return ""
	}
	return "not drawn, since they are against another model or on another text: " + strings.Join(left, ", ")
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
