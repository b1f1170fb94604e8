package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// searchArgs is a small search.
func searchArgs(out string, more ...string) []string {
	return append([]string{
		"search", "../../testdata/nano/base", "--calib", "../../testdata/nano/text/calib.txt", "--heldout",
		"../../testdata/nano/text/valid.txt",
		"--samples", "2", "--seqlen", "32", "--windows", "2", "--few", "1", "--select-windows", "2", "--test-windows",
		"2",
		"--sparsity", "0.6", "--population", "8", "--generations", "2", "--seeds=false", "--seed", "3", "--threads",
		"2", "--out", out,
	}, more...)
}

// TestSearches: whatever happens to a search, its result is that of one that nothing happened to.
func TestSearches(t *testing.T) {
	binary := program(t)
	want := filepath.Join(t.TempDir(), "want")
	run1(t, binary, searchArgs(want, "--workers", "1")...)
	for name, test := range map[string]func(t *testing.T, binary, want string){
		"killed": killedSearch, "workers": killedWorkers, "cluster": vanishingCluster,
	} {
		t.Run(name, func(t *testing.T) { test(t, binary, want) })
	}
}

// sameSearch compares the files of two searches byte by byte, and checks that nothing else is left.
func sameSearch(t *testing.T, what, got, want string) {
	t.Helper()
	entries, err := os.ReadDir(got)
	if err != nil || len(entries) != 4 {
		t.Errorf("%s: %d files, want 4: %v", what, len(entries), err)
	}

	for _, name := range []string{"best.json", "journal.jsonl", "report.json", "report.html"} {
		a, err := os.ReadFile(filepath.Join(got, name))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}

		b, err := os.ReadFile(filepath.Join(want, name))
		if err != nil {
			t.Fatal(err)
		}

		if !bytes.Equal(a, b) {
			t.Errorf("%s: %s differs from that of an uninterrupted search", what, name)
		}
	}
}

// killedSearch: a search that is killed or interrupted anywhere continues to the bytes of one that was not.
func killedSearch(t *testing.T, binary, want string) {
	dir := t.TempDir()
	whole, err := os.ReadFile(filepath.Join(want, "journal.jsonl"))
	if err != nil {
		t.Fatal(err)
	}

	out, midway := filepath.Join(dir, "out"), 0
	draw := rand.New(rand.NewPCG(5, 6))
	total := bytes.Count(whole, []byte("\n"))
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGKILL} {
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}

		lines := 1 + draw.IntN(total-1)
		code, stderr, mid := stopWhen(t, exec.Command(binary, searchArgs(out, "--quiet")...), signal, dir, func() bool {
			data, _ := os.ReadFile(filepath.Join(out, "journal.jsonl"))
			return bytes.Count(data, []byte("\n")) >= lines
		})

		if mid {
			midway++
			if signal == syscall.SIGINT && (code != 130 || !strings.Contains(stderr, "--resume")) {
				t.Errorf("interrupted: code %d, %q", code, stderr)
			}
		}

		run1(t, binary, searchArgs(out, "--resume", "--workers", []string{"2", "1", "3"}[i])...)
		sameSearch(t, signal.String(), out, want)
	}

	if midway == 0 {
		t.Error("no search was stopped midway")
	}
	// A journal that a crash has cut in a line is repaired; a search that was finished stays what it is.
	if err := os.WriteFile(filepath.Join(out, "journal.jsonl"), whole[:len(whole)-len(whole)/3], 0o666); err != nil {
		t.Fatal(err)
	}

	run1(t, binary, searchArgs(out, "--resume")...)
	sameSearch(t, "cut journal", out, want)
	run1(t, binary, searchArgs(out, "--resume")...)
	sameSearch(t, "finished before", out, want)
}

// follow starts a command and calls see with every line of its stderr.
func follow(t *testing.T, cmd *exec.Cmd, see func(line string)) (wait func() error) {
	t.Helper()
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	var text bytes.Buffer
	return func() error {
		lines := bufio.NewScanner(io.TeeReader(pipe, &text))
		for lines.Scan() {
			see(lines.Text())
		}
		if err := cmd.Wait(); err != nil {
			return errors.Join(err, errors.New(text.String()))
		}
		return lines.Err()
	}
}

