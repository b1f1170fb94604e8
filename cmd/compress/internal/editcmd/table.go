package editcmd

import (
	"fmt"

	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/report"
)

// rows are the figures of the table on the terminal, in the words of the field; the report has the others.
var rows = []struct{ metric, name string }{
	{"efficacy_success", "efficacy: new answer over old"},
	{"efficacy_exact", "efficacy: new answer word for word"},
	{"paraphrase_success", "paraphrases: new answer over old"},
	{"neighborhood_success", "neighbours: old answer over new"},
	{"locality_accuracy", "locality: other answers kept"},
	{"portability_accuracy", "portability: what follows from it"},
}

// table has the main metrics before and after, as percentages of the facts, with an interval of what they are after.
func table(r *edit.FolderReport) *report.Table {
	t := &report.Table{
		Columns: report.Columns("", "before|%.0f %%", "after|%.0f %%", "95 %"),
		Note:    "95 %: interval over facts; --report FILE and --json have all metrics",
	}

	for _, row := range rows {
		before, ok := r.Before[row.metric]
		if !ok {
			continue
		}

		after := r.Metrics[row.metric]
		var span any
		if n := r.N[row.metric]; n > 0 {
			i := editeval.IntervalOf(row.metric, edit.Stat{Mean: after, Stderr: r.Stderr[row.metric], N: n})
			span = fmt.Sprintf("%.0f to %.0f %%", 100*i.Low, 100*i.High)
		}

		t.Add(row.name, 100*before, 100*after, span)
	}

	return t
}
