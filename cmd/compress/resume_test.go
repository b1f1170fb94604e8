package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// program is the command under test: this test binary under the name that TestMain knows.
func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "compress")
	if err := os.Symlink(self, path); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}

	return path
}

// pruneArgs is a run long enough to be interrupted between any two lines of its journal.
func pruneArgs(out string, more ...string) []string {
	return append([]string{
		"prune", "../../testdata/nano/base", "--calib", "../../testdata/nano/text/calib.txt", "--samples", "16",
		"--seqlen", "256", "--threads", "1", "--quiet", "--out", out, "--masks", out + "-masks.safetensors",
	}, more...)
}

// stopAt starts a run, sends it a signal once its journal has that many lines, and returns the exit code (-1:
// killed) and whether the signal came before the end.
func stopAt(t *testing.T, binary, out string, lines int, signal syscall.Signal) (code int, stderr string, midway bool) {
	t.Helper()
	journal := filepath.Join(filepath.Dir(out), "."+filepath.Base(out)+".partial", "journal.jsonl")
	return stopWhen(t, exec.Command(binary, pruneArgs(out)...), signal, filepath.Dir(out), func() bool {
		data, _ := os.ReadFile(journal)
		return bytes.Count(data, []byte("\n")) >= lines
	})
}

// stopWhen starts a command and sends it a signal once something is the case, which is asked whenever something below
// dir has changed.
func stopWhen(t *testing.T, cmd *exec.Cmd, signal syscall.Signal, dir string,
	due func() bool,
) (code int, stderr string, midway bool) {
	t.Helper()
	var text bytes.Buffer
	cmd.Stderr = &text
	ended := startUntil(t, cmd, dir, due)

	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("run ended by itself: %v: %s", err, text.String())
		}
		return 0, "", false
	default:
	}

	if err := cmd.Process.Signal(signal); err != nil {
		return 0, "", false // it has just ended
	}

	err := <-ended
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), text.String(), true
	}

	return 0, text.String(), false
}

// startUntil starts a command and returns when something is the case or the command has ended, whose error the channel
// then holds, or will.
func startUntil(t *testing.T, cmd *exec.Cmd, dir string, due func() bool) <-chan error {
	t.Helper()
	changed, stop := watch(t, dir)
	defer stop()

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	ended := make(chan error, 1)
	gone := make(chan struct{})
	go func() {
		ended <- cmd.Wait()
		close(gone)
	}()

	for !due() {
		select {
		case <-changed:
		case <-gone:
			return ended
		}
	}

	return ended
}

func run1(t *testing.T, binary string, args ...string) {
	t.Helper()
	if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// TestKillAndResume: a run that was killed, or interrupted, at several points continues to the bytes of one
// that was not.
func TestKillAndResume(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	want := filepath.Join(dir, "want")
	run1(t, binary, pruneArgs(want)...)
	wantMasks, err := os.ReadFile(want + "-masks.safetensors")
	if err != nil {
		t.Fatal(err)
	}

	midway := 0
	for i, point := range []struct {
		lines  int
		signal syscall.Signal
	}{
		{1, syscall.SIGKILL},
		{2, syscall.SIGKILL},
		{4, syscall.SIGKILL},
		{2, syscall.SIGINT},
		{3, syscall.SIGTERM},
		{2, syscall.SIGHUP},
	} {
		out := filepath.Join(dir, string(rune('a'+i)))
		code, stderr, stopped := stopAt(t, binary, out, point.lines, point.signal)
		if stopped {
			midway++
			checkStopped(t, out, point.signal, code, stderr)
		}

		more := []string{"--resume"}
		if !stopped {
			more = []string{"--overwrite"}
		}

		run1(t, binary, pruneArgs(out, more...)...)
		if diff := differences(want, out); diff != "" {
			t.Errorf("after %v at line %d: %s", point.signal, point.lines, diff)
		}

		masks, err := os.ReadFile(out + "-masks.safetensors")
		if err != nil || !bytes.Equal(masks, wantMasks) {
			t.Errorf("after %v at line %d: the masks differ (%v)", point.signal, point.lines, err)
		}
	}

	t.Logf("%d of 6 runs were stopped midway", midway)
	if midway == 0 {
		t.Skip("every run ended before its signal: nothing was tested")
	}
}

func checkStopped(t *testing.T, out string, signal syscall.Signal, code int, stderr string) {
	t.Helper()
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there although the run was stopped (%v)", out, err)
	}
	if signal == syscall.SIGKILL {
		return
	}

	if code != 130 || strings.Count(stderr, "\n") != 1 ||
		!strings.Contains(stderr, "interrupted (HINT: the same command with --resume") {
		t.Errorf("%v: exit code %d, %q", signal, code, stderr)
	}
}

