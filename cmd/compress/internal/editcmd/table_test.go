package editcmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/edit"
)

// TestTable: the main metrics before and after in plain words, with an interval; what was not measured before has no
// row, and nothing has an underscore.
func TestTable(t *testing.T) {
	r := &edit.FolderReport{
		Before: map[string]float64{"efficacy_success": 0, "efficacy_magnitude": -1, "paraphrase_success": 0.5},
		Metrics: map[string]float64{
			"efficacy_success": 1, "efficacy_magnitude": 2, "drift_kl": 3, "paraphrase_success": 1,
		},
		Stderr: map[string]float64{},
		N:      map[string]int{"efficacy_success": 1, "efficacy_magnitude": 1, "paraphrase_success": 0},
	}

	var out bytes.Buffer
	if err := table(r).Markdown(&out); err != nil {
		t.Fatal(err)
	}

	var rows []string
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, ": ") && strings.HasPrefix(line, "|") {
			rows = append(rows, strings.Join(strings.Fields(line), " "))
		}
	}
	want := []string{
		"| efficacy: new answer over old | 0 % | 100 % | 21 to 100 % |",
		"| paraphrases: new answer over old | 50 % | 100 % | |",
	}
	if got := strings.Join(rows, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("%s", got)
	}
}

// TestCheck: flags that are wrong by themselves are wrong use.
func TestCheck(t *testing.T) {
	fine := Options{FolderOptions: edit.FolderOptions{Out: "x", StatsTokens: 1}}
	fine.Method = "rome"
	if err := Check(fine); err != nil {
		t.Fatal(err)
	}

	for name, change := range map[string]func(o *Options){
		"count": func(o *Options) { o.Count = -1 }, "batch": func(o *Options) { o.Batch = -1 },
		"texts": func(o *Options) { o.Texts = -1 }, "tokens": func(o *Options) { o.StatsTokens = 0 },
		"method": func(o *Options) { o.Method = "knn" }, "one fact": func(o *Options) { o.Batch = 2 },
	} {
		o := fine
		change(&o)
		if err := Check(o); !cli.IsUsage(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
