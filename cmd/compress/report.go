package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/pages"
)

func (a *app) reportCmd() *cobra.Command {
	var out string
	overwrite := false
	cmd := a.newVerb("report RUN... --out report.html", "Put the reports of several runs on one page",
		"Reads the JSON reports that --report wrote (or the report.json of a folder) and writes one self-contained page with figures, "+
			"plots and tables, side by side. The ending of --out chooses the form: .html, .md or .csv (the figures side by side).",
		"compress demo\ncompress ppl demo-out/base --data demo-out/text/test.txt --seqlen 256 --report dense.json\n"+
			"compress report demo-out dense.json --out report.html",
		cobra.MinimumNArgs(1),
		func(j *job, args []string) (any, error) { return writeReport(j, args, out, overwrite) })
	cmd.Flags().StringVar(&out, "out", "", "file to write: .html, .md or .csv")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace an existing --out")
	require(cmd, "out")
	return cmd
}

func writeReport(j *job, paths []string, out string, overwrite bool) (any, error) {
	form := strings.TrimPrefix(filepath.Ext(out), ".")
	if form != "html" && form != "md" && form != "csv" {
		return nil, usagef("--out %s: want a name that ends in .html, .md or .csv", out)
	}
	if _, err := os.Stat(out); err == nil && !overwrite {
		return nil, usagef("--out %s: output already exists (HINT: choose another --out, or pass --overwrite)", out)
	}
	if err := (place{flag: "out", path: out, own: func(string) bool { return true }, inputs: j.inputs}).check(); err != nil {
		return nil, err
	}
	var runs []*pages.Run
	for _, p := range paths {
		r, err := pages.Read(p)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	var b bytes.Buffer
	side := pages.SideBySide(runs)
	var err error
	switch form {
	case "csv":
		err = side.CSV(&b)
	case "md":
		err = side.Markdown(&b)
		for _, r := range runs {
			for _, t := range r.Tables {
				b.WriteByte('\n')
				err = firstError(err, t.Markdown(&b))
			}
		}
	default:
		err = pages.Page(runs, side).HTML(&b)
	}
	if err != nil {
		return nil, err
	}
	if err := writeWhole(out, b.Bytes()); err != nil {
		return nil, err
	}
	if !j.quiet {
		printTable(j.out(), pages.Upright(side))
		fmt.Fprintf(j.out(), "written to %s\n", out)
	}
	return map[string]any{"out": out, "runs": side}, nil
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
