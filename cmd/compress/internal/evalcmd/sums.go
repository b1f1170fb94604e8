package evalcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/safefile"
)

// sumsFolder in the folder of an unfinished batch has the hashes of the files of finished runs. No model has
// such a name.
const sumsFolder = ".sums"

func (b *batch) sumsOf(u unit) string {
	return filepath.Join(b.dir, sumsFolder, fmt.Sprintf("%d-%d.json", u.Model, u.Task))
}

// sums are those of the files of a run.
func (b *batch) sums(u unit) (map[string]string, error) {
	entries, err := os.ReadDir(b.folder(u))
	if err != nil {
		return nil, err
	}

	sums := map[string]string{}
	for _, e := range entries {
		if sums[e.Name()], err = cli.FileHash(b.j.Ctx, filepath.Join(b.folder(u), e.Name())); err != nil {
			return nil, err
		}
	}

	return sums, nil
}

// note keeps the hashes of a run that is finished.
func (b *batch) note(u unit) error {
	sums, err := b.sums(u)
	if err != nil {
		return err
	}

	text, err := json.Marshal(sums)
	if err == nil {
		err = os.MkdirAll(filepath.Join(b.dir, sumsFolder), 0o777)
	}
	if err != nil {
		return err
	}

	return cli.WriteFile(b.sumsOf(u), text)
}

// sweep removes finished runs of an interrupted batch whose files are not what they were when they were
// finished, which is said.
func (b *batch) sweep() error {
	for m := range b.plan.Models {
		for t := range b.plan.Tasks {
			u := unit{m, t}
			text, err := safefile.ReadFile(b.sumsOf(u), maxResults)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}

			if err != nil {
				return err
			}

			var want map[string]string
			have, err := b.sums(u)
			if err == nil && json.Unmarshal(text, &want) == nil && maps.Equal(want, have) {
				continue
			}

			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}

			b.j.Note("%s: damaged since it was written; the run is done again", b.folder(u))
			if err := errors.Join(os.RemoveAll(b.folder(u)), os.Remove(b.sumsOf(u))); err != nil {
				return err
			}
		}
	}

	return nil
}

// again does a run that the queue has a result of, but whose files were removed.
func (b *batch) again(it jobs.Item) error {
	var u unit
	if err := json.Unmarshal(it.Data, &u); err != nil {
		return err
	}
	if _, err := os.Stat(b.folder(u)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err := b.handle(b.j.Ctx, it)
	return err
}
