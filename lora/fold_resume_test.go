package lora

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/peft"
)

// childKey is the environment variable that makes this program fold and kill itself.
const childKey = "COMPRESS_TEST_FOLD"

func TestMain(m *testing.M) {
	if where := os.Getenv(childKey); where != "" {
		os.Exit(child(where))
	}
	os.Exit(m.Run())
}

// child folds into the folder where, and kills itself once as many tensors are written as the next argument says.
func child(where string) int {
	after, err := strconv.Atoi(os.Getenv(childKey + "_AFTER"))
	if err != nil {
		return 3
	}

	seen := 0
	_, err = foldNano(context.Background(), filepath.Join(filepath.Dir(where), "adapter"), where,
		FoldOptions{Progress: func(string, int64, int64) {
			seen++
			if seen == after {
				if err := systemtest.Kill(os.Getpid()); err != nil {
					os.Exit(4)
				}
				select {}
			}
		}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// foldNano folds the adapter in a folder into the small base, with an entry of the journal for every tensor.
func foldNano(ctx context.Context, dir, out string, o FoldOptions) (*FoldReport, error) {
	o.Resume = true
	if o.batch == 0 {
		o.batch = 1
	}
	return Fold(ctx, nano, dir, out, o)
}

// writeSample writes an adapter of the small base: token table and some matrices, by DoRA's rule if so asked.
func writeSample(t *testing.T, dir string, dora bool) {
	t.Helper()
	c, err := adapter.OpenCheckpoint(t.Context(), nano)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	a := &adapter.Adapter{Config: adapter.Config{
		Kind: adapter.LoRA, Rank: 2, Alpha: 4, DoRA: dora,
		Targets: adapter.Match{Names: []string{"q_proj", "down_proj", "embed_tokens"}},
	}}
	list, err := a.Config.Chosen(c.Modules)
	if err != nil {
		t.Fatal(err)
	}

	state := uint32(1)
	fill := func(p *adapter.Param) *adapter.Param {
		for i := range p.Data() {
			state = state*1664525 + 1013904223
			p.Data()[i] = float32(state>>8)/(1<<24) - 0.45
		}
		return p
	}

	for _, m := range list {
		l := &adapter.Low{Module: m, Rank: 2, Alpha: 4, Scale: 2, Factors: adapter.Plain{
			A: fill(adapter.NewParam("A", 2, m.In)), B: fill(adapter.NewParam("B", m.Out, 2)),
		}}
		if dora {
			l.Magnitude = fill(adapter.NewParam("m", 1, m.Out))
		}

		a.Low = append(a.Low, l)
	}

	if err := peft.Write(dir, a, peft.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// filesOf are the files of a folder.
func filesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	files := map[string][]byte{}
	for _, e := range list {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}

	return files
}

func sameFolder(t *testing.T, what string, got, want map[string][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d files, want %d", what, len(got), len(want))
	}
	for name, data := range want {
		if !bytes.Equal(got[name], data) {
			t.Errorf("%s: %s differs", what, name)
		}
	}
}

// TestFoldKillAndResume: a process that is killed with SIGKILL after any tensor leaves what a second run continues
// to the same bytes.
func TestFoldKillAndResume(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	writeSample(t, filepath.Join(dir, "adapter"), true)
	whole := filepath.Join(dir, "whole")
	if _, err := foldNano(t.Context(), filepath.Join(dir, "adapter"), whole, FoldOptions{}); err != nil {
		t.Fatal(err)
	}

	want := filesOf(t, whole)
	for _, after := range []int{1, 9, 38, 39} {
		out := filepath.Join(dir, fmt.Sprint("out", after))
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childKey+"="+out, childKey+"_AFTER="+fmt.Sprint(after))
		text, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("killed after %d tensors: %v: %s", after, err, text)
		}

		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("killed after %d tensors: %s is there", after, out)
		}

		r, err := foldNano(t.Context(), filepath.Join(dir, "adapter"), out, FoldOptions{})
		if err != nil {
			t.Fatal(err)
		}

		if after > 9 && r.Resumed == 0 {
			t.Errorf("killed after %d tensors: nothing was continued", after)
		}

		sameFolder(t, fmt.Sprintf("killed after %d tensors", after), filesOf(t, out), want)
	}
}

// TestFoldCancel: a cancelled run is continued; one of another job is refused.
func TestFoldCancel(t *testing.T) {
	dir := t.TempDir()
	writeSample(t, filepath.Join(dir, "adapter"), false)
	ctx, cancel := context.WithCancel(t.Context())
	out := filepath.Join(dir, "out")
	_, err := foldNano(ctx, filepath.Join(dir, "adapter"), out, FoldOptions{Progress: func(_ string, done, _ int64) {
		if done > 100000 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	if _, err := foldNano(t.Context(), filepath.Join(dir, "adapter"), out, FoldOptions{Safe: true}); !errors.Is(err,
		lm.ErrOtherJob) {
		t.Errorf("a resume of another job: %v", err)
	}

	r, err := foldNano(t.Context(), filepath.Join(dir, "adapter"), out, FoldOptions{})
	if err != nil || r.Edited != 10 || !r.Untied {
		t.Errorf("%+v, %v", r, err)
	}

	r, err = foldNano(t.Context(), filepath.Join(dir, "adapter"), out, FoldOptions{})
	if err != nil || r.Resumed != 10 {
		t.Errorf("complete: %+v, %v", r, err)
	}
}

// TestFoldThreads: the bytes do not depend on the number of threads, nor on how matrices are cut into blocks.
func TestFoldThreads(t *testing.T) {
	for _, dora := range []bool{false, true} {
		dir := t.TempDir()
		writeSample(t, filepath.Join(dir, "adapter"), dora)

		var want map[string][]byte
		for _, threads := range []int{1, 2, 3, 7} {
			out := filepath.Join(dir, fmt.Sprint(threads))
			o := FoldOptions{Threads: threads, batch: 1 << 30}
			if !dora { // the norms of DoRA are added up block by block
				o.block = 700 * (threads - 1)
			}
			if _, err := foldNano(t.Context(), filepath.Join(dir, "adapter"), out, o); err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = filesOf(t, out)
			}

			sameFolder(t, fmt.Sprintf("%d threads", threads), filesOf(t, out), want)
		}
	}
}
