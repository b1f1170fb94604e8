package safetensors

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// childEnv tells the test program to be a child process: a job and a folder.
const childEnv = "SAFETENSORS_TEST_CHILD"

func TestMain(m *testing.M) {
	job, dir, ok := strings.Cut(os.Getenv(childEnv), "=")
	if !ok {
		if err := flag.Set("rapid.seed", "1"); err != nil { // the same draws in every run; 0 draws anew
			panic(err)
		}
		os.Exit(m.Run())
	}

	jobs := map[string]func(dir string) error{"write": childWrite, "limit": childLimit, "full": childFull}
	if err := jobs[job](dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// child prepares this test program to do a job in a process of its own.
func child(job, dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+job+"="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

var childOptions = DirOptions{MaxShardSize: 1_000_000}

// childWrite writes the large model tensor by tensor, notes each name once it is durable, and never
// finishes: after the last note it waits to be killed.
func childWrite(dir string) error {
	w, err := CreateDir(dir, large(), nil, childOptions)
	if err != nil {
		return err
	}

	for _, info := range large() {
		data := dataOf(info)
		if err := errors.Join(w.WriteAt(info.Name, data[10:], 10), w.WriteAt(info.Name, data[:10], 0),
			w.Sync()); err != nil {
			return err
		}
		fmt.Println(info.Name)
	}

	_, err = os.Stdin.Read(make([]byte, 1))
	return err
}

// TestKilled kills a writing process with SIGKILL after some of its notes and resumes with what was
// noted; the result has the bytes of an uninterrupted run.
func TestKilled(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole")
	w, err := CreateDir(whole, large(), nil, childOptions)
	if err != nil {
		t.Fatal(err)
	}

	writeAll(t, w, large(), 1, 1<<30)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	for _, notes := range []int{1, 17, 40} {
		dir := filepath.Join(t.TempDir(), "m")
		noted := killAfter(t, dir, notes)
		w, err := ReopenDir(dir, large(), nil, childOptions)
		if err != nil {
			t.Fatal(err)
		}

		for _, name := range noted {
			if err := w.MarkDone(name); err != nil {
				t.Fatal(err)
			}
		}

		if len(w.Remaining()) != len(large())-notes {
			t.Errorf("%d remain after %d notes", len(w.Remaining()), notes)
		}

		for _, info := range large() {
			if !w.Done(info.Name) {
				if err := w.WriteTensor(info.Name, dataOf(info)); err != nil {
					t.Fatal(err)
				}
			}
		}

		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}

		for _, name := range listing(t, whole) {
			a, _ := os.ReadFile(filepath.Join(dir, name))
			b, _ := os.ReadFile(filepath.Join(whole, name))
			if !bytes.Equal(a, b) {
				t.Errorf("killed after %d notes: %s has other bytes", notes, name)
			}
		}
	}
}

// killAfter runs childWrite and kills it when it has noted n names.
func killAfter(t *testing.T, dir string, n int) (noted []string) {
	t.Helper()
	cmd := child("write", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	in, err := cmd.StdinPipe() // stays open, so that the child waits
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()

	if err := cmd.Start(); err != nil {
		t.Skip("no processes here: ", err)
	}
	for lines := bufio.NewScanner(out); len(noted) < n && lines.Scan(); {
		noted = append(noted, lines.Text())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait()
	if len(noted) != n {
		t.Fatalf("%d notes: %v", len(noted), noted)
	}

	return noted
}

// childLimit limits the size of files to less than the model needs and expects a clean refusal.
func childLimit(dir string) error {
	if err := systemtest.LimitFiles(100_000); err != nil {
		return err
	}
	return expectRefusal(dir, ErrFileSize)
}

// expectRefusal tries to create more than fits, as one file and as several.
func expectRefusal(dir string, want error) error {
	_, err := Create(filepath.Join(dir, "x"), large(), nil, Options{})
	if !errors.Is(err, want) || !strings.Contains(err.Error(), " bytes") {
		return fmt.Errorf("one file: %w", err)
	}

	_, err = CreateDir(filepath.Join(dir, "m"), large(), nil, childOptions)
	if !errors.Is(err, want) {
		return fmt.Errorf("several files: %w", err)
	}

	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		return fmt.Errorf("left behind: %v %w", left, err)
	}

	return nil
}

// TestFileSizeLimit meets a limit on the size of files before anything is written.
func TestFileSizeLimit(t *testing.T) {
	out, err := child("limit", t.TempDir()).Output()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		t.Skip("no processes here: ", err)
	case err != nil && strings.Contains(string(out), errors.ErrUnsupported.Error()):
		t.Skip("no limits on the size of files here")
	case err != nil:
		t.Errorf("limit: %v: %s", err, out)
	}
}
