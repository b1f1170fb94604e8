package editcmd

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/report"
)

// table has the metrics before and after, with an interval of what they are after; figures that are no means
// over edits have none.
func table(r *edit.FolderReport) *report.Table {
	t := &report.Table{
		Columns: report.Columns("metric", "before|%.3f", "after|%.3f", "95 %"),
		Note:    "95 %: intervals over edits, Wilson's for fractions",
	}

	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		before, ok := r.Before[name]
		if !ok {
			continue
		}

		var span any
		if n := r.N[name]; n > 1 || n == 1 && !strings.HasSuffix(name, "_magnitude") { // one value has no spread
			i := editeval.IntervalOf(name, edit.Stat{Mean: r.Metrics[name], Stderr: r.Stderr[name], N: n})
			span = fmt.Sprintf("%.3f to %.3f", i.Low, i.High)
		}

		t.Add(name, before, r.Metrics[name], span)
	}

	return t
}
