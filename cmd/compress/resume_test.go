package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// pruneArgs is a run long enough to be interrupted: its statistics take most of a second.
func pruneArgs(out string, more ...string) []string {
	return append([]string{
		"prune", "../../testdata/nano/base", "--calib", "../../testdata/nano/text/calib.txt", "--samples", "64", "--seqlen", "256",
		"--threads", "1", "--quiet", "--out", out, "--masks", out + "-masks.safetensors",
	}, more...)
}

// stopAt starts a run, sends it a signal once its journal has that many lines, and returns the exit code (-1: killed) and
// whether the signal came before the end.
func stopAt(t *testing.T, binary, out string, lines int, signal syscall.Signal) (code int, stderr string, midway bool) {
	t.Helper()
	var text bytes.Buffer
	cmd := exec.Command(binary, pruneArgs(out)...)
	cmd.Stderr = &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	journal := filepath.Join(filepath.Dir(out), "."+filepath.Base(out)+".partial", "journal.jsonl")
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("run ended by itself: %v: %s", err, text.String())
			}
			return 0, "", false
		default:
		}
		if data, _ := os.ReadFile(journal); bytes.Count(data, []byte("\n")) >= lines {
			break
		}
		runtime.Gosched()
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

func run1(t *testing.T, binary string, args ...string) {
	t.Helper()
	if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// TestKillAndResume: a run that was killed, or interrupted, at several points continues to the bytes of one that was not.
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
	}{{1, syscall.SIGKILL}, {2, syscall.SIGKILL}, {4, syscall.SIGKILL}, {2, syscall.SIGINT}, {3, syscall.SIGTERM}} {
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
	t.Logf("%d of 5 runs were stopped midway", midway)
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
	if code != 130 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "interrupted (HINT: the same command with --resume") {
		t.Errorf("%v: exit code %d, %q", signal, code, stderr)
	}
}

// TestResumeRefusesAnotherJob: --resume with other options is no continuation.
func TestResumeRefusesAnotherJob(t *testing.T) {
	binary, out := program(t), filepath.Join(t.TempDir(), "out")
	if _, _, stopped := stopAt(t, binary, out, 2, syscall.SIGKILL); !stopped {
		t.Skip("the run ended before its signal")
	}
	var exit *exec.ExitError
	text, err := exec.Command(binary, pruneArgs(out, "--resume", "--sparsity", "0.7")...).CombinedOutput()
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(text), "another job") {
		t.Errorf("%v: %s", err, text)
	}
	run1(t, binary, pruneArgs(out, "--resume")...)
}
