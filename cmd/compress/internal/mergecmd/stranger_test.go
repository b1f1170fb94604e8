package mergecmd

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/jobs"
)

// TestFalseRatings: what is no rating is not taken for one, above all not for a perfect one.
func TestFalseRatings(t *testing.T) {
	for _, text := range []string{
		"null", "{}", "", "[]", `{"failed":""}`, `{"score":null}`, `{"score":1,"failed":"x"}`,
		`{"score":1,"more":1}`, `{"score":1e999}`, `{"score":1}{"score":2}`,
	} {
		if r, err := readRating([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, r)
		}
	}

	if r, err := readRating([]byte(`{"score":0.5}`)); err != nil || r.Score != 0.5 {
		t.Error(r, err)
	}

	if r, err := readRating([]byte(`{"score":-1,"failed":"\u001b[2J"}`)); err != nil ||
		strings.ContainsRune(r.Failed, 0x1b) {
		t.Error(r, err)
	}
}

// TestForeignCandidates: only the recipe of the offer with other numbers is merged, and only under its own name.
func TestForeignCandidates(t *testing.T) {
	recipe := "merge_method: linear\nmodels:\n  - model: a\n    parameters: {weight: {search: [0, 1]}}\n  - model: " +
		"b\n    parameters: {weight: 1}\n"
	b := newBench(&SearchSpec{Path: "recipe.yaml", Recipe: recipe}, t.TempDir(), 0, nil)
	for _, text := range []string{
		"", "null", "{", strings.Replace(recipe, "{search: [0, 1]}", "2", 1),
		strings.Replace(recipe, "model: b", "model: /etc", 1), recipe,
	} {
		for _, id := range []string{"x", cli.Fingerprint(text)[:32]} {
			if _, err := b.handle(t.Context(), jobs.Item{ID: id, Data: []byte(text)}); !errors.Is(err, jobs.ErrItem) {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
}

// TestForeignOffers: a damaged offer is refused, and what a coordinator hears of a worker's files is that they are not
// its own.
func TestForeignOffers(t *testing.T) {
	for _, s := range []SearchSpec{{}, {Hashes: []string{"x"}}, {Files: map[string]string{"/etc/hostname": "x"}}} {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}

		if len(s.Hashes)+len(s.Files) == 0 {
			text = []byte("null")
		}

		_, _, err = ServeSearch(t.Context(), &workers.Worker{}, text)
		if !errors.Is(err, jobs.ErrRefused) {
			t.Errorf("%s: %v", text, err)
		}

		var part interface{ Public() string }
		if s.Files != nil && (!errors.As(err, &part) || strings.Contains(part.Public(), "hash")) {
			t.Errorf("%s: the coordinator hears %v", text, err)
		}
	}
}
