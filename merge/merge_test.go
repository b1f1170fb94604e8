package merge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/system/systemtest"
	"github.com/modelcompress/compress/merge/internal/mergetest"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

const nano = "../testdata/nano/"

// nanoRecipe merges the project's tiny experts.
const nanoRecipe = `
merge_method: dare_ties
base_model: ` + nano + `base
models:
  - model: ` + nano + `sums
    parameters: {weight: 0.6, density: 0.5}
  - model: ` + nano + `news
    parameters: {weight: 0.4, density: 0.7}
dtype: float32
out_dtype: bfloat16
`

func parse(t testing.TB, text string) Recipe {
	t.Helper()
	r, err := Parse("recipe.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// leftovers fails if anything but the named entries is in a folder.
func leftovers(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("%s holds %v, want %v", dir, names, want)
	}
}

// TestSameBytes: workers, memory and resumption leave the bytes as they are; shards only distribute them.
func TestSameBytes(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, o Options) string {
		out := filepath.Join(dir, name)
		if _, err := Models(t.Context(), parse(t, nanoRecipe), out, o); err != nil {
			t.Fatal(err)
		}
		return out
	}

	one := run("one", Options{Threads: 1})
	mergetest.Same(t, run("five", Options{Threads: 5, Memory: 64 << 20}), one)
	sharded, err := safetensors.OpenDir(run("sharded", Options{MaxShard: 1 << 16}))
	if err != nil {
		t.Fatal(err)
	}
	defer sharded.Close()

	single, err := safetensors.OpenDir(one)
	if err != nil {
		t.Fatal(err)
	}
	defer single.Close()

	if len(sharded.Shards()) < 2 {
		t.Errorf("%d shards", len(sharded.Shards()))
	}

	for _, name := range single.Names() {
		a, _ := sharded.Bytes(name)
		b, _ := single.Bytes(name)
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs between shards and a single file", name)
		}
	}

	again, err := Models(t.Context(), parse(t, nanoRecipe), one, Options{Resume: true})
	if err != nil || again.Method != "dare_ties" {
		t.Errorf("resuming a finished merge: %v, %v", again, err)
	}

	if _, err := Models(t.Context(), parse(t, nanoRecipe), one, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("existing output: %v", err)
	}
	if _, err := Models(t.Context(), parse(t, nanoRecipe), one, Options{Overwrite: true, Seed: 1}); err != nil {
		t.Error(err)
	}

	leftovers(t, dir, "five", "one", "sharded")
}

// killedRecipe has thresholds that differences equal: what is counted of them outlives an interruption.
var killedRecipe = strings.Replace(nanoRecipe, "dare_ties", "ties", 1)

