package democmd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/testdata"
)

// The files of a demo beside those that its steps write.
const (
	journalFile = "journal.jsonl"
	reportFile  = "report.json"
	pageFile    = "report.html"
)

// take makes the folder, or takes an earlier one as the flags allow, and puts the shipped files there.
func (d *demo) take(stages []stage) error {
	own := []string{journalFile, reportFile, pageFile}
	own = append(own, d.shipped()...)
	for _, s := range stages {
		own = append(own, s.name)
	}

	entries, err := os.ReadDir(d.o.Out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--out: %w", err)
	}

	for _, e := range entries {
		if !slices.Contains(own, e.Name()) {
			return fmt.Errorf("--out %s: %w: %q is not from a demo (HINT: choose another --out)", d.o.Out,
				checkpoint.ErrTarget, e.Name())
		}
	}

	if len(entries) > 0 && !d.o.Resume && !d.o.Overwrite {
		return fmt.Errorf("--out %s: %w: it holds a demo, or what an interrupted one has left (HINT: --resume "+
			"continues, --overwrite starts over)",
			d.o.Out, checkpoint.ErrExists)
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == journalFile }) && len(entries) > 0 {
		return fmt.Errorf("--out %s: %w: it has no %s, by which a demo is known (HINT: choose another --out)", d.o.Out,
			checkpoint.ErrTarget, journalFile)
	}
	if err := os.MkdirAll(d.o.Out, 0o777); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	if err := d.open(own); err != nil {
		return err
	}

	err = ship(d.o.Out, d.shipped())
	if err == nil && d.o.Model != "" {
		err = d.shipTexts()
	}
	if err != nil {
		d.journal.Close()
		return err
	}

	return nil
}

// open locks the folder by its journal, after removing what --overwrite replaces.
func (d *demo) open(own []string) error {
	path := filepath.Join(d.o.Out, journalFile)
	var err error
	if d.o.Overwrite && !d.o.Resume {
		for _, name := range slices.Backward(own) { // the journal, by which the folder is known, last
			err = errors.Join(err, os.RemoveAll(filepath.Join(d.o.Out, name)))
		}
		if err != nil {
			return err
		}
	}

	d.journal, err = cli.OpenJournal[done](path, command, d.fingerprint())
	if errors.Is(err, cli.ErrOtherJob) {
		err = fmt.Errorf("%w: another model, text, seed or version, or without --quick "+
			"(HINT: --overwrite starts over)", err)
	}
	return err
}

// shipped are the folders that come with the program, and for a model of the user's the texts beside them.
func (d *demo) shipped() (names []string) {
	if d.o.Model != "" {
		return []string{"demo", "text"}
	}

	entries, err := testdata.Nano.ReadDir(".")
	if err != nil {
		panic("demo: the program carries no files")
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// ship writes those of the named folders that come with the program; what is there already with the same content stays.
func ship(dir string, folders []string) error {
	return fs.WalkDir(testdata.Nano, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if top, _, _ := strings.Cut(path, "/"); path != "." && !slices.Contains(folders, top) {
			return fs.SkipDir
		}

		to := filepath.Join(dir, filepath.FromSlash(path))
		if e.IsDir() {
			return os.MkdirAll(to, 0o777)
		}

		data, err := testdata.Nano.ReadFile(path)
		if err != nil {
			return err
		}

		if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, data) {
			return nil
		}

		return cli.WriteFile(to, data)
	})
}
