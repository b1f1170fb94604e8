package maskfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// three are the tensors of every test, of other sizes each.
var three = []safetensors.Info{
	{Name: "a", DType: safetensors.U8, Shape: []int64{2, 3}},
	{Name: "b", DType: safetensors.U8, Shape: []int64{5}},
	{Name: "c", DType: safetensors.U8, Shape: []int64{4, 4}},
}

// data is what a tensor gets.
func data(i int) []byte { return bytes.Repeat([]byte{byte(i), 1, 0}, 6)[:three[i].Elements()] }

func opened(t *testing.T, path string, o Options) *File {
	t.Helper()
	f, err := Open(path, three, map[string]string{"meaning": "test"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// interrupted writes and notes the first n tensors, and stops.
func interrupted(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "masks.safetensors")
	f := opened(t, path, Options{})
	for i := range n {
		if err := errors.Join(f.Write(three[i].Name, data(i)), f.Note()); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Suspend(); err != nil {
		t.Fatal(err)
	}
	return path
}

// finish goes on with a file, as a resumed run does: what is damaged is written again, the rest is marked or written.
func finish(t *testing.T, path string) (again []string) {
	t.Helper()
	f := opened(t, path, Options{Resume: true})
	for i, info := range three {
		if f.Damaged(info.Name) {
			again = append(again, info.Name)
			if err := f.Write(info.Name, data(i)); err != nil {
				t.Fatal(err)
			}
		} else if err := f.MarkDone(info.Name); err != nil {
			t.Fatal(err)
		}
	}

	if err := errors.Join(f.Note(), f.Finish(), f.Forget()); err != nil {
		t.Fatal(err)
	}

	file, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	for i, info := range three {
		if got, err := file.Bytes(info.Name); err != nil || !bytes.Equal(got, data(i)) {
			t.Errorf("%s: %v, %v", info.Name, got, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("%v beside the file, %v", left, err)
	}

	return again
}

// TestResume: after an interruption behind any tensor, exactly those that were not noted are written again.
func TestResume(t *testing.T) {
	for n := range len(three) + 1 {
		again := finish(t, interrupted(t, n))
		if len(again) != len(three)-n {
			t.Errorf("after %d tensors %q are written again", n, again)
		}
	}
}

// TestDamage: a tensor whose bytes, or whose noted checksum, are not as they were is written again, as are those whose
// notes a damaged line of the journal takes with it.
func TestDamage(t *testing.T) {
	flip := func(path string, at func(text []byte) int) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text[at(text)] ^= 1
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for name, c := range map[string]struct {
		file string // beside the masks; empty: the unfinished file
		at   func(text []byte) int
		want string
	}{
		"bytes":           {"", func(text []byte) int { return bytes.LastIndex(text, data(1)) }, "b"},
		"first checksum":  {".sums", func(text []byte) int { return bytes.Index(text, []byte(`"a":`)) + 5 }, "a b c"},
		"second checksum": {".sums", func(text []byte) int { return bytes.Index(text, []byte(`"b":`)) + 5 }, "b c"},
		"torn end":        {".sums", func(text []byte) int { return len(text) - 1 }, "c"},
		"header":          {".sums", func([]byte) int { return 3 }, "a b c"},
	} {
		path := interrupted(t, 3)
		file := path + ".partial"
		if c.file != "" {
			file = filepath.Join(filepath.Dir(path), ".masks.safetensors.sums")
		}

		flip(file, c.at)
		if got := string(bytes.Join(words(finish(t, path)), []byte(" "))); got != c.want {
			t.Errorf("%s: %q are written again, want %q", name, got, c.want)
		}
	}
}

func words(list []string) (out [][]byte) {
	for _, s := range list {
		out = append(out, []byte(s))
	}
	return out
}

// TestComplete: a file that got its name just before the interruption is taken as it is, and refused where it is not as
// it was written; one that is there without resuming is not replaced unless asked for.
func TestComplete(t *testing.T) {
	complete := func() string {
		path := interrupted(t, 3)
		f := opened(t, path, Options{Resume: true})
		for _, info := range three {
			if err := f.MarkDone(info.Name); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(f.Finish(), f.Close()); err != nil { // the checksums stay, as after a crash
			t.Fatal(err)
		}
		return path
	}

	path := complete()
	f := opened(t, path, Options{Resume: true})
	if len(f.Remaining()) != 0 || f.Damaged("a") {
		t.Errorf("%v is left to write", f.Remaining())
	}
	if err := errors.Join(f.Finish(), f.Forget()); err != nil {
		t.Fatal(err)
	}

	if _, err := Open(path, three, nil, Options{}); !errors.Is(err, safetensors.ErrExists) {
		t.Errorf("without resuming: %v", err)
	}
	if err := opened(t, path, Options{Overwrite: true}).Abort(); err != nil {
		t.Error(err)
	}

	// A file that is there already is not what is read while another one is written in its place.
	path = complete()
	f = opened(t, path, Options{Overwrite: true})
	if f.Finished() || f.Place() != path+".partial" {
		t.Errorf("a new file is read at %s", f.Place())
	}
	for i, info := range three {
		if err := f.Write(info.Name, data(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Note(), f.Finish(), f.Close()); err != nil || f.Place() != path {
		t.Errorf("a finished file is read at %s, %v", f.Place(), err)
	}
	for range 2 { // the second one is what follows an interrupted one
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}

	path = complete()
	text, err := os.ReadFile(path)
	if err == nil {
		text[len(text)-1] ^= 1
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, three, map[string]string{"meaning": "test"}, Options{Resume: true}); !errors.Is(err,
		ErrDamaged) {
		t.Errorf("a damaged file: %v", err)
	}
}
