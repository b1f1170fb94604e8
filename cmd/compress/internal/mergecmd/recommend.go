package mergecmd

import (
	"io"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
)

// RecommendOptions are the flags of recommend.
type RecommendOptions struct {
	Base, Out, Memory   string
	KeepBase, NonFinite bool
}

// Recommend looks at models and prints the recipe that suits them.
func Recommend(j *cli.Job, models []string, o RecommendOptions) (any, error) {
	threads, err := j.Threads()
	if err != nil {
		return nil, err
	}
	memory, err := cli.Bytes("memory", o.Memory)
	if err != nil {
		return nil, err
	}

	if err := checkFile(j, "out", o.Out, "a recipe of an earlier run", isRecommended); err != nil {
		return nil, err
	}
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	bar := j.ByteBars()
	r, err := mediate.Recommend(j.Ctx, o.Base, models, mediate.RecommendOptions{
		KeepBase: o.KeepBase,
		ConflictOptions: mediate.ConflictOptions{
			Threads: threads, Memory: memory, AllowNonFinite: o.NonFinite, Device: dev,
			Progress: func(p merge.Progress) { bar.Show("comparing", p.Done, p.Total) },
		},
	})
	bar.End()
	if err != nil {
		return nil, err
	}

	for _, w := range r.Conflict.Warnings {
		j.Note("warning: %s", w)
	}
	for _, path := range r.Left {
		j.Note("%s is the base, and is left out", path)
	}

	t := &report.Table{Columns: report.Columns("model", "kind", "rank", "length|%.4f")}
	for _, m := range r.Models {
		rank := any(nil)
		if m.Rank > 0 {
			rank = m.Rank
		}
		t.Add(m.Path, m.Kind, rank, m.Shift)
	}
	t.Note = "length: of the difference to the base, as a fraction of the base's"
	j.Table(t)
	j.Table(measures(r.Conflict, r.Conflict.Groups))

	j.Printf("%s: %s.\n\n%s", r.Method, r.Why, r.Recipe)
	for _, a := range r.Others {
		j.Printf("\n%s, where %s", a.Method, a.When)
		if command := recommendable[a.Method]; command != "" {
			j.Printf(": %s", command)
		}
	}
	j.Printf("\n")

	if o.Out == "" {
		return r, nil
	}
	return r, j.Write(o.Out, []byte(recommended+r.Recipe))
}

// recommendable are the commands that go with a method.
var recommendable = map[string]string{
	"regmean++": "compress merge statistics --kind regmean++", "mediate": "see compress conflict",
	"lora combine": "compress lora combine --method tsv_iso_core",
}

// recommended begins the recipes that are written, so that a later run may replace them, and no recipe of anybody else.
const recommended = "# compress merge recommend\n"

func isRecommended(path string) bool {
	f, err := safefile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()

	begin := make([]byte, len(recommended))
	_, err = io.ReadFull(f, begin)
	return err == nil && string(begin) == recommended
}
