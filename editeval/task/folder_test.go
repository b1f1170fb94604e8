package task

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
)

// into evaluates a model into a folder.
func into(t *testing.T, ctx context.Context, of *opened, out string, f FolderOptions, o Options) error {
	t.Helper()
	s, err := Load([]string{nano + "/tasks/base.yaml", nano + "/tasks/subtract.yaml"})
	if err != nil {
		t.Fatal(err)
	}

	folder, err := OpenFolder(out, f)
	if err != nil {
		return err
	}

	_, err = folder.Run(ctx, of.m, of.tok, s, o)
	return errors.Join(err, folder.Close())
}

// TestFolder: an evaluation that is interrupted leaves its answers and nothing under its name; resumed it has the files
// of one that was not. A finished one is widened, and neither narrowed nor replaced unasked.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	of := open(t, nano+"/base")
	o := Options{Limit: 4, Bootstrap: -1}
	kept := FolderOptions{Samples: true, Resume: true}
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	if err := into(t, t.Context(), of, whole, kept, o); err != nil {
		t.Fatal(err)
	}
	want := tree(t, whole)

	ctx, cancel := context.WithCancel(t.Context())
	cut := o
	cut.Progress = func(task string, done, _ int64) {
		if task == "subtract" && done > 0 {
			cancel()
		}
	}
	if err := into(t, ctx, of, out, kept, cut); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	if _, err := os.Lstat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is there: %v", err)
	}
	if !answered(filepath.Join(dir, ".out.answers")) {
		t.Error("no answers were kept")
	}

	folder, err := OpenFolder(out, FolderOptions{})
	if err != nil || !folder.Discarded {
		t.Errorf("without Resume: %+v, %v", folder, err)
	}
	if err := folder.Close(); err != nil {
		t.Fatal(err)
	}

	for range 2 { // the second time what was finished is gone on with
		if err := into(t, t.Context(), of, out, kept, o); err != nil {
			t.Fatal(err)
		}
		if got := tree(t, out); !maps.Equal(got, want) {
			t.Errorf("%v", got)
		}
	}

	if err := into(t, t.Context(), of, out, FolderOptions{Samples: true}, o); !errors.Is(err, stage.ErrExists) {
		t.Errorf("in place of a finished one: %v", err)
	}

	wider := o
	wider.Limit = 6
	if err := into(t, t.Context(), of, out, kept, wider); err != nil {
		t.Errorf("wider: %v", err)
	}
	if err := into(t, t.Context(), of, out, kept, o); !errors.Is(err, ErrNarrower) ||
		!strings.Contains(err.Error(), "limit was 6, now 4") {
		t.Errorf("narrower: %v", err)
	}
	if err := into(t, t.Context(), of, out, FolderOptions{Overwrite: true}, o); err != nil {
		t.Errorf("replaced: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(out, "samples_base.jsonl")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("samples that were not asked for: %v", err)
	}

	other := o
	other.Identity = "another model"
	if err := into(t, t.Context(), of, out, FolderOptions{Resume: true}, other); !errors.Is(err, ErrOtherRun) ||
		!errors.Is(err, ErrOtherModel) {
		t.Errorf("another model: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, ".out.answers")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy of the answers is still there: %v", err)
	}

	if err := os.WriteFile(filepath.Join(out, "notes.txt"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := into(t, t.Context(), of, out, FolderOptions{Overwrite: true}, o); !errors.Is(err, ErrForeign) {
		t.Errorf("with another file: %v", err)
	}
}

// TestDamagedCache: what is said of a damaged file of the cache is about that file, and the output stays free.
func TestDamagedCache(t *testing.T) {
	dir := t.TempDir()
	cache, out := filepath.Join(dir, "cache"), filepath.Join(dir, "out")
	o := Options{Bootstrap: -1, Limit: 2, Cache: cache}
	of := open(t, nano+"/base")
	if err := into(t, t.Context(), of, out, FolderOptions{}, o); err != nil {
		t.Fatal(err)
	}

	files, err := filepath.Glob(filepath.Join(cache, "answers-*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(files[0], []byte("rubbish\n"), 0o666); err != nil {
		t.Fatal(err)
	}

	err = into(t, t.Context(), of, filepath.Join(dir, "again"), FolderOptions{}, o)
	if !errors.Is(err, ErrCache) || !errors.Is(err, ErrAnswers) || errors.Is(err, ErrOtherRun) ||
		!strings.Contains(err.Error(), files[0]+":1: ") || !strings.Contains(failure.Hint(err), "--cache") {
		t.Errorf("%v (HINT: %s)", err, failure.Hint(err))
	}

	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	if err := into(t, t.Context(), of, filepath.Join(dir, "again"), FolderOptions{}, o); err != nil {
		t.Errorf("without that file: %v", err)
	}
}

// TestNarrower: every option that changes figures is noticed, under the name that it has in the results.
func TestNarrower(t *testing.T) {
	two, four := 2, 4
	no := false
	was := Options{Limit: 4, Shots: &two, MaxLength: 90, System: "be brief"}
	system := was.System
	before := &Results{
		Configs: map[string]any{"a": nil, "b": nil}, System: &system, Config: Setup{Options: was, FewshotSeed: 1234},
	}
	if list := narrower(before, []string{"a", "b", "c"}, &was); len(list) > 0 {
		t.Errorf("the same: %q", list)
	}

	for want, change := range map[string]func(o *Options){
		"limit was 4, now 3":                        func(o *Options) { o.Limit = 3 },
		"limit was 4, now 0.5":                      func(o *Options) { o.Limit, o.Share = 0, 0.5 },
		"num_fewshot was 2, now 4":                  func(o *Options) { o.Shots = &four },
		"fewshot_seed was 1234, now 3":              func(o *Options) { o.Seed = new(uint64); *o.Seed = 3 },
		"special was not given, now false":          func(o *Options) { o.Special = &no },
		"max_length was 90, now 0":                  func(o *Options) { o.MaxLength = 0 },
		`system_instruction was "be brief", now ""`: func(o *Options) { o.System = "" },
		"a chat template was not given, now it is":  func(o *Options) { o.Chat = &Chat{} },
	} {
		now := was
		change(&now)
		if list := narrower(before, []string{"a", "b"}, &now); len(list) != 1 || list[0] != want {
			t.Errorf("%q: %q", want, list)
		}
	}

	for _, more := range []int{5, 0} { // 0: all
		now := was
		now.Limit = more
		if list := narrower(before, []string{"a", "b"}, &now); len(list) > 0 {
			t.Errorf("limit %d: %q", more, list)
		}
	}
	list := narrower(before, []string{"b"}, &was)
	if len(list) != 1 || list[0] != "task a was evaluated and now is not" {
		t.Errorf("without a: %q", list)
	}
}
