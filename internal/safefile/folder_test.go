package safefile

import (
	"os"
	"path/filepath"
	"testing"
)

// A snapshot in the hub's cache is read through its links to blobs, and through no other that leads out of it.
func TestFolderOfTheHubsCache(t *testing.T) {
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

// Elsewhere a link to ../../blobs leads out of the folder like any other.
func TestFolderThatIsNoSnapshot(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "other", "1f")
	for _, d := range []string{dir, filepath.Join(top, "blobs")} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.WriteFile(filepath.Join(top, "blobs", "x"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../blobs/x", filepath.Join(dir, "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadIn(dir, "x", 10); err == nil {
		t.Error("the link was followed")
	}
}
