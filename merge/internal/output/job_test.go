package output

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestJobOf: choices and files change the hash; what is not there, and what JSON cannot say, are told apart.
func TestJobOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	hash := func(choice any, paths ...string) string {
		t.Helper()
		h, err := JobOf(map[string]any{"choice": choice}, paths)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}

	none := hash(1)
	if hash(2) == none || hash(1, path) != none {
		t.Error("the hash does not follow the choices alone")
	}
	if err := os.WriteFile(path, []byte("1"), 0o666); err != nil {
		t.Fatal(err)
	}

	one := hash(1, path)
	if err := os.WriteFile(path, []byte("12"), 0o666); err != nil {
		t.Fatal(err)
	}
	if two := hash(1, path); one == none || two == one || hash(1, path) != two {
		t.Error("the hash does not follow the file")
	}
	if _, err := JobOf(map[string]any{"choice": math.NaN()}, nil); err == nil {
		t.Error("a choice without JSON is taken")
	}
	if _, err := JobOf(nil, []string{filepath.Join(path, "below")}); err == nil {
		t.Error("a file below a file is taken")
	}
}

// TestJobKept: what a result keeps does not follow times and folders; whether a result is that of a job does.
func TestJobKept(t *testing.T) {
	now := time.Unix(1e9, 0)
	job := func(at time.Time) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, []byte("1"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}

		of, err := JobOf(map[string]any{"choice": 1}, []string{path})
		if err != nil {
			t.Fatal(err)
		}

		if of, err = JobAnd(of, "prompts"); err != nil {
			t.Fatal(err)
		}

		return of
	}

	one, later := job(now), job(now.Add(time.Hour))
	if one == later || JobKept(one) != JobKept(later) {
		t.Errorf("%s and %s", one, later)
	}
	if other, err := JobAnd(one, "others"); err != nil || JobKept(other) == JobKept(one) {
		t.Error(other, err)
	}

	for _, c := range []struct {
		kept, job string
		want      bool
	}{
		{JobKept(one), one, true},
		{JobKept(one), later, false},
		{"x", one, false},
		{"plain", "plain", true},
		{JobKept(one), JobKept(one) + "@x@y", false},
	} {
		if got := jobMade(c.kept, now.Add(time.Minute), c.job); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