// TestKilled kills a merge twice, each time once its journal has grown, and continues to the same bytes.
func TestKilled(t *testing.T) {
	if out := os.Getenv("MERGE_TEST_KILLED"); out != "" {
		journal := filepath.Join(filepath.Dir(out), ".out.partial", "journal.jsonl")
		lines := func() int {
			text, _ := os.ReadFile(journal) // not there yet: no lines
			return bytes.Count(text, []byte("\n"))
		}

		before := max(1, lines())
		_, err := Models(t.Context(), parse(t, killedRecipe), out,
			Options{Threads: 2, Resume: true, journalEvery: 1, Progress: func(p Progress) {
				if lines() > before || p.Done == p.Total {
					_ = systemtest.Kill(os.Getpid())
				}
			}})

		t.Fatalf("was to be killed: %v", err)
	}

	dir := t.TempDir()
	out, whole := filepath.Join(dir, "out"), filepath.Join(dir, "whole")
	for i := range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "MERGE_TEST_KILLED="+out)
		text, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("run %d was not killed: %v\n%s", i, err, text)
		}
		leftovers(t, dir, ".out.partial")
	}

	if _, err := Models(t.Context(), parse(t, killedRecipe), out, Options{Resume: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := Models(t.Context(), parse(t, killedRecipe), whole, Options{}); err != nil {
		t.Fatal(err)
	}

	mergetest.Same(t, out, whole)
	if r, err := readReport(whole); err != nil || r.Ties == nil || len(r.Ties.Tensors) < 10 {
		t.Errorf("%v: ties are %+v", err, r.Ties)
	}

	leftovers(t, dir, "out", "whole")
}

// TestDiskEndsMidway: where the disk takes no more after 60 %, the error is that of the system, nothing is
// under the final name, and a resume continues to the same bytes.
func TestDiskEndsMidway(t *testing.T) {
	text := "merge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]\n"
	if dir := os.Getenv("MERGE_TEST_DISK"); dir != "" {
		r, err := Parse(filepath.Join(dir, "recipe.yaml"), []byte(text))
		if err != nil {
			t.Fatal(err)
		}

		limited := false
		_, err = Models(t.Context(), r, filepath.Join(dir, "out"),
			Options{Threads: 1, journalEvery: 1, Progress: func(p Progress) {
				if !limited {
					limited = true
					if err := systemtest.LimitFiles(uint64(p.Total) * 6 / 10); err != nil {
						t.Error(err)
					}
				}
			}})
		if !errors.Is(err, syscall.EFBIG) {
			t.Fatalf("the disk was to end: %v", err)
		}

		return
	}

	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		bigModel(t, filepath.Join(dir, name), 2, 512, 8192)
	}

	cmd := exec.Command(os.Args[0], "-test.run=^TestDiskEndsMidway$")
	cmd.Env = append(os.Environ(), "MERGE_TEST_DISK="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	leftovers(t, dir, ".out.partial", "a", "b")
	r, err := Parse(filepath.Join(dir, "recipe.yaml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	for name, o := range map[string]Options{"out": {Resume: true}, "whole": {}} {
		if _, err := Models(t.Context(), r, filepath.Join(dir, name), o); err != nil {
			t.Fatal(err)
		}
	}

	mergetest.Same(t, filepath.Join(dir, "out"), filepath.Join(dir, "whole"))
}

// TestCancelled: an interrupt keeps what is done, another recipe does not take it up, and a resume continues.
func TestCancelled(t *testing.T) {
	dir := t.TempDir()
	out, whole := filepath.Join(dir, "out"), filepath.Join(dir, "whole")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Models(ctx, parse(t, nanoRecipe), out, Options{Progress: func(p Progress) {
		if p.Done > p.Total/3 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Skipf("the merge was faster than its interruption: %v", err)
	}

	leftovers(t, dir, ".out.partial")

	if _, err := Models(t.Context(), parse(t, nanoRecipe), out, Options{Resume: true, Seed: 3}); !errors.Is(err,
		ErrOtherJob) {
		t.Errorf("resuming another merge: %v", err)
	}

	for _, d := range []string{out, whole} {
		if _, err := Models(t.Context(), parse(t, nanoRecipe), d, Options{Resume: true}); err != nil {
			t.Fatal(err)
		}
	}

	mergetest.Same(t, out, whole)
}

// damaged copies a nano expert and changes one value of one tensor.
func damaged(t *testing.T, value float64) (dir, tensor string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "damaged")
	if err := os.CopyFS(dir, os.DirFS(nano+"sums")); err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(dir, "model.safetensors")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}

	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	info, _ := f.Info(f.Names()[3])
	buf := make([]byte, info.Size/info.Elements())
	if err := stream.Narrow(buf, []float32{float32(value)}, info.DType); err != nil {
		t.Fatal(err)
	}

	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	if _, err := w.WriteAt(buf, info.Offset+5*int64(len(buf))); err != nil {
		t.Fatal(err)
	}

	return dir, info.Name
}

// TestNonFinite: NaN and infinity in an input are named and counted, refused by default, and merged on request.
func TestNonFinite(t *testing.T) {
	for _, value := range []float64{math.NaN(), math.Inf(-1)} {
		dir, tensor := damaged(t, value)
		text := strings.Replace(nanoRecipe, nano+"sums", dir, 1)
		for _, recipe := range []string{text, strings.Replace(text, "dare_ties", "task_arithmetic", 1)} {
			out := filepath.Join(t.TempDir(), "out")
			_, err := Models(t.Context(), parse(t, recipe), out, Options{})
			var n stream.NonFinite
			if !errors.Is(err, ErrNonFinite) || !errors.As(err, &n) || n.Tensor != tensor || n.Model != dir ||
				n.NaN+n.Inf != 1 || n.First != 5 {
				t.Fatalf("%v: %v", value, err)
			}

			leftovers(t, filepath.Dir(out))
			report, err := Models(t.Context(), parse(t, recipe), out, Options{AllowNonFinite: true})
			if err != nil || len(report.NonFinite) != 1 {
				t.Fatalf("allowed %v: %v", value, err)
			}
		}
	}
}

// TestRefused: what cannot be merged ends in an error of its kind, and nothing is left.
func TestRefused(t *testing.T) {
	narrow := filepath.Join("..", "testdata", "nano", "base")
	for name, c := range map[string]struct {
		recipe string
		o      Options
		want   error
		text   string
	}{
		"zero weights": {
			"merge_method: linear\nmodels: [{model: " + narrow + ", parameters: {weight: 1}}, {model: " + nano +
				"sums, parameters: {weight: -1}}]", Options{}, ErrRecipe, "recipe.yaml:2:",
		},
		"memory": {nanoRecipe, Options{Memory: 1 << 16}, ErrMemory, "needs"},
		"method": {
			"merge_method: tides\nmodels: [{model: " + narrow + "}]",
			Options{},
			ErrRecipe,
			"recipe.yaml:1:15: unknown merge_method",
		},
		"ranges": {
			"merge_method: passthrough\nslices:\n- sources: [{model: " + narrow +
				", layer_range: [0, 9]}]\n- sources: [{model: " + narrow + ", layer_range: [3, 2]}]\n",
			Options{},
			ErrRecipe, "it has 4\nrecipe.yaml:4:",
		},
		"option": {nanoRecipe, Options{DType: "float8", Threads: -1, MaxShard: -1}, ErrOption, "float8"},
		"no model": {
			"merge_method: linear\nmodels: [{model: ./nothing-here, parameters: {weight: 1}}]",
			Options{},
			nil, "nothing-here",
		},
		"epsilon": {strings.Replace(strings.Replace(nanoRecipe, "dare_ties", "della", 1), "density: 0.5",
			"density: 0.5, epsilon: 0.6", 1), Options{}, ErrRecipe, "epsilon is 0.6"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r, err := Parse("recipe.yaml", []byte(c.recipe))
			if err == nil {
				_, err = Models(t.Context(), r, filepath.Join(dir, "out"), c.o)
			}
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error is %v", err)
			}
			leftovers(t, dir)
		})
	}
}

