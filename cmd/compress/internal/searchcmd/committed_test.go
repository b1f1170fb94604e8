package searchcmd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
)

const committed = "../../../../testdata/search"

// TestCommittedRun: the search that the repository shows is whole, and its test losses on the model that is in
// the repository come out again. Other instruction sets round otherwise, and a weight or two at the edge of a
// mask may then change places: 2e-3 nats.
func TestCommittedRun(t *testing.T) {
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(committed, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}

	r := &Report{}
	if err := json.Unmarshal(read(reportFile), r); err != nil {
		t.Fatal(err)
	}

	sum := sha256.Sum256(read(journalFile))
	if hex.EncodeToString(sum[:]) != r.JournalHash {
		t.Error("the journal is not that of the report")
	}

	if readme := read("README.md"); !bytes.Contains(readme, []byte(r.JournalHash)) ||
		!bytes.Contains(readme, []byte(r.Winner.Formula)) {
		t.Error("README.md names another journal or winner")
	}

	tree, err := gp.ParseJSON(read(bestFile))
	if err != nil || !tree.Equal(r.Winner.Tree) || tree.String() != r.Winner.Formula {
		t.Errorf("best.json is not the winner: %v", err)
	}

	remeasure(t, r, []string{"wanda", prune.FormulaPrefix + r.Winner.Formula})
}

// remeasure repeats the final test on the first model of a report.
func remeasure(t *testing.T, r *Report, metrics []string) {
	t.Helper()
	o := Options{
		Calib:   []string{filepath.Join("../../../..", r.Models[0].Data[0].Source)},
		Heldout: []string{filepath.Join("../../../..", r.Models[0].Data[3].Source)},
		Samples: r.Models[0].Data[0].Windows, SeqLen: r.Models[0].Data[0].SeqLen, Windows: r.Models[0].Data[3].Windows,
		Choose: r.Models[0].Data[4].Windows,
		Report: r.Models[0].Data[5].Windows, Sparsity: []string{"0.5", "0.6"},
		Pattern: []string{prune.Unstructured, "2:4"},
	}

	app := cli.New([]string{"again", "--quiet", "--seed", strconv.FormatUint(r.Seed, 10)}, io.Discard, os.Stderr)
	root := &cobra.Command{Use: "compress"}
	root.AddCommand(app.Verb(cli.Verb{Use: "again", Args: cobra.NoArgs, Run: func(j *cli.Job, _ []string) (any, error) {
		settings, err := o.settings()
		if err != nil {
			return nil, err
		}

		list, models, err := subjects(j, []string{filepath.Join("../../../..", r.Models[0].Path)}, &o, 1)
		if err != nil {
			return nil, err
		}

		for k, d := range models[0].Data {
			if d.Hash != r.Models[0].Data[k].Hash {
				t.Errorf("the %s data are not those of the report", d.Use)
			}
		}

		judge, err := fitness.NewJudge(j.Ctx, list, fitness.Options{Settings: settings, Windows: 2})
		if err != nil {
			return nil, err
		}

		for _, name := range metrics {
			m, err := judge.Measure(j.Ctx, fitness.Task{Judge: judge.ID(), Rung: fitness.Test, Metric: name})
			if err != nil {
				return nil, err
			}

			for k := range settings {
				c := r.Test[k]
				i := slices.IndexFunc(c.Metrics, func(m Tested) bool { return m.Metric == name })
				if want := c.Metrics[i].Loss; math.Abs(m.Values[k]-want) > 2e-3 {
					t.Errorf("%s, %s: loss %g, the report has %g", c.Name, name, m.Values[k], want)
				}
			}
		}

		return nil, judge.Close()
	}}))

	if code := app.Execute(t.Context(), root); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
