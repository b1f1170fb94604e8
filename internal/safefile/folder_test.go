package safefile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// A snapshot in the hub's cache is read through its links to blobs, and through no other that leads out of it.
func TestFolderOfTheHubsCache(t *testing.T) {
	systemtest.NeedsLinks(t)
	top := t.TempDir()
	model := filepath.Join(top, "models--a--b")
	snapshot := filepath.Join(model, "snapshots", "1f")
	for _, dir := range []string{
		filepath.Join(snapshot, "sub"), filepath.Join(model, "blobs", "deep"),
		filepath.Join(top, "elsewhere"),
	} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}

	secret := filepath.Join(top, "secret")
	for _, file := range []string{
		filepath.Join(model, "blobs", "x"), filepath.Join(model, "blobs", "deep", "x"),
		secret, filepath.Join(snapshot, "plain"),
	} {
		if err := os.WriteFile(file, []byte("text"), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	links := map[string]struct {
		target string
		ok     bool
	}{
		"relative": {"../../blobs/x", true},
		"absolute": {filepath.Join(model, "blobs", "x"), true},
		"sub/deep": {"../../../blobs/x", true},
		"inside":   {"plain", true},
		"out":      {"../../../secret", false},
		"further":  {"../../blobs/deep/x", false},
		"through":  {"../../blobs/out", false},
		"nowhere":  {"../../blobs/y", false},
		"etc":      {secret, false},
	}

	for name, l := range links {
		if err := os.Symlink(l.target, filepath.Join(snapshot, name)); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Symlink("../../secret", filepath.Join(model, "blobs", "out")); err != nil {
		t.Fatal(err)
	}

	revision := filepath.Join(top, "revision")
	if err := os.Symlink(snapshot, revision); err != nil {
		t.Fatal(err)
	}

	for _, dir := range []string{snapshot, revision} {
		for name, l := range links {
			text, err := ReadIn(dir, name, 10)
			if (err == nil) != l.ok || l.ok && string(text) != "text" {
				t.Errorf("%s in %s: %q, %v", name, dir, text, err)
			}
		}

		folder, err := OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}

		if stat, err := folder.Stat("relative"); err != nil || stat.Name() != "relative" || stat.Size() != 4 {
			t.Errorf("stat: %v, %v", stat, err)
		}

		if f, err := folder.OpenFile("relative", os.O_RDWR, 0); err == nil {
			f.Close()
			t.Error("a blob was opened for writing")
		}

		folder.Close()
	}
}

// Elsewhere a link that is an entry of the folder is followed wherever it leads, and reading through it stays reading;
// a name of several parts leads nowhere outside.
func TestFolderOfLinks(t *testing.T) {
	systemtest.NeedsPipes(t)
	top := t.TempDir()
	dir := filepath.Join(top, "other", "1f")
	for _, d := range []string{filepath.Join(dir, "sub"), filepath.Join(top, "data", "deep")} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}

	file := filepath.Join(top, "data", "x")
	if err := os.WriteFile(file, []byte("text"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := systemtest.Pipe(filepath.Join(top, "data", "pipe")); err != nil {
		t.Fatal(err)
	}

	links := map[string]struct {
		target string
		ok     bool
	}{
		"relative":        {"../../data/x", true},
		"absolute":        {file, true},
		"second":          {"absolute", true},
		"sub/x":           {"../../../data/x", false},
		"data":            {filepath.Join(top, "data"), false}, // a folder
		"pipe":            {"../../data/pipe", false},
		"nowhere":         {"../../data/none", false},
		"loop":            {"loop", false},
		"sub/../absolute": {},
		"data/x":          {}, // through a link to a folder
	}

	for name, l := range links {
		if l.target == "" {
			continue
		}
		if err := os.Symlink(l.target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}

	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()

	for name, l := range links {
		text, err := ReadIn(dir, name, 10)
		if (err == nil) != l.ok || l.ok && string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, err)
		}

		stat, err := folder.Stat(name)
		if l.ok && (err != nil || stat.Name() != name || stat.Size() != 4) {
			t.Errorf("stat of %s: %v, %v", name, stat, err)
		}
		if l.ok && folder.Inside(name) {
			t.Errorf("%s is inside", name)
		}
	}

	if f, err := folder.OpenFile("relative", os.O_RDWR, 0); err == nil {
		f.Close()
		t.Error("a linked file was opened for writing")
	}
	if _, err := ReadIn(dir, "../../data/x", 10); err == nil {
		t.Error("a path upwards was followed")
	}
}
