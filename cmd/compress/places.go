package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/safetensors"
)

// mayBeEmpty are the flags for which an empty text is a value; for the others it is a slip, such as a variable that is
// not set.
var mayBeEmpty = map[string]bool{"prompt": true, "text": true, "group": true}

// checkEmpty refuses empty arguments and flags.
func checkEmpty(c *cobra.Command, args []string) error {
	for i, arg := range args {
		if arg == "" {
			return usagef("argument %d is empty", i+1)
		}
	}
	for _, f := range changed(c) {
		if f.Value.Type() == "string" && f.Value.String() == "" && !mayBeEmpty[f.Name] {
			return usagef("--%s is empty", f.Name)
		}
	}
	return nil
}

// changed lists the flags that were given.
func changed(c *cobra.Command) (list []*pflag.Flag) {
	c.Flags().Visit(func(f *pflag.Flag) { list = append(list, f) })
	return list
}

// inputFlags are the flags that name files to read.
var inputFlags = map[string]bool{"calib": true, "ppl": true, "data": true, "ids": true, "file": true, "model": true, "grads": true, "overrides": true}

// inputs lists what a command line names to be read.
func inputs(c *cobra.Command, args []string) []string {
	list := append([]string{}, args...)
	for _, f := range changed(c) {
		if inputFlags[f.Name] {
			list = append(list, f.Value.String())
		}
	}
	return list
}

// place is a file that a run writes at its end. It is looked at before the work.
type place struct {
	flag, path string
	what       string                 // what it is, in words
	own        func(path string) bool // tells a file that may be replaced
	inputs     []string
	folder     string // a folder that is there by the end of the run; empty: none
}

// check tells whether the file can be written. Pipes and devices always can; an existing file must be empty or of the same
// kind, and none of the inputs.
func (p place) check() error {
	if p.path == "" {
		return nil
	}
	if err := p.checkFolder(); err != nil {
		return err
	}
	st, err := os.Stat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--%s: %w", p.flag, err)
	case st.IsDir():
		return usagef("--%s %s: a folder (HINT: name a file)", p.flag, p.path)
	case !st.Mode().IsRegular():
		return nil
	}
	for _, in := range p.inputs {
		if other, err := os.Stat(in); err == nil && os.SameFile(st, other) {
			return usagef("--%s %s: it is an input of this run (HINT: choose another name)", p.flag, p.path)
		}
	}
	if st.Size() > 0 && !p.own(p.path) {
		return usagef("--%s %s: there is a file that is not %s, which is not replaced (HINT: choose another name)", p.flag, p.path, p.what)
	}
	return nil
}

// checkFolder tells whether files can be made in the folder.
func (p place) checkFolder() error {
	dir := filepath.Dir(p.path)
	if p.folder != "" && samePath(dir, p.folder) {
		if filepath.Base(p.path) != "report.json" {
			return usagef("--%s %s: in the folder of --out it may only be called report.json, so that it replaces nothing there", p.flag, p.path)
		}
		return nil
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return usagef("--%s %s: there is no folder %s", p.flag, p.path, dir)
	}
	if st, err := os.Stat(p.path); err == nil && !st.Mode().IsRegular() {
		return nil
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("--%s %s: no file can be made in %s: %w", p.flag, p.path, dir, err)
	}
	return nil
}

func samePath(a, b string) bool {
	if p, err := os.Stat(a); err == nil {
		if q, err := os.Stat(b); err == nil && os.SameFile(p, q) {
			return true
		}
	}
	x, errX := filepath.Abs(a)
	y, errY := filepath.Abs(b)
	return errX == nil && errY == nil && x == y
}

// apart refuses two outputs of the same name; pairs are flags and their values.
func apart(outputs ...[2]string) error {
	for i, a := range outputs {
		for _, b := range outputs[:i] {
			if a[1] != "" && b[1] != "" && samePath(a[1], b[1]) {
				return usagef("--%s and --%s name the same file %s", b[0], a[0], a[1])
			}
		}
	}
	return nil
}

// checkReport looks at the place of --report.
func (j *job) checkReport(c *cobra.Command) error {
	if j.report == "-" {
		return usagef("--report -: want the name of a file (HINT: --json prints the report on stdout)")
	}
	out := ""
	if f := c.Flags().Lookup("out"); f != nil {
		out = f.Value.String()
	}
	if err := apart([2]string{"out", out}, [2]string{"report", j.report}); err != nil {
		return err
	}
	return place{flag: "report", path: j.report, what: "a report of an earlier run", own: checkpoint.IsReport, inputs: j.inputs, folder: out}.check()
}

// isMasks tells a file of masks that prune wrote.
func isMasks(path string) bool {
	f, err := safetensors.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return strings.Contains(f.Metadata()["meaning"], "1 = kept")
}

// isForward tells a file that forward wrote.
func isForward(path string) bool {
	f, err := safetensors.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	_, loss := f.Info("loss_per_token")
	_, logits := f.Info("logits")
	return loss && logits
}

// modelFolder refuses what is no folder where a whole model is wanted.
func modelFolder(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%s: a file, where the folder of a model is wanted (HINT: a folder with config.json and .safetensors files)", path)
	}
	return nil
}
