package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// graphRun is a run of the example plan in a folder of its own, so that the paths in the outputs are the same in all.
func graphRun(t *testing.T, binary, dir string, more ...string) *exec.Cmd {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}

	plan, errA := filepath.Abs("testdata/run/nano.yaml")
	nano, errB := filepath.Abs("../../testdata/nano")
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}

	cmd := exec.Command(binary,
		append([]string{"run", plan, "--var", "nano=" + nano, "--out", "built", "--threads", "1", "--quiet"},
			more...)...)
	cmd.Dir = dir
	return cmd
}

// timed are parts of files that differ from run to run: times, and merge's name of its inputs, which has the
// times of files in it.
var timed = regexp.MustCompile(
	`"(started|date|job|seconds|[a-z_]*_seconds|[a-z_]*_per_second|total_evaluation_time_seconds|start_time|end_time|peak_memory_bytes)": *("[^"]*"|[-+.0-9e]+)`)

// graphFiles are the contents of the outputs in a folder of a run, without times. Logs and pages of curves,
// which have times, are left out.
func graphFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(filepath.Join(dir, "built"), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".run":
			return fs.SkipDir
		case d.IsDir(), strings.HasSuffix(path, ".log"), strings.HasSuffix(path, ".html"), d.Name() == "training.json",
			strings.HasSuffix(d.Name(), "report.json"):
			return nil
		}

		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[name] = string(text)
		if filepath.Ext(path) == ".json" {
			out[name] = timed.ReplaceAllString(string(text), "")
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func compareGraphs(t *testing.T, what string, want, got map[string]string) {
	t.Helper()
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %s differs or is missing", what, name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d files, want %d", what, len(got), len(want))
	}
}

func runGraph(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestGraphKilled: a run whose process, or the process of one of whose jobs, was killed in the middle of
// pruning, training, scoring and between jobs goes on to the bytes of one that was left alone, and so does one
// that was interrupted.
func TestGraphKilled(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	runGraph(t, graphRun(t, binary, filepath.Join(dir, "want"), "--workers", "2"))
	want := graphFiles(t, filepath.Join(dir, "want"))
	if len(want) < 25 {
		t.Fatalf("only %d files", len(want))
	}

	midway := 0
	for i, point := range []struct {
		file   string
		signal syscall.Signal
		child  bool // the job's process gets the signal
	}{
		{".prune-wanda-0.5.partial/journal.jsonl", syscall.SIGKILL, false},
		{"prune-wanda-0.5", syscall.SIGKILL, false},
		{".adapt.training/state-00000002.safetensors", syscall.SIGKILL, true},
		{".adapt.training/state-00000004.safetensors", syscall.SIGINT, false},
		{"score.log", syscall.SIGKILL, false},
	} {
		name := fmt.Sprintf("%v at %s", point.signal, point.file)
		home := filepath.Join(dir, strconv.Itoa(i))
		cmd := graphRun(t, binary, home)
		code := 0

		stderr := ""
		stopped := false
		due := func() bool { return exists(filepath.Join(home, "built", point.file)) }
		if point.child {
			stopped = killChild(t, cmd, dir, due)
		} else {
			code, stderr, stopped = stopWhen(t, cmd, point.signal, dir, due)
		}

		if stopped {
			midway++
		}

		if stopped && point.signal == syscall.SIGINT &&
			(code != 130 || !strings.Contains(stderr, "--resume continues")) {
			t.Errorf("%s: exit code %d, %q", name, code, stderr)
		}

		more := [][]string{nil, {"--resume"}, {"--workers", "3"}}[i%3]
		runGraph(t, graphRun(t, binary, home, more...))
		compareGraphs(t, name, want, graphFiles(t, home))
		if i > 0 {
			continue
		}
		if out := runGraph(t, graphRun(t, binary, home)); strings.Count(out, " kept ") != 8 {
			t.Errorf("%s: once more:\n%s", name, out)
		}
	}

	if midway == 0 {
		t.Skip("every run ended before its signal: nothing was tested")
	}

	t.Logf("%d of 5 runs were stopped midway", midway)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// killChild runs a command, kills its child process once something is the case, and reports whether that was
// before the end. The command then has to fail and to say why.
func killChild(t *testing.T, cmd *exec.Cmd, dir string, due func() bool) bool {
	t.Helper()
	var text bytes.Buffer
	cmd.Stderr = &text
	ended := startUntil(t, cmd, dir, due)
	select {
	case err := <-ended:
		t.Logf("the run ended before its signal: %v", err)
		return false
	default:
	}

	killed := false
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	for _, file := range tasks {
		list, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				killed = systemtest.Kill(pid) == nil || killed
			}
		}
	}

	err := <-ended
	if killed && err != nil && (!strings.Contains(text.String(), "was ended by the signal killed") ||
		strings.Count(text.String(), "\n") != 1) {
		t.Errorf("%v: %s", err, text.String())
	}

	return killed && err != nil
}

// TestGraphElsewhere: a worker of another process joins by the line that the coordinator prints, does all jobs, and the
// coordinator takes what it did for done. Others could reach the address for all that the coordinator knows (it is
// loopback by a name that is not known to be), so that the line has a token and the fingerprint of a certificate.
func TestGraphElsewhere(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	home := filepath.Join(dir, "out")
	cmd := graphRun(t, binary, home, "--workers", "-1", "--listen", "LOCALHOST:0", "--quiet=false")
	var worker *exec.Cmd
	ran := map[string]bool{}
	err := follow(t, cmd, func(line string) {
		if _, args, ok := strings.Cut(line, "can join with: compress "); ok && worker == nil {
			if !strings.Contains(args, " --cluster tls://worker:") || !strings.Contains(args, " --cluster-pin sha256:") {
				t.Errorf("no token, or no fingerprint: %s", line)
			}

			words := append(strings.Fields(args), "--workers", "2", "--threads", "2", "--quiet")
			worker = exec.Command(binary, words...)
			worker.Dir = dir // paths count from where the coordinator is
			if err := worker.Start(); err != nil {
				t.Error(err)
			}
		}

		if job, ok := strings.CutSuffix(line, ": running"); ok {
			ran[job] = true
		}
	})()

	if worker != nil {
		_ = worker.Process.Kill()
		_ = worker.Wait()
	}

	if err != nil {
		t.Fatal(err)
	}

	if len(ran) > 0 {
		t.Errorf("the coordinator ran %v itself", ran)
	}
	if out := runGraph(t, graphRun(t, binary, home)); strings.Count(out, " kept ") != 8 {
		t.Errorf("then here:\n%s", out)
	}
}
