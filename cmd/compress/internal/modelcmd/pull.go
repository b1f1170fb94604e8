package modelcmd

import (
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/hub"
)

// PullOptions say what is downloaded, and where to.
type PullOptions struct {
	Include, Exclude []string // patterns of paths
	Out              string   // a folder; empty: the hub's cache
	TokenFile        string
	AtOnce           int // files at a time
	DryRun           bool
}

// pullReport is a downloaded model.
type pullReport struct {
	Model    string       `json:"model"`  // as it was asked for
	Commit   string       `json:"commit"` // which names these files for ever
	Dir      string       `json:"dir"`    // where they are
	Listed   []pulledFile `json:"list"`
	Skipped  int          `json:"skipped"` // files of the model that were not wanted
	Estimate hub.Estimate `json:"estimate"`
	*hub.Pulled
}

// pulledFile is a file of the model.
type pulledFile struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes"`
	Checksum string `json:"checksum"` // SHA-256, or git's SHA-1 of a small file
}

// mostAtOnce is how many files may be downloaded at a time: a hub limits how often it is asked.
const mostAtOnce = 32

// CheckPull looks at a name and the flags.
func CheckPull(text string, o PullOptions) error {
	if _, ok := hub.Parse(text); !ok {
		return cli.Usagef("%.200q is no name of a model on the hub (HINT: want owner/name or owner/name@revision)",
			text)
	}
	if o.AtOnce < 1 || o.AtOnce > mostAtOnce {
		return cli.Usagef("--parallel %d: want 1 to %d", o.AtOnce, mostAtOnce)
	}
	return nil
}

// Pull downloads a model.
func Pull(j *cli.Job, text string, o PullOptions) (any, error) {
	if err := CheckPull(text, o); err != nil {
		return nil, err
	}

	name, _ := hub.Parse(text)
	c, err := client(o)
	if err != nil {
		return nil, err
	}

	m, err := c.Model(j.Ctx, name)
	if err != nil {
		return nil, err
	}

	files := m.Choose(o.Include, o.Exclude)
	if len(o.Include) == 0 {
		files, _ = m.Needed()
		needed := &hub.Model{Name: m.Name, Files: files}
		files = needed.Choose(nil, o.Exclude)
	}
	if len(files) == 0 {
		return nil, cli.Usagef("%s: none of its %d files is left by --include and --exclude", name, len(m.Files))
	}

	place := hub.FolderPlace(o.Out)
	if o.Out == "" {
		cache := hub.CacheDir()
		if cache == "" {
			return nil, cli.Usagef("there is no place for the hub's cache (HINT: set HF_HOME, or give --out DIR)")
		}
		place = hub.CachePlace(cache, m)
	}

	r := pullReport{Model: text, Commit: m.Commit, Dir: place.Dir(), Skipped: len(m.Files) - len(files)}
	for _, f := range files {
		r.Listed = append(r.Listed, pulledFile{f.Path, f.Size, f.Sum})
	}

	r.Estimate, err = place.Estimate(files)
	if err != nil {
		return nil, err
	}

	r.announce(j)
	if o.DryRun {
		return r, nil
	}

	bar := j.ByteProgress(name.ID(), r.Estimate.Bytes)
	bar.Skip(r.Estimate.Present)
	r.Pulled, err = c.Pull(j.Ctx, m, files, place, hub.PullOptions{
		AtOnce: o.AtOnce, Progress: func(done, _ int64) { bar.Set(done) },
	})

	bar.End()
	if err != nil {
		return nil, err
	}

	j.Printf("%s\n", r.Dir)
	return r, nil
}

// client makes the client that the environment and the flags describe.
func client(o PullOptions) (*hub.Client, error) {
	endpoint, token, err := hub.Environment()
	if o.TokenFile != "" {
		token, err = hub.ReadToken(o.TokenFile)
	}
	if err != nil {
		return nil, err
	}
	return hub.NewClient(endpoint, token)
}

// announce says what there is to do, before it is done.
func (r *pullReport) announce(j *cli.Job) {
	e := r.Estimate
	free := ""
	if e.Free >= 0 {
		free = fmt.Sprintf("; %s free on the disk", cli.Size(e.Free))
	}
	if r.Skipped > 0 {
		free += fmt.Sprintf("; %d other files are left out (--include '*' takes all)", r.Skipped)
	}
	j.Note("%s at %.12s: %d files, %s, of which %s are there already%s", r.Model, r.Commit, e.Files, cli.Size(e.Bytes),
		cli.Size(e.Present), free)
}
