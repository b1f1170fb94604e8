package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/system"
	models "github.com/modelcompress/compress/internal/weights"
)

// checkEmpty refuses empty arguments and flags.
func checkEmpty(c *cobra.Command, args []string) error {
	for i, arg := range args {
		if arg == "" {
			return Usagef("argument %d is empty", i+1)
		}
	}

	for _, f := range changed(c) {
		if f.Value.Type() == "string" && f.Value.String() == "" && f.Annotations[emptyMark] == nil {
			return Usagef("--%s is empty", f.Name)
		}
		if word, _ := Placeholder(f); f.Name == "out" && word == "DIR" && isGGUFName(f.Value.String()) {
			return Usagef("--out %s: this verb writes no GGUF files (HINT: name a folder, of which "+
				"compress quantize makes one)", f.Value)
		}
	}

	return nil
}

// isGGUFName reports whether a name is that of a GGUF file.
func isGGUFName(name string) bool { return strings.EqualFold(filepath.Ext(name), ".gguf") }

// changed lists the flags that were given.
func changed(c *cobra.Command) (list []*pflag.Flag) {
	c.Flags().Visit(func(f *pflag.Flag) { list = append(list, f) })
	return list
}

// inputs lists what a command line names to be read.
func inputs(c *cobra.Command, args []string) []string {
	list := append([]string{}, args...)
	for _, f := range changed(c) {
		if f.Annotations[inputMark] == nil {
			continue
		}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			list = append(list, several.GetSlice()...)
		} else {
			list = append(list, f.Value.String())
		}
	}
	return list
}

// weights is the size of the checkpoints among the inputs in bytes.
func weights(inputs []string) int64 {
	n := int64(0)
	for _, path := range inputs {
		// a path with a pattern's signs is counted as nothing
		files, _ := filepath.Glob(filepath.Join(path, "*.safetensors"))
		if len(files) == 0 {
			files, _ = filepath.Glob(filepath.Join(path, "*.gguf"))
		}
		if filepath.Ext(path) == ".safetensors" || models.IsGGUF(path) {
			files = append(files, path)
		}

		for _, f := range files {
			if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() {
				n += st.Size()
			}
		}
	}

	return n
}

// Place is a file that a run writes at its end. It is looked at before the work.
type Place struct {
	Flag, Path string                 // an empty path is no place
	What       string                 // what it is, in words, such as "a report of an earlier run"
	Own        func(path string) bool // tells a file that may be replaced
	Inputs     []string               // what the run reads: [Job].Inputs
	Folder     string                 // a folder that is there by the end of the run; empty: none
	Seeks      bool                   // it is written in any order: no pipe or device
}

// Check reports whether the file can be written. What is written into ([regular.Target]) always can, unless the
// file needs access in any order; an existing file must be empty or of the same kind, and none of the inputs.
func (p Place) Check() error {
	_, err := p.Target()
	return err
}

// Target is Check that also gives where the file will be: what a link leads to, so that the link stays.
func (p Place) Target() (string, error) {
	if p.Path == "" {
		return "", nil
	}

	to, direct, err := safefile.Target(p.Path)
	switch {
	case system.Is(err, syscall.ENOTDIR):
		return "", Usagef("--%s %s: there is no folder %s", p.Flag, p.Path, filepath.Dir(p.Path))
	case err != nil:
		return "", fmt.Errorf("--%s: %w", p.Flag, err)
	case direct && p.Seeks:
		return "", Usagef("--%s %s: no file, but a pipe, a device or what a process has open (HINT: name a file)",
			p.Flag, p.Path)
	case direct:
		return to, nil
	}

	if err := p.checkFolder(to); err != nil {
		return "", err
	}

	st, err := os.Stat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return to, nil
	case err != nil:
		return "", fmt.Errorf("--%s: %w", p.Flag, err)
	case st.IsDir():
		return "", Usagef("--%s %s: a folder (HINT: name a file)", p.Flag, p.Path)
	}

	for _, in := range p.Inputs {
		if other, err := os.Stat(in); err == nil && os.SameFile(st, other) {
			return "", Usagef("--%s %s: it is an input of this run (HINT: choose another name)", p.Flag, p.Path)
		}
	}

	if st.Size() > 0 && !p.Own(to) {
		return "", Usagef("--%s %s: there is a file that is not %s, which is not replaced (HINT: choose another name)",
			p.Flag, p.Path, p.What)
	}

	return to, nil
}

// checkFolder reports whether files can be made in the folder of the target.
func (p Place) checkFolder(to string) error {
	dir := filepath.Dir(to)
	if p.Folder != "" && samePath(dir, p.Folder) {
		if filepath.Base(to) != "report.json" {
			return Usagef("--%s %s: in the folder of --out it may only be called report.json, so that it replaces "+
				"nothing there", p.Flag, p.Path)
		}
		return nil
	}

	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return Usagef("--%s %s: there is no folder %s", p.Flag, p.Path, dir)
	}
	if err := system.Writable(dir); err != nil {
		return fmt.Errorf("--%s %s: no file can be made in %s: %w", p.Flag, p.Path, dir, err)
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

// ReportTo is the file of --report; empty: none.
func (j *Job) ReportTo() string { return j.report }

// Apart refuses two outputs of the same name; pairs are flags and their values.
func Apart(outputs ...[2]string) error {
	for i, a := range outputs {
		for _, b := range outputs[:i] {
			if a[1] != "" && b[1] != "" && samePath(a[1], b[1]) {
				return Usagef("--%s and --%s name the same file %s", b[0], a[0], a[1])
			}
		}
	}
	return nil
}

// checkReport looks at the place of --report.
func (j *Job) checkReport(c *cobra.Command) error {
	if j.report == "-" {
		return Usagef("--report -: want the name of a file (HINT: --json prints the report on stdout)")
	}

	out := ""
	if f := c.Flags().Lookup("out"); f != nil {
		out = f.Value.String()
	}
	if err := Apart([2]string{"out", out}, [2]string{"report", j.report}); err != nil {
		return err
	}

	return Place{
		Flag: "report", Path: j.report, What: "a report of an earlier run", Own: stage.IsReport,
		Inputs: j.Inputs, Folder: out,
	}.Check()
}

// ModelFolder refuses what is no folder, nor a GGUF file, where a whole model is wanted.
func ModelFolder(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !st.IsDir() && !models.IsGGUF(path):
		return fmt.Errorf("%s: a file, where the folder of a model is wanted (HINT: a folder with config.json and "+
			".safetensors files, or a .gguf file)", path)
	}
	return nil
}