// TestInPlace: an input is never the output, nor does it get a folder more.
func TestInPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(nano+"sums")); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(nanoRecipe, nano+"sums", dir, 1)
	if _, err := Models(t.Context(), parse(t, text), dir, Options{Overwrite: true}); !errors.Is(err, ErrInPlace) {
		t.Error(err)
	}

	within := filepath.Join(dir, "sub")
	if _, err := Models(t.Context(), parse(t, text), within, Options{}); !errors.Is(err, stage.ErrTarget) {
		t.Error(err)
	}
	if _, err := os.Stat(within); err == nil {
		t.Error("the input has a folder more")
	}
}

// TestCheck: a dry run says what will be read, written and needed.
func TestCheck(t *testing.T) {
	s, err := Check(t.Context(), parse(t, nanoRecipe), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Tensors != len(s.Plan) || s.BytesOut == 0 || s.BytesIn <= s.BytesOut || s.Memory <= 0 ||
		s.Memory > DefaultMemory {
		t.Errorf("%+v", s)
	}
}

// TestDocuments: a recipe of two documents merges the first beside the output and uses it by name.
func TestDocuments(t *testing.T) {
	dir := t.TempDir()
	text := "name: half\nmerge_method: linear\nmodels: [{model: " + nano + "sums, parameters: {weight: 1}}, {model: " +
		nano + "news, parameters: {weight: 1}}]\ndtype: float32\n---\n" +
		"merge_method: slerp\nbase_model: " + nano + "base\nmodels: [{model: " + nano +
		"base}, {model: half}]\nparameters: {t: 0.5}\n"

	out := filepath.Join(dir, "out")
	if _, err := Models(t.Context(), parse(t, text), out, Options{}); err != nil {
		t.Fatal(err)
	}

	leftovers(t, dir, "out")
}

// TestWarningsReported: what building a tokenizer warns of is in the report of a merge, as it is in its plan.
func TestWarningsReported(t *testing.T) {
	r := parse(t, nanoRecipe+"chat_template: auto\n")
	plan, err := Check(t.Context(), r, Options{})
	if err != nil {
		t.Fatal(err)
	}

	report, err := Models(t.Context(), r, filepath.Join(t.TempDir(), "out"), Options{})
	if err != nil {
		t.Fatal(err)
	}

	if fmt.Sprint(report.Warnings) != fmt.Sprint(plan.Warnings) ||
		!strings.Contains(fmt.Sprint(report.Warnings), "no model has a chat template") {
		t.Errorf("%q, planned were %q", report.Warnings, plan.Warnings)
	}
}

// TestMediateNeedsAMediator: a document by mediate is refused without one, and before anything is written.
func TestMediateNeedsAMediator(t *testing.T) {
	r := parse(t, "merge_method: mediate\nbase_model: "+nano+"base\nmodels: [{model: "+nano+"sums}]\n")
	dir := t.TempDir()
	if _, err := Models(t.Context(), r, filepath.Join(dir, "out"), Options{}); !errors.Is(err, ErrOption) {
		t.Errorf("%v", err)
	}
	if _, err := Check(t.Context(), r, Options{}); !errors.Is(err, ErrOption) {
		t.Errorf("%v", err)
	}
	leftovers(t, dir)
}
