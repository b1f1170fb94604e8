package evalcmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/hub"
)

// Fetched says what became of the data files of tasks.
type Fetched struct {
	Out     string   `json:"out"`
	Files   []string `json:"files"`              // that were downloaded
	Present []string `json:"present,omitempty"`  // that were there
	By      []string `json:"commands,omitempty"` // that get what is not on the hub
	Bytes   int64    `json:"bytes"`              // of the files that were downloaded
}

// errElsewhere: files that are not on the hub are left to other programs.
var errElsewhere = errors.New("not all files are on the Hugging Face hub")

// Fetch downloads the data files of shipped tasks from the hub into a folder, under the names by which the tasks look
// for them. Files that are there stay as they are.
func Fetch(j *cli.Job, entries []string, out, tokenFile string) (any, error) {
	list, err := task.Origins(entries)
	if err != nil {
		return nil, eachFault(entries, nil, err)
	}
	if len(list) == 0 {
		return nil, cli.Usagef("none of these is a task that comes with the program: where its data are, its file " +
			"says " +
			"(HINT: compress eval tasks list)")
	}

	endpoint, token, err := hub.Environment()
	if tokenFile != "" {
		token, err = hub.ReadToken(tokenFile)
	}
	if err != nil {
		return nil, err
	}
	client, err := hub.NewClient(endpoint, token)
	if err != nil {
		return nil, err
	}

	r := &Fetched{Out: out, Files: []string{}}
	var sets []string // in the order of the tasks
	files := map[string][]task.Origin{}
	for _, o := range list {
		switch _, err := os.Stat(filepath.Join(out, filepath.FromSlash(o.As))); {
		case err == nil:
			r.Present = append(r.Present, o.As)
		case o.Dataset == "":
			r.By = append(r.By, o.Command(out))
		default:
			if files[o.Dataset] == nil {
				sets = append(sets, o.Dataset)
			}
			files[o.Dataset] = append(files[o.Dataset], o)
		}
	}

	for _, set := range sets {
		if err := r.fetch(j, client, set, files[set]); err != nil {
			return nil, err
		}
	}
	return r, r.show(j)
}

// fetch downloads files of one data set.
func (r *Fetched) fetch(j *cli.Job, client *hub.Client, set string, list []task.Origin) error {
	name, _ := hub.Parse(set)
	m, err := client.Dataset(j.Ctx, name)
	if err != nil {
		return fmt.Errorf("data set %w (HINT: where the hub cannot be reached, do it elsewhere: %s)", err,
			list[0].Command(r.Out))
	}

	var files []hub.File
	bytes := int64(0)
	for _, o := range list {
		i := slices.IndexFunc(m.Files, func(f hub.File) bool { return f.Path == o.File })
		if i < 0 {
			return fmt.Errorf("data set %s has no file %s now (HINT: look at the hub, and put it into %s by hand)", set,
				o.File, filepath.Join(r.Out, filepath.FromSlash(o.As)))
		}
		files = append(files, m.Files[i])
		bytes += m.Files[i].Size
	}

	// Half a file waits in a folder of its own, and is gone on with by the next run.
	waiting := filepath.Join(r.Out, ".fetch", filepath.FromSlash(set))
	bar := j.ByteProgress(set, bytes)
	defer bar.End()
	if _, err = client.Pull(j.Ctx, m, files, hub.FolderPlace(waiting), hub.PullOptions{
		AtOnce: 4, Progress: func(done, _ int64) { bar.Set(done) },
	}); err != nil {
		return err
	}

	for _, o := range list {
		to := filepath.Join(r.Out, filepath.FromSlash(o.As))
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(waiting, filepath.FromSlash(o.File)), to); err != nil {
			return err
		}
		r.Files = append(r.Files, o.As)
	}
	r.Bytes += bytes
	if err := os.RemoveAll(waiting); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(waiting)) // that of the owner, if nothing else waits there
	return nil
}

// show says what was done, and what is left to do.
func (r *Fetched) show(j *cli.Job) error {
	// Only folders that are empty go.
	_ = os.Remove(filepath.Join(r.Out, ".fetch"))

	j.Printf("%d files, %s, in %s; %d were there\n", len(r.Files), cli.Size(r.Bytes), r.Out, len(r.Present))
	for _, line := range r.By {
		j.Printf("%s\n", line)
	}
	if len(r.By) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d are left (HINT: the lines above get them)", errElsewhere, len(r.By))
}