// TestResumeRefusesAnotherJob: --resume with other options is no continuation, and is told what the work was begun
// with, also after a kill. What has begun it stays known until the work is done.
func TestResumeRefusesAnotherJob(t *testing.T) {
	binary, out := program(t), filepath.Join(t.TempDir(), "out")
	if _, _, stopped := stopAt(t, binary, out, 2, syscall.SIGKILL); !stopped {
		t.Skip("the run ended before its signal")
	}

	for range 2 {
		var exit *exec.ExitError
		text, err := exec.Command(binary, pruneArgs(out, "--resume", "--sparsity", "0.7")...).CombinedOutput()
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(text), "another job") ||
			!strings.Contains(string(text), "; it was begun with no --sparsity, now 0.7 (HINT: ") {
			t.Errorf("%v: %s", err, text)
		}
	}

	run1(t, binary, pruneArgs(out, "--resume")...)
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), ".*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// compareArgs is a comparison of several runs, one of which keeps gradients for the others. Its perplexities are those
// of a short text.
func compareArgs(t *testing.T, out string, more ...string) []string {
	t.Helper()
	text, err := os.ReadFile("../../testdata/nano/text/valid.txt")
	if err != nil {
		t.Fatal(err)
	}

	short := filepath.Join(filepath.Dir(out), "short.txt")
	if err := os.WriteFile(short, text[:3000], 0o666); err != nil {
		t.Fatal(err)
	}

	return append([]string{
		"prune", "compare", "../../testdata/nano/base", "--methods", "pruner-zero,gblm@owl,wanda@owl,magnitude",
		"--patterns", "0.5,2:4",
		"--calib", "../../testdata/nano/text/calib.txt", "--samples", "6", "--seqlen", "64", "--ppl",
		short,
		"--threads", "1", "--quiet", "--out", out,
	}, more...)
}

// comparedRuns is what the runs of a comparison gave, times apart.
func comparedRuns(t *testing.T, dir string) (text string) {
	t.Helper()
	var r struct {
		Dense json.RawMessage  `json:"dense"`
		Runs  []map[string]any `json:"runs"`
	}

	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		t.Fatal(err)
	}

	for _, run := range r.Runs {
		delete(run, "prune_seconds")
		delete(run, "shared_seconds")
		delete(run, "prune_cpu_seconds")
		delete(run, "notes") // whether it was continued
		line, err := json.Marshal(run)
		if err != nil {
			t.Fatal(err)
		}
		text += string(line) + "\n"
	}

	return string(r.Dense) + text
}

// TestKilledComparison: a comparison that was killed while it computed gradients, or between and within runs,
// continues to the figures of one that was not, and leaves nothing behind.
func TestKilledComparison(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	want := filepath.Join(dir, "want")
	run1(t, binary, compareArgs(t, want)...)
	lines := func(path string) int {
		data, _ := os.ReadFile(path)
		return bytes.Count(data, []byte("\n"))
	}

	for i, due := range []func(out string) bool{
		func(out string) bool { return lines(filepath.Join(out, "journal.jsonl")) >= 1 },
		func(out string) bool {
			_, err := os.Stat(filepath.Join(out, "scratch", "gradients.safetensors.squares"))
			return err == nil
		},
		func(out string) bool { return lines(filepath.Join(out, "journal.jsonl")) >= 4 },
		func(out string) bool {
			return lines(filepath.Join(out, "models", ".0.5-wanda@owl.partial", "journal.jsonl")) >= 2
		},
	} {
		out := filepath.Join(dir, string(rune('a'+i)))
		_, _, stopped := stopWhen(t, exec.Command(binary, compareArgs(t, out)...), syscall.SIGKILL, dir,
			func() bool { return due(out) })
		if !stopped {
			t.Logf("point %d: the run ended before its signal", i)
		}

		run1(t, binary, compareArgs(t, out, "--resume")...)
		if a, b := comparedRuns(t, want), comparedRuns(t, out); a != b {
			t.Errorf("point %d: the figures differ:\n%s\n%s", i, a, b)
		}

		entries, err := os.ReadDir(out)
		if err != nil || len(entries) != 3 { // the journal and two reports
			t.Errorf("point %d: left: %v, %v", i, entries, err)
		}
	}
}
