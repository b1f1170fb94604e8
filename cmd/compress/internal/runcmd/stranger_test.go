package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/jobs"
)

// TestStrangersOrders: an item starts nothing but a job that the folder itself has handed over, as the folder says it:
// not a command line that comes along, not another key, by which outputs would be removed, not a job that is not due,
// not a name that leads elsewhere.
func TestStrangersOrders(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, stateFolder), 0o777); err != nil {
		t.Fatal(err)
	}

	var ran [][]string
	m := &team{
		dir: dir, threads: 1, hashes: newHasher("", dir), began: func(string) {},
		session: func() bool { return true },
	}
	m.run = func(_ context.Context, args []string, _, _ *os.File) (int, error) {
		ran = append(ran, args)
		return 0, os.WriteFile(filepath.Join(dir, "a"), []byte("result"), 0o666)
	}

	due := call{
		Job: "a", Key: "k", Args: []string{"inspect", "model", "--out=a"},
		Files: []string{"a", "a.report.json"}, Outputs: []string{"a"},
	}
	if err := due.write(dir); err != nil {
		t.Fatal(err)
	}
	if err := (call{Job: "out", Key: "k", Args: []string{"x"}, Files: []string{"../precious"}}).write(dir); err != nil {
		t.Fatal(err)
	}

	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o666); err != nil {
		t.Fatal(err)
	}

	for _, text := range []string{
		"null", "", "{}", `{"job":"a","key":"other"}`, `{"job":"b","key":"k"}`, `{"job":"../a","key":"k"}`,
		`{"job":"out","key":"k"}`,
		`{"job":"a","key":"k","args":["prune","--overwrite"]}`,
		`{"job":"evil","key":"","args":["inspect"],"files":["precious"],"outputs":[]}`,
	} {
		if _, err := m.handle(t.Context(), jobs.Item{ID: "x", Data: []byte(text)}); !errors.Is(err, jobs.ErrItem) {
			t.Errorf("%s: %v", text, err)
		}
	}

	if len(ran) > 0 || missing(precious) {
		t.Fatalf("a stranger had %q run", ran)
	}

	said, err := m.handle(t.Context(), jobs.Item{ID: "x", Data: []byte(`{"job":"a","key":"k"}`)})
	if err != nil || len(ran) != 1 || strings.Join(ran[0], " ") != "inspect model --out=a" {
		t.Fatalf("%q: %v", ran, err)
	}

	// What is said to be done has to be done.
	r := &run{dir: dir, hashes: newHasher("", dir)}
	check := func(data string) error {
		k, err := json.Marshal(order{"a", "k"})
		if err != nil {
			t.Fatal(err)
		}
		return r.checked(t.Context(), jobs.Item{Data: k}, []byte(data))
	}

	if err := check(string(said)); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("something else"), 0o666); err != nil {
		t.Fatal(err)
	}

	for _, text := range []string{
		string(said), "null", "{}", `{"state":"done","seconds":-1}`, `{"state":"done","seconds":1,"failure":"x"}`,
		`{"state":"failed","seconds":1}`, `{"state":"kept","seconds":1,"more":1}`,
	} {
		if err := check(text); err == nil {
			t.Errorf("%s is believed", text)
		}
	}
}

// TestStrangersFolders: an offer for a folder that does not itself say so is refused.
func TestStrangersFolders(t *testing.T) {
	dir := t.TempDir()
	for _, s := range []session{{ID: "x", Dir: dir, From: "/"}, {ID: "x", Dir: ".", From: ""}, {}} {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := vouched(&workers.Worker{}, text); !errors.Is(err, jobs.ErrRefused) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
