package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/internal/system/systemtest"
	"pgregory.net/rapid"
)

// put makes a folder with a file, marked with text unless that is nil.
func put(dir string, text []byte) error {
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "deep"), 0o700),
		os.WriteFile(filepath.Join(dir, "deep", "work"), []byte("x"), 0o600))
	if text != nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, MarkName), text, 0o600))
	}
	return err
}

// lookAlikes are things that look like what a killed process has left. Each reports whether it is that.
var lookAlikes = []struct {
	kind string
	ours bool
	make func(path, elsewhere string) error
}{
	{"abandoned", true, func(path, _ string) error { return put(path, mark(filepath.Base(path))) }},
	{"abandoned, with a link out of it", true, func(path, elsewhere string) error {
		return errors.Join(put(path, mark(filepath.Base(path))), os.Symlink(elsewhere, filepath.Join(path, "link")))
	}},
	{"abandoned, half removed", true, func(path, _ string) error {
		return errors.Join(os.Mkdir(path, 0o700),
			Mark(path))
	}},

	{"a folder without a mark", false, func(path, _ string) error { return put(path, nil) }},
	{"an empty folder", false, func(path, _ string) error { return os.Mkdir(path, 0o700) }},
	{"a file", false, func(path, _ string) error { return os.WriteFile(path, []byte("x"), 0o600) }},
	{"a link to a marked folder", false, func(path, elsewhere string) error {
		to := filepath.Join(elsewhere, filepath.Base(path))
		return errors.Join(put(to, mark(filepath.Base(path))), os.Symlink(to, path))
	}},
	{"half a mark", false, func(path, _ string) error {
		m := mark(filepath.Base(path))
		return put(path,
			m[:len(m)/2])
	}},
	{"an empty mark", false, func(path, _ string) error { return put(path, []byte{}) }},
	{"a longer mark", false, func(path, _ string) error { return put(path, append(mark(filepath.Base(path)), '\n')) }},
	{"a copy under another name", false, func(path, _ string) error {
		return put(path,
			mark(filepath.Base(path)+"0"))
	}},
	{"a name without a number", false, func(path, _ string) error {
		return put(path+"mine",
			mark(filepath.Base(path)+"mine"))
	}},
	{"a name with a sign", false, func(path, _ string) error {
		path = filepath.Join(filepath.Dir(path), "kind-+1"+filepath.Base(path)[len("kind-"):])
		return put(path, mark(filepath.Base(path)))
	}},
	{"another prefix", false, func(path, _ string) error {
		path = path[:len(path)-1] + "-"
		return put(path, mark(filepath.Base(path)))
	}},
	{"a mark that is a link", false, func(path, elsewhere string) error {
		to := filepath.Join(elsewhere, filepath.Base(path)+".mark")
		return errors.Join(put(path, nil), os.WriteFile(to, mark(filepath.Base(path)), 0o600),
			os.Symlink(to, filepath.Join(path, MarkName)))
	}},
	{"a mark that is a folder", false, func(path, _ string) error {
		return errors.Join(put(path, nil), os.Mkdir(filepath.Join(path, MarkName), 0o700))
	}},
	{"a mark that is a pipe", false, func(path, _ string) error {
		return errors.Join(put(path, nil), systemtest.Pipe(filepath.Join(path, MarkName)))
	}},
}

// listing describes everything below a folder: names, kinds and the contents of files.
func listing(t *rapid.T, dir string) map[string]string {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if strings.HasSuffix(path, ".compress-lock") { // where a folder is locked by a file beside it
			return nil
		}

		all[path] = e.Type().String()

		if e.Type().IsRegular() {
			text, err := os.ReadFile(path)
			all[path] += string(text)
			return err
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return all
}

// Among any mixture of look-alikes only folders with the whole mark go that no process has locked. All else
// stays as it is, byte for byte.
func TestOnlyWhatIsOursIsSwept(t *testing.T) {
	systemtest.NeedsPipes(t)
	rapid.Check(t, func(t *rapid.T) {
		top, err := os.MkdirTemp("", "scratch-test-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)

		elsewhere, temp := filepath.Join(top, "elsewhere"), filepath.Join(top, "temp")
		if err := errors.Join(put(elsewhere, nil), os.Mkdir(temp, 0o700)); err != nil {
			t.Fatal(err)
		}

		before := os.Getenv("TMPDIR")
		os.Setenv("TMPDIR", temp)
		defer os.Setenv("TMPDIR", before)

		var ours []string
		for i, k := range rapid.SliceOfN(rapid.IntRange(0, len(lookAlikes)-1), 1, 12).Draw(t, "kinds") {
			path := filepath.Join(temp, fmt.Sprintf("kind-%d", 1000+i))
			if err := lookAlikes[k].make(path, elsewhere); err != nil {
				t.Fatal(lookAlikes[k].kind, err)
			}
			if !lookAlikes[k].ours {
				continue
			}

			if !rapid.Bool().Draw(t, "locked") {
				ours = append(ours, path)
				continue
			}

			f, err := system.OpenFolder(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()

			if err := lock(f); err != nil {
				t.Fatal(err)
			}
		}

		want := listing(t, top)
		for _, path := range ours {
			for name := range listing(t, path) {
				delete(want, name)
			}
		}

		dir, release, err := Folder("kind-")
		if err != nil {
			t.Fatal(err)
		}

		if err := errors.Join(put(filepath.Join(dir, "inner"), nil), release()); err != nil {
			t.Fatal(err)
		}

		have := listing(t, top)
		for path, is := range want {
			if have[path] != is {
				t.Errorf("%s was %q, is %q", path, is, have[path])
			}
		}

		for path := range have {
			if _, ok := want[path]; !ok {
				t.Errorf("%s is left", path)
			}
		}
	})
}

// The folders of other users stay, whatever they hold.
func TestOthersFoldersStay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only the superuser can give folders away")
	}

	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	path := filepath.Join(temp, "kind-1")
	if err := errors.Join(put(path, mark("kind-1")), os.Chown(path, 65534, 65534)); err != nil {
		t.Fatal(err)
	}

	_, release, err := Folder("kind-")
	if err != nil {
		t.Fatal(err)
	}

	if err := release(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(path, "deep", "work")); err != nil {
		t.Error(err)
	}
}

// Folders of one kind live side by side, and one that was moved meanwhile is not looked for under its old name,
// which may be another's.
func TestFolders(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	one, endOne, err := Folder("kind-")
	if err != nil {
		t.Fatal(err)
	}

	two, endTwo, err := Folder("kind-")
	if err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(os.Rename(two, two+"-moved"), put(two, nil),
		os.WriteFile(filepath.Join(one, "x"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(endOne(), endTwo()); err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string]bool{
		one: false, two: true, filepath.Join(two, "deep", "work"): true,
		two + "-moved": true,
	} {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("%s is there: %t", path, !want)
		}
	}
}
