package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindText: a file wins over a name, the folder of the environment over the cache, and what is nowhere is told with
// the command that gets it.
func TestFindText(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv(DataDir, "")
	t.Chdir(t.TempDir())

	write := func(parts ...string) string {
		path := filepath.Join(parts...)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("text"), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	expect := func(name, use, want string, joined bool) {
		t.Helper()
		path, join, err := findText(name, use)
		if err != nil || path != want || join != joined {
			t.Errorf("%s to %s: %q %v %v, want %q", name, use, path, join, err, want)
		}
	}

	_, _, err := findText("wikitext2", ToMeasure)
	if err == nil || !IsUsage(err) || !strings.Contains(oneLine(err), "(HINT: hf download Salesforce/wikitext "+
		"wikitext-2-raw-v1/test-00000-of-00001.parquet --repo-type dataset; or") {
		t.Errorf("nowhere: %v", err)
	}
	expect("other", ToLearn, "other", false)
	expect("folder/c4", ToLearn, "folder/c4", false)

	repo := filepath.Join(cache, "datasets--Salesforce--wikitext")
	write(repo, "refs", "main")
	if err := os.WriteFile(filepath.Join(repo, "refs", "main"), []byte("abc"), 0o666); err != nil {
		t.Fatal(err)
	}
	train := write(repo, "snapshots", "abc", "wikitext-2-raw-v1", "train-00000-of-00001.parquet")
	expect("WikiText2", ToLearn, train, true)
	if _, _, err := findText("wikitext2", ToMeasure); err == nil {
		t.Error("the other part is not there")
	}

	own := t.TempDir()
	t.Setenv(DataDir, own)
	whole := write(own, "c4.jsonl")
	expect("c4", ToLearn, whole, false)
	expect("c4", ToMeasure, whole, false)
	part := write(own, "c4-test.txt")
	expect("c4", ToLearn, whole, false)
	expect("c4", ToMeasure, part, false)
	expect("mine", ToLearn, "mine", false)
	expect("mine", ToLearn, "mine", false)
	mine := write(own, "mine", "train.parquet")
	expect("mine", ToLearn, mine, false)

	write("c4")
	expect("c4", ToMeasure, "c4", false)
}
