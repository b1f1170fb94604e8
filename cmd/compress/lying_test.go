package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
	"github.com/modelcompress/compress/cmd/compress/internal/searchcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/jobs"
	mergesearch "github.com/modelcompress/compress/merge/search"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
)

// joinLine calls join once with the flags of the command line by which workers can join, when it is printed.
type joinLine struct {
	mu   sync.Mutex
	text bytes.Buffer
	join func(flags []string)
}

func (j *joinLine) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()

	j.text.Write(p)
	_, rest, found := strings.Cut(j.text.String(), "can join with: compress worker ")
	if line, _, whole := strings.Cut(rest, "\n"); found && whole && j.join != nil {
		j.join(strings.Fields(line))
		j.join = nil
	}

	return len(p), nil
}

// lie is what a worker makes of a true result.
type lie func(t *testing.T, item, result []byte) []byte

// runLying runs a verb all of whose work is done by one worker elsewhere, which does it and lies about what came out.
// It returns the exit code and what was printed as errors.
func runLying(t *testing.T, args []string, twist lie) (code int, stderr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	errs := &joinLine{join: func(flags []string) {
		wg.Go(func() { lieAt(ctx, t, flags, twist) })
	}}

	code = run(append(args, "--workers", "-1", "--listen", "127.0.0.1:0", "--threads", "1"), io.Discard, errs)
	cancel()
	wg.Wait()

	return code, errs.text.String()
}

// lieAt is the verb worker of a liar.
func lieAt(ctx context.Context, t *testing.T, flags []string, twist lie) {
	lying := func(open workers.Opener) workers.Opener {
		return func(ctx context.Context, w *workers.Worker, spec []byte) (jobs.Handler, func(), error) {
			honest, free, err := open(ctx, w, spec)
			if err != nil {
				return nil, nil, err
			}
			return func(ctx context.Context, it jobs.Item) ([]byte, error) {
				data, err := honest(ctx, it)
				if err != nil {
					return nil, err
				}
				return twist(t, it.Data, data), nil
			}, free, nil
		}
	}

	var o workers.WorkerOptions
	app := cli.New(append([]string{"worker", "--quiet", "--threads", "1"}, flags...), io.Discard, io.Discard)
	cmd := app.Verb(cli.Verb{Use: "worker", Args: cobra.NoArgs, Run: func(j *cli.Job, _ []string) (any, error) {
		return workers.Work(j, o, map[string]workers.Opener{
			searchcmd.Kind: lying(searchcmd.Serve), mergecmd.SearchKind: lying(mergecmd.ServeSearch),
		})
	}})
	cmd.Flags().StringVar(&o.Cluster, "cluster", "", "")
	top := &cobra.Command{Use: "compress"}
	top.AddCommand(cmd)
	app.Execute(ctx, top) // until it is interrupted
}

// better is a lie about formulas on one rung: half of the loss. Halves keep every sum exact, so that nothing but
// another measurement gives it away.
func better(rung fitness.Rung) lie {
	return func(t *testing.T, item, result []byte) []byte {
		var task fitness.Task
		var m fitness.Measure
		if err := errors.Join(json.Unmarshal(item, &task), json.Unmarshal(result, &m)); err != nil {
			t.Error(err)
		}
		if task.Rung != rung || !strings.HasPrefix(task.Metric, prune.FormulaPrefix) {
			return result
		}

		for k := range m.Values {
			m.Values[k] /= 2
			for i := range m.Windows[k] {
				m.Windows[k][i] /= 2
			}
		}

		text, err := json.Marshal(m)
		if err != nil {
			t.Error(err)
		}
		return text
	}
}

// TestLyingWorkers: a result can be one by its form and false. What a search ends with is measured again by the
// coordinator before it is written, so that a worker that gives itself a better candidate than there is ends the search
// and leaves no winner.
func TestLyingWorkers(t *testing.T) {
	recipe := filepath.Join(t.TempDir(), "open.yaml")
	if err := os.WriteFile(recipe, []byte(openRecipe), 0o666); err != nil {
		t.Fatal(err)
	}

	mergeSearch := []string{
		"merge", "search", recipe, "--data", "../../testdata/nano/text/valid.txt", "--seqlen", "32", "--limit", "2",
		"--generations", "1", "--population", "4",
	}
	search := []string{
		"search", "../../testdata/nano/base", "--calib", "../../testdata/nano/text/calib.txt", "--heldout",
		"../../testdata/nano/text/valid.txt", "--samples", "2", "--seqlen", "16", "--windows", "1", "--few", "1",
		"--select-windows", "2", "--test-windows", "2", "--sparsity", "0.8", "--population", "3", "--generations",
		"0", "--blocks", "1",
	}

	for name, c := range map[string]struct {
		args         []string
		twist        lie
		said, winner string
	}{
		"merge search": {mergeSearch, func(t *testing.T, _, result []byte) []byte {
			var r mergesearch.Rating
			if err := json.Unmarshal(result, &r); err != nil {
				t.Error(err)
			}
			r.Score /= 2

			text, err := json.Marshal(r)
			if err != nil {
				t.Error(err)
			}
			return text
		}, "a score that a worker gave is not true", mergesearch.BestName},
		"search, selection": {
			search, better(fitness.Select), "rung select: a measurement that a worker gave is not true", "best.json",
		},
		"search, test": {
			search, better(fitness.Test), "rung test: a measurement that a worker gave is not true", "best.json",
		},
	} {
		out := filepath.Join(t.TempDir(), "out")
		code, stderr := runLying(t, append(c.args, "--out", out), c.twist)
		if code != 1 || !strings.Contains(stderr, c.said) {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
		if _, err := os.Stat(filepath.Join(out, c.winner)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: there is a winner: %v", name, err)
		}
	}

	// The same worker that tells the truth.
	out := filepath.Join(t.TempDir(), "out")
	code, stderr := runLying(t, append(mergeSearch, "--out", out),
		func(_ *testing.T, _, result []byte) []byte { return result })
	if _, err := os.Stat(filepath.Join(out, mergesearch.BestName)); code != 0 || err != nil {
		t.Errorf("an honest worker: exit code %d, %v: %s", code, err, stderr)
	}
}