// killedWorkers: processes that join a search, and are killed while they work, give the result of a search alone.
func killedWorkers(t *testing.T, binary, want string) {
	out := filepath.Join(t.TempDir(), "out")
	var mu sync.Mutex
	var workers []*exec.Cmd
	start := func(url string) {
		cmd := exec.Command(binary, "worker", "--cluster", url, "--workers", "1", "--threads", "1", "--quiet")
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		workers = append(workers, cmd)
		mu.Unlock()
	}

	url := ""
	generations := 0
	joined := 0
	draw := rand.New(rand.NewPCG(7, 8))
	err := follow(t, exec.Command(binary, searchArgs(out, "--workers", "-1", "--listen", "127.0.0.1:0")...),
		func(line string) {
			if _, at, ok := strings.Cut(line, "--cluster "); ok {
				url = at
				start(url)
				start(url)
			}

			if strings.Contains(line, "has joined") {
				joined++
			}

			if strings.HasPrefix(line, "generation ") && generations < 2 {
				generations++
				_ = workers[len(workers)-1-draw.IntN(2)].Process.Kill()
				start(url)
			}
		})()

	for _, w := range workers {
		_ = w.Process.Kill()
		_ = w.Wait()
	}

	if err != nil {
		t.Fatal(err)
	}

	if joined < 3 {
		t.Errorf("%d workers joined, want 3 or more", joined)
	}

	sameSearch(t, "workers", out, want)
}

// vanishingCluster: the cluster goes away in the middle of a search, with all that it stored; the search waits,
// says so, and goes on.
func vanishingCluster(t *testing.T, binary, want string) {
	out := filepath.Join(t.TempDir(), "out")
	cluster := natsServer(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	url, port := cluster.ClientURL(), cluster.Addr().(*net.TCPAddr).Port

	waited := false
	back := false
	stopped := false
	err := follow(t, exec.Command(binary, searchArgs(out, "--cluster", url)...), func(line string) {
		switch {
		case strings.HasPrefix(line, "generation 1 ") && !stopped:
			stopped = true
			cluster.Shutdown()
			cluster.WaitForShutdown()
		case strings.Contains(line, "the cluster does not answer") && !waited:
			waited = true
			natsServer(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), Port: port})
		case strings.Contains(line, "the cluster is back"):
			back = true
		}
	})()
	if err != nil {
		t.Fatal(err)
	}

	if !waited || !back {
		t.Errorf("waiting was told: %v, coming back: %v", waited, back)
	}

	sameSearch(t, "cluster", out, want)
}

// TestRefusedWorkers: workers with another model, or of another build, refuse the work, and both sides say so.
func TestRefusedWorkers(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	self, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}

	other := filepath.Join(t.TempDir(), "compress")
	if err := os.WriteFile(other, append(self, 0), 0o777); err != nil {
		t.Fatal(err)
	}

	coordinator := exec.Command(binary,
		searchArgs(filepath.Join(dir, "out"), "--workers", "-1", "--listen", "127.0.0.1:0")...)
	refusals := 0
	_ = follow(t, coordinator, func(line string) {
		if _, url, ok := strings.Cut(line, "--cluster "); ok {
			for _, c := range []struct{ program, model, reason string }{
				{binary, "../../testdata/nano/tales", "no model with the hash"},
				{other, "../../testdata/nano/base", "another build"},
			} {
				text, err := exec.Command(c.program, "worker", "--cluster", url, "--model", c.model,
					"--quiet").CombinedOutput()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(text), c.reason) ||
					bytes.Count(text, []byte("\n")) != 1 {
					t.Errorf("%v: %s", err, text)
				}
			}
		}

		if strings.Contains(line, "refuses the work") {
			refusals++
			if refusals == 2 {
				_ = coordinator.Process.Kill()
			}
		}
	})()

	if refusals != 2 {
		t.Errorf("the coordinator heard of %d refusals, want 2", refusals)
	}
}
