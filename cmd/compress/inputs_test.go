package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/prunecmd"
	"github.com/modelcompress/compress/cmd/compress/internal/reportcmd"
	"github.com/modelcompress/compress/editeval"
	editing "github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/prune"
)

// TestInputExamples: what schema --input shows of a file is read as such a file, and the keys that it lists are those
// that the file may have.
func TestInputExamples(t *testing.T) {
	read := map[string]func(path string) error{
		"overrides": func(path string) error {
			_, err := prunecmd.ReadOverrides(path)
			return err
		},
		"edits": func(path string) error {
			set, err := editing.Read(path)
			if err == nil && set.Format != "easyedit" {
				t.Errorf("the example of edits is %s", set.Format)
			}
			return err
		},
		"hparams": func(path string) error {
			var h editing.HParams
			return onText(path, h.MergeFile)
		},
		"editeval-plan": func(path string) error {
			_, err := editeval.Read(path)
			return err
		},
		"eval-plan": func(path string) error { return onText(path, evalcmd.CheckPlan) },
		"run-plan":  func(path string) error { return planned(t, path) },
	}
	types := map[string]reflect.Type{
		"overrides": reflect.TypeFor[prune.Override](), "hparams": reflect.TypeFor[editing.HParams](),
		"eval-plan": reflect.TypeFor[task.Plan](),
	}

	dir := t.TempDir()
	for _, in := range reportcmd.Inputs() {
		path := filepath.Join(dir, in.Name)
		if err := os.WriteFile(path, []byte(in.Example), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := read[in.Name](path); err != nil {
			t.Errorf("%s: %v", in.Name, err)
		}

		if types[in.Name] == nil {
			continue
		}
		var want, got []string
		for i := range types[in.Name].NumField() {
			if key := types[in.Name].Field(i).Tag.Get("yaml"); key != "" && key != "-" {
				want = append(want, key)
			}
		}
		for _, k := range in.Keys {
			if !strings.Contains(k.Name, ".") {
				got = append(got, k.Name)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the keys\n%q\nare not those of the file\n%q", in.Name, got, want)
		}
	}
}

// planned has the verb read the example of a plan, with a model and texts that are there.
func planned(t *testing.T, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		return err
	}

	there := strings.NewReplacer("./my-model", nano+"/base", "calib.txt", nano+"/text/calib.txt", "test.txt",
		nano+"/text/test.txt").Replace(string(text))
	if err := os.WriteFile(path, []byte(there), 0o666); err != nil {
		return err
	}

	var said bytes.Buffer
	args := []string{"run", path, "--dry-run", "--out", filepath.Join(t.TempDir(), "built")}
	if code := run(args, io.Discard, &said); code != 0 {
		return errors.New(said.String())
	}
	return nil
}
