package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// openRecipe leaves two numbers of a merge open.
const openRecipe = `merge_method: task_arithmetic
base_model: ../../testdata/nano/base
models:
- {model: ../../testdata/nano/tales, parameters: {weight: {search: [0, 1]}}}
- {model: ../../testdata/nano/sums, parameters: {weight: {search: [0, 1]}}}
`

// TestMergeSearches: killed midway and continued, or measured by processes that join and die, a search ends
// with the files of one that nothing happened to.
func TestMergeSearches(t *testing.T) {
	binary := program(t)
	dir := t.TempDir()
	recipe := filepath.Join(dir, "open.yaml")
	if err := os.WriteFile(recipe, []byte(openRecipe), 0o666); err != nil {
		t.Fatal(err)
	}

	args := func(out string, more ...string) []string {
		return append([]string{
			"merge", "search", recipe, "--data", "../../testdata/nano/text/valid.txt", "--seqlen", "32", "--limit", "4",
			"--generations", "3", "--seed", "3", "--threads", "2", "--out", out,
		}, more...)
	}

	want := filepath.Join(dir, "want")
	run1(t, binary, args(want, "--workers", "1")...)
	t.Run("killed", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		for i, lines := range []int{2, 9} {
			more := []string{"--quiet", "--workers", []string{"1", "2"}[i]}
			if i > 0 {
				more = append(more, "--resume")
			}

			stopWhen(t, exec.Command(binary, args(out, more...)...), syscall.SIGKILL, filepath.Dir(out), func() bool {
				data, _ := os.ReadFile(filepath.Join(out, "journal.jsonl"))
				return bytes.Count(data, []byte("\n")) >= lines
			})
		}

		run1(t, binary, args(out, "--resume")...)
		sameMergeSearch(t, out, want)
	})

	t.Run("workers", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		joinedMergeSearch(t, binary, args(out, "--workers", "-1", "--listen", "127.0.0.1:0"))
		sameMergeSearch(t, out, want)
	})
}

// joinedMergeSearch runs a search with two workers, of which one is killed when it has joined.
func joinedMergeSearch(t *testing.T, binary string, args []string) {
	t.Helper()
	var mu sync.Mutex
	var workers []*exec.Cmd
	joined := 0
	coordinator := exec.Command(binary, args...)
	coordinator.Env = append(os.Environ(), patience+"=3s") // the one that is killed may have a candidate
	wait := follow(t, coordinator, func(line string) {
		mu.Lock()
		defer mu.Unlock()

		if _, url, ok := strings.Cut(line, "--cluster "); ok {
			for range 2 {
				cmd := exec.Command(binary, "worker", "--cluster", url, "--workers", "1", "--threads", "1", "--quiet")
				if err := cmd.Start(); err != nil {
					t.Error(err)
					continue
				}
				workers = append(workers, cmd)
			}
		}

		if strings.Contains(line, "has joined") {
			joined++
			if joined == 2 {
				_ = workers[0].Process.Kill()
			}
		}
	})

	err := wait()
	mu.Lock()
	defer mu.Unlock()

	for _, w := range workers {
		_ = w.Process.Kill()
		_ = w.Wait() // it was killed
	}

	if err != nil {
		t.Fatal(err)
	}

	if joined == 0 {
		t.Error("no worker has joined")
	}
}

// sameMergeSearch compares the files of two searches, and checks that nothing else is left.
func sameMergeSearch(t *testing.T, got, want string) {
	t.Helper()
	entries, err := os.ReadDir(got)
	if err != nil || len(entries) != 2 {
		t.Errorf("%d files, want 2: %v", len(entries), err)
	}

	for _, name := range []string{"best.yaml", "journal.jsonl"} {
		a, errA := os.ReadFile(filepath.Join(got, name))
		b, errB := os.ReadFile(filepath.Join(want, name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs from that of an undisturbed search: %v %v", name, errA, errB)
		}
	}
}
