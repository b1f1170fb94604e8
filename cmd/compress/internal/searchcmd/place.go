package searchcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/safefile"
)

// The files of a search.
const (
	journalFile = "journal.jsonl"
	bestFile    = "best.json"
	reportFile  = "report.json"
	pageFile    = "report.html"
	stateDir    = ".search" // what an interrupted search goes on with, besides the journal
)

// folder is what lies in the folder of a search.
var folder = cli.Folder{
	From: "a search", Holds: "a search", State: stateDir,
	Names: []string{journalFile, bestFile, reportFile, pageFile}, Marks: []string{journalFile},
}

// place is the folder of a search, locked.
type place struct {
	dir  string
	lock *os.File
}

// take makes the folder of a search or takes an earlier one, as the flags allow.
func take(o *Options) (*place, error) {
	lock, err := folder.Take(o.Out, o.Resume, o.Overwrite)
	if err != nil {
		return nil, err
	}
	return &place{dir: o.Out, lock: lock}, nil
}

// maxKept bounds what is read of a report or a journal.
const maxKept = 1 << 30

// writtenBy refuses to go on with the journal of another version of the program, whose measurements may differ.
// What else a journal has to agree with is checked when it is opened.
func (p *place) writtenBy(version string) error {
	text, err := safefile.ReadFile(p.path(journalFile), maxKept)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	line, _, _ := bytes.Cut(text, []byte{'\n'})
	body, _, _ := bytes.Cut(line, []byte{'\t'})
	var head struct {
		Fitness string `json:"fitness"`
	}
	if json.Unmarshal(body, &head) != nil {
		return nil // damaged, or cut off
	}
	if by, _, ok := strings.Cut(head.Fitness, " "); ok && by != version {
		return fmt.Errorf("%s:1: %w: compress %.40s wrote it, this is %s", p.path(journalFile), gp.ErrJournal, by,
			version)
	}

	return nil
}

// path is that of one of its files.
func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

// release lets others take it; what an interrupted search goes on with stays, if it has begun.
func (p *place) release() error {
	if _, err := os.Stat(p.path(journalFile)); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(p.clear(), p.lock.Close()); err != nil {
			return err
		}
		_ = os.Remove(p.dir) // it stays if something else is in it
		return nil
	}
	return p.lock.Close()
}

// clear removes what only an interrupted search needs.
func (p *place) clear() error { return os.RemoveAll(p.path(stateDir)) }
