package hub

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Name{
		"a/b":                          {"a", "b", ""},
		"Org-1/Model_2.5-B":            {"Org-1", "Model_2.5-B", ""},
		"a/b@main":                     {"a", "b", "main"},
		"a/b@refs/pr/1":                {"a", "b", "refs/pr/1"},
		"a/b@v1.0":                     {"a", "b", "v1.0"},
		"_a/b":                         {"_a", "b", ""},
		"a/" + strings.Repeat("b", 96): {"a", strings.Repeat("b", 96), ""},
	} {
		n, ok := Parse(text)
		if !ok || n != want || n.String() != text {
			t.Errorf("%q: %+v, %v", text, n, ok)
		}
	}

	for _, text := range []string{
		"", "a", "/a", "a/", "a/b/c", "./b", "../b", "a/..", ".a/b", "-a/b", "a/b@", "a/b@x y", "a/b@../x", "a/b@/x",
		"a/b@x//y", "a/b@x?y", "a/b@x\x00", "a b/c", "a\\b/c", "a/b..c", "ä/b", "a/b=0.5", "~/b",
		"a/" + strings.Repeat("b", 97),
	} {
		if n, ok := Parse(text); ok {
			t.Errorf("%q is %+v", text, n)
		}
	}
}

// cacheOf makes a cache in which a/b has a main and a pull request, and points the environment to it.
func cacheOf(t *testing.T) string {
	t.Helper()
	cache := filepath.Join(t.TempDir(), "hub")
	for _, dir := range []string{
		"models--a--b/snapshots/1f", "models--a--b/snapshots/2e", "models--a--b/refs/refs/pr", "models--a--lost/refs",
	} {
		if err := os.MkdirAll(filepath.Join(cache, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}

	for name, text := range map[string]string{
		"models--a--b/refs/main": "1f\n", "models--a--b/refs/refs/pr/1": "2e", "models--a--b/refs/up": "../../../..",
		"models--a--b/refs/long": strings.Repeat("1", 200), "models--a--lost/refs/main": "3d",
	} {
		if err := os.WriteFile(filepath.Join(cache, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	t.Setenv("HF_HUB_CACHE", cache)
	return cache
}

// A name is found by its refs and by the commit itself; nothing leads out of the cache.
func TestLocate(t *testing.T) {
	cache := cacheOf(t)
	t.Chdir(t.TempDir())

	for text, want := range map[string]string{
		"a/b": "1f", "a/b@main": "1f", "a/b@refs/pr/1": "2e", "a/b@2e": "2e",
	} {
		dir, err := Locate(text)
		if err != nil || dir != filepath.Join(cache, "models--a--b/snapshots", want) {
			t.Errorf("%s: %s, %v", text, dir, err)
		}
		if n, ok := Of(dir); !ok || n.ID() != "a/b" {
			t.Errorf("%s is of %v", dir, n)
		}
	}

	for _, text := range []string{"a/c", "a/lost", "a/b@other", "a/b@up", "a/b@long"} {
		dir, err := Locate(text)
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), cache) ||
			!strings.Contains(failure.Hint(err), "compress pull "+text) {
			t.Errorf("%s: %s, %v, hint %q", text, dir, err, failure.Hint(err))
		}
	}

	for _, text := range []string{"plain", "a/b/c", "/none/there"} {
		if dir, err := Locate(text); dir != text || err != nil {
			t.Errorf("%s: %s, %v", text, dir, err)
		}
	}

	// A folder goes first, but not for a revision, which it does not have.
	if err := os.MkdirAll("a/b", 0o777); err != nil {
		t.Fatal(err)
	}
	if dir, err := Locate("a/b"); dir != "a/b" || err != nil {
		t.Errorf("a folder: %s, %v", dir, err)
	}
	if dir, err := Locate("a/b@2e"); filepath.Base(dir) != "2e" || err != nil {
		t.Errorf("a revision: %s, %v", dir, err)
	}
	if _, err := Locate("a/b@9"); err == nil || !strings.Contains(err.Error(), "has no revisions") {
		t.Errorf("a folder with a revision: %v", err)
	}
}

// TestLocateFile: a GGUF file in a snapshot is named by the name and the path in it, and nothing leads out.
func TestLocateFile(t *testing.T) {
	cache := cacheOf(t)
	t.Chdir(t.TempDir())
	model := filepath.Join(cache, "models--a--b")
	put := func(name, text string) {
		err := os.MkdirAll(filepath.Dir(filepath.Join(model, name)), 0o777)
		if err == nil {
			err = os.WriteFile(filepath.Join(model, name), []byte(text), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("blobs/1", "GGUF")
	put("outside.gguf", "GGUF")
	put("snapshots/1f/x.gguf", "GGUF")
	put("snapshots/2e/Q4/y.GGUF", "GGUF")
	for at, to := range map[string]string{"1f/z.gguf": "../../blobs/1", "1f/out.gguf": "../../outside.gguf"} {
		if err := os.Symlink(to, filepath.Join(model, "snapshots", at)); err != nil {
			t.Fatal(err)
		}
	}

	for text, want := range map[string]string{
		"a/b/x.gguf": "1f/x.gguf", "a/b@main/z.gguf": "1f/z.gguf", "a/b@refs/pr/1/Q4/y.GGUF": "2e/Q4/y.GGUF",
		"a/b@2e/Q4/y.GGUF": "2e/Q4/y.GGUF",
	} {
		path, err := Locate(text)
		if err != nil || path != filepath.Join(model, "snapshots", want) {
			t.Errorf("%s: %s, %v", text, path, err)
		}
		if found, ok := Find(text); !ok || found != path {
			t.Errorf("%s is found at %s, %v", text, found, ok)
		}
	}

	for text, hint := range map[string]string{
		"a/b/other.gguf":      "these are: a/b/out.gguf, a/b/x.gguf, a/b/z.gguf",
		"a/b@2e/other.gguf":   "these are: a/b@2e/Q4/y.GGUF",
		"a/b/out.gguf":        "",
		"a/c/x.gguf":          "compress pull a/c --include 'x.gguf'",
		"a/b@none/Q4/y.gguf":  "compress pull a/b@none --include 'Q4/y.gguf'",
		"a/lost@9/model.gguf": "compress pull a/lost@9 --include 'model.gguf'",
	} {
		path, err := Locate(text)
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(failure.Hint(err), hint) ||
			hint == "" && !strings.Contains(err.Error(), "leads to no blob") {
			t.Errorf("%s: %s, %v, hint %q", text, path, err, failure.Hint(err))
		}
	}

	for _, text := range []string{
		"a/b/../x.gguf", "a/b/../../outside.gguf", "a/b@2e/../../outside.gguf", "/a/b/x.gguf", "a/b/out.gguf",
	} {
		if found, ok := Find(text); ok {
			t.Errorf("%s is found at %s", text, found)
		}
		if path, err := Locate(text); err == nil && path != text {
			t.Errorf("%s: %s", text, path)
		}
	}

	if err := os.MkdirAll("a/b", 0o777); err != nil {
		t.Fatal(err)
	}
	if path, err := Locate("a/b/x.gguf"); path != "a/b/x.gguf" || err != nil {
		t.Errorf("in a folder of that name: %s, %v", path, err)
	}
}

// The environment's words for the cache, in huggingface_hub's order.
func TestCacheDir(t *testing.T) {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", "/h")

	for _, c := range [][3]string{
		{"HOME", "/h", "/h/.cache/huggingface/hub"},
		{"XDG_CACHE_HOME", "/x", "/x/huggingface/hub"},
		{"HF_HOME", "/f", "/f/hub"},
		{"HUGGINGFACE_HUB_CACHE", "/old", "/old"},
		{"HF_HUB_CACHE", "/c", "/c"},
	} {
		t.Setenv(c[0], c[1])
		if got := CacheDir(); got != c[2] {
			t.Errorf("with %s: %s, want %s", c[0], got, c[2])
		}
	}
}

func TestOf(t *testing.T) {
	for _, path := range []string{
		"/c/models--a--b/snapshots/1", "/c/models--a--b/snapshots/1/", "models--a--b/snapshots/1/m.gguf",
		"/c/models--a--b/snapshots/1/Q4/m-00001-of-00002.gguf",
	} {
		if n, ok := Of(path); !ok || n.ID() != "a/b" {
			t.Errorf("%s is of %v", path, n)
		}
	}

	for _, dir := range []string{
		"x", "/", "/c/models--a--b", "/c/models--a--b/blobs/1", "/c/datasets--a--b/snapshots/1",
	} {
		if n, ok := Of(dir); ok {
			t.Errorf("%s is of %v", dir, n)
		}
	}
}
