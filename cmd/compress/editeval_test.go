package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// studyArgs is a run of the plan that takes seconds.
func studyArgs(out string, more ...string) []string {
	return append([]string{"editeval", "testdata/editeval/nano.yaml", "--threads", "1", "--quiet", "--out", out},
		more...)
}

// studyFiles are the contents of a folder of results, without times.
func studyFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		if out[name] = string(text); name == "timings.json" {
			out[name] = ""
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// TestStudyKilled: a study that was killed during its first, second and third sequence continues to the bytes
// of one that was not, with another number of workers.
func TestStudyKilled(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	run1(t, binary, studyArgs(filepath.Join(dir, "want"))...)

	want := studyFiles(t, filepath.Join(dir, "want"))
	midway := 0
	for i, point := range []string{
		".editeval/sequences/base/ft/seed-0/state.json",
		"sequences/base/memit/seed-0/edits-1/base/results.json", "sequences/base/grace/seed-0/edits-4",
	} {
		out := filepath.Join(dir, string(rune('a'+i)))
		_, _, stopped := stopWhen(t, exec.Command(binary, studyArgs(out)...), syscall.SIGKILL, dir, func() bool {
			_, err := os.Stat(filepath.Join(out, point))
			return err == nil
		})

		if stopped {
			midway++
		}

		run1(t, binary, studyArgs(out, "--resume", "--workers", []string{"1", "2", "1"}[i])...)
		got := studyFiles(t, out)
		for name := range want {
			if got[name] != want[name] {
				t.Errorf("killed at %s: %s differs", point, name)
			}
		}

		if len(got) != len(want) {
			t.Errorf("killed at %s: %d files, want %d", point, len(got), len(want))
		}
	}

	if midway == 0 {
		t.Skip("every run ended before its signal: nothing was tested")
	}
}

// TestStudyElsewhere: workers of other processes give the files of a run alone. A worker that is interrupted
// reports what it has done.
func TestStudyElsewhere(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	run1(t, binary, studyArgs(filepath.Join(dir, "want"))...)
	out := filepath.Join(dir, "out")
	args := slices.DeleteFunc(studyArgs(out, "--workers", "-1", "--listen", "127.0.0.1:0"),
		func(a string) bool { return a == "--quiet" })
	var worker *exec.Cmd
	joined := false
	err := follow(t, exec.Command(binary, args...), func(line string) {
		if _, url, ok := strings.Cut(line, "--cluster "); ok && worker == nil {
			worker = exec.Command(binary, "worker", "--cluster", url, "--workers", "2", "--threads", "1", "--quiet",
				"--report", "worker.json")
			worker.Dir = dir // paths count from where the coordinator is
			if err := worker.Start(); err != nil {
				t.Error(err)
			}
		}
		joined = joined || strings.Contains(line, "has joined")
	})()

	if worker != nil {
		_ = worker.Process.Signal(os.Interrupt)
		err := worker.Wait()
		if worker.ProcessState.ExitCode() != 130 {
			t.Errorf("the worker: %v", err)
		}
		checkWorkerReport(t, filepath.Join(dir, "worker.json"))
	}

	if err != nil {
		t.Fatal(err)
	}

	if !joined {
		t.Error("nobody has joined")
	}

	want, got := studyFiles(t, filepath.Join(dir, "want")), studyFiles(t, out)
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s differs", name)
		}
	}

	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
}

// checkWorkerReport: a worker's report fits its schema and says what was done.
func checkWorkerReport(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	schema, err := os.ReadFile(filepath.Join(schemaFolder, "worker.schema.json"))
	if err != nil {
		t.Fatal(err)
	}

	if err := fits(schema, text, "worker"); err != nil {
		t.Error(err)
	}

	var r struct{ Served []struct{ Items int } }
	if err := json.Unmarshal(text, &r); err != nil || len(r.Served) != 1 || r.Served[0].Items == 0 {
		t.Errorf("%v: %s", err, text)
	}
}
