package editevalcmd

import (
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval"
)

// show prints tables and sentences.
func show(j *cli.Job, r *editeval.Report) {
	for i := range r.Models {
		t := Table(r, &r.Models[i])
		if len(r.Models) > 1 {
			t.Title = r.Models[i].Name + ": " + t.Title
		}
		j.Table(t)
	}

	j.Table(cost(r))
	for _, s := range r.Summary {
		j.Printf("%s\n", s)
	}
}
