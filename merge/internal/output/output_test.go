package output

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/safetensors"
)

var layout = []safetensors.Info{
	{Name: "a", DType: safetensors.U8, Shape: []int64{300}},
	{Name: "b", DType: safetensors.U8, Shape: []int64{5}},
}

func nothing(string) error { return nil }

// fill writes a tensor in two parts.
func fill(t *testing.T, f *Folder, name string, n int) {
	t.Helper()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	if err := errors.Join(f.WriteAt(name, data[n/2:], int64(n/2)), f.WriteAt(name, data[:n/2], 0),
		f.Written(name)); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, dir string, resume bool) *Folder {
	t.Helper()
	f, err := Open(dir, Options{Job: "job", Tensors: layout, Resume: resume, Every: 1})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestVerify: a byte that changes between writing and reading back is seen, and the output does not get its name.
func TestVerify(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	f := start(t, dir, false)
	fill(t, f, "a", 300)
	fill(t, f, "b", 5)
	path := filepath.Join(f.place.Dir, "model.safetensors.partial")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	if _, err := file.WriteAt([]byte{0xee}, st.Size()-100); err != nil {
		t.Fatal(err)
	}
	if err := f.Finish(nothing); !errors.Is(err, ErrVerify) {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the output has its name")
	}
	if err := f.Abort(); err != nil {
		t.Error(err)
	}
}

// TestResume: a torn last line of the journal counts for nothing, what was entered is there, and two processes
// do not write one output.
func TestResume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	f := start(t, dir, false)
	fill(t, f, "a", 300)
	if _, err := Open(dir, Options{Job: "job", Tensors: layout, Resume: true}); !errors.Is(err, ErrBusy) {
		t.Errorf("second writer: %v", err)
	}
	if err := f.Suspend(); err != nil {
		t.Fatal(err)
	}

	journal, err := os.OpenFile(filepath.Join(f.place.Dir, JournalName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := journal.WriteString(`{"done":{"b":[{"o":0`); err != nil {
		t.Fatal(err)
	}

	journal.Close()
	if _, err := Open(dir, Options{Job: "other", Tensors: layout, Resume: true}); !errors.Is(err, ErrOtherJob) {
		t.Errorf("another job: %v", err)
	}

	f = start(t, dir, true)
	if !f.Done("a") || f.Done("b") {
		t.Errorf("done: a %v, b %v", f.Done("a"), f.Done("b"))
	}

	fill(t, f, "b", 5)
	manifest := func(dir string) error { return WriteFile(filepath.Join(dir, ManifestName), []byte(`{"job":"job"}`)) }
	if err := f.Finish(manifest); err != nil {
		t.Fatal(err)
	}
	if f = start(t, dir, true); !f.Complete() {
		t.Error("a finished output is not complete")
	}
	if _, err := Open(dir, Options{Job: "job", Tensors: layout}); !errors.Is(err, ErrExists) {
		t.Errorf("existing output: %v", err)
	}

	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestEarlierBuild: a finished output of an earlier build is complete; an unfinished one is refused with one line,
// stays as it is, and goes when all begins anew.
func TestEarlierBuild(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "out")
	old := filepath.Join(parent, ".out"+earlierSuffix)
	journal := filepath.Join(old, earlierJournal)
	if err := os.Mkdir(old, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(journal, []byte("{\"job\":\"job\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}

	_, err := Open(dir, Options{Job: "job", Tensors: layout, Resume: true})
	if !errors.Is(err, ErrOtherJob) || strings.Contains(err.Error(), "\n") || failure.Hint(err) == "" {
		t.Errorf("resumed: %v", err)
	}
	if _, err := os.Stat(journal); err != nil {
		t.Error(err)
	}

	f := start(t, dir, false)
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("begun anew, it is still there: %v", err)
	}

	fill(t, f, "a", 300)
	fill(t, f, "b", 5)

	// The earlier build removed its journal last, from the folder that had its name already.
	manifest := func(dir string) error {
		return errors.Join(WriteFile(filepath.Join(dir, ManifestName), []byte(`{"job":"job"}`)),
			WriteFile(filepath.Join(dir, earlierJournal), nil))
	}
	if err := f.Finish(manifest); err != nil {
		t.Fatal(err)
	}

	if f = start(t, dir, true); !f.Complete() {
		t.Error("a finished output is not complete")
	}
	if _, err := os.Stat(filepath.Join(dir, earlierJournal)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its journal is still there: %v", err)
	}
}

// TestForeign: a finished output of something else is not resumed, and is told apart: by the build, the job, or the
// files that it was made of.
func TestForeign(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}

	mine := `{"version":"` + build.Version() + `","job":"job"}`
	for _, c := range []struct{ manifest, job, want string }{
		{`{"version":"0.0.1","job":"job"}`, "other", `another build of this program made it ("0.0.1"; this is `},
		{`{"version":"\u001b[2J","job":"job"}`, "other", `("\x1b[2J"; this is `},
		{mine, "other", "another recipe, other models or other options made it"},
		{mine, "job@9223372036854775807@0", "files of its recipe or its models have changed since"},
		{`{}`, "job", "output already exists"},
	} {
		if err := os.WriteFile(filepath.Join(dir, ManifestName), []byte(c.manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{Job: c.job, Tensors: layout, Resume: true})
		if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(failure.Hint(err), "--overwrite") {
			t.Errorf("%s: %v", c.manifest, err)
		}
	}

	f, err := Open(dir, Options{Job: "job", Tensors: layout, Resume: true, Overwrite: true})
	if err == nil || errors.Is(err, ErrExists) {
		t.Errorf("%v, %v", f, err)
	}
}

// TestDamagedJournal: behind a line that was changed nothing counts, so that those tensors are written again; without
// its first line the journal is nobody's.
func TestDamagedJournal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	f := start(t, dir, false)
	path := filepath.Join(f.place.Dir, JournalName)
	fill(t, f, "a", 300)
	if err := f.settle(); err != nil {
		t.Fatal(err)
	}
	fill(t, f, "b", 5)
	if err := f.Suspend(); err != nil {
		t.Fatal(err)
	}

	whole, err := os.ReadFile(path)
	if err != nil || bytes.Count(whole, []byte("\n")) != 3 {
		t.Fatalf("%q, %v", whole, err)
	}

	flip := func(line int) {
		t.Helper()
		lines := bytes.SplitAfter(bytes.Clone(whole), []byte("\n"))
		lines[line][5] ^= 1
		if err := os.WriteFile(path, bytes.Join(lines, nil), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	flip(2)
	f = start(t, dir, true)
	if !f.Done("a") || f.Done("b") {
		t.Errorf("done: a %v, b %v", f.Done("a"), f.Done("b"))
	}
	if err := f.Suspend(); err != nil {
		t.Fatal(err)
	}

	flip(0)
	if _, err := Open(dir, Options{Job: "job", Tensors: layout, Resume: true}); !errors.Is(err, ErrOtherJob) {
		t.Errorf("a damaged first line: %v", err)
	}
}

// TestReplace: an existing checkpoint is replaced as a whole, and what holds anything else is not, with whatever
// options.
func TestReplace(t *testing.T) {
	sum := sha256.Sum256(nil)
	made := `{"files":{"words.bin":"` + hex.EncodeToString(sum[:]) + `","../thesis.txt":""}}`
	for name, refused := range map[string]bool{
		"config.json": false, "README.md": true, "thesis.txt": true, "old.safetensors": true, ".hidden": true,
		"sub/config.json": true, "mediator/mediator.json": false, "mediator/thesis.txt": true, "words.bin": false,
	} {
		dir := filepath.Join(t.TempDir(), "out")
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{
			name: "", "model-00001-of-00001.safetensors": "", ManifestName: made,
		} {
			path := filepath.Join(dir, file)
			err := os.MkdirAll(filepath.Dir(path), 0o777)
			if err = errors.Join(err, os.WriteFile(path, []byte(text), 0o666)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(dir, Options{Job: "job", Tensors: layout}); !errors.Is(err, ErrExists) {
			t.Errorf("%s, not to be replaced: %v", name, err)
		}

		f, err := Open(dir, Options{Job: "job", Tensors: layout, Overwrite: true})
		if refused != errors.Is(err, stage.ErrTarget) || refused != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
			continue
		}

		fill(t, f, "a", 300)
		fill(t, f, "b", 5)
		if err := f.Finish(nothing); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
}
