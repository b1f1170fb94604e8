package mediate

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge"
)

const nanoFamily = "../../testdata/nano/"

// copied is a copy of a model whose elements are changed, as the two bytes of bfloat16.
func copied(t *testing.T, from string, change func(i int, v []byte)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.safetensors")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := 8 + int(binary.LittleEndian.Uint64(data))
	for i := first; i < len(data); i += 2 {
		change((i-first)/2, data[i:i+2])
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What models have in common decides: fine-tunes that contradict each other, runs of one training, models that change
// other elements; the base among them is left out, and what is no fine-tune is refused. Every recipe can be read.
func TestRecommend(t *testing.T) {
	base := nanoFamily + "base"
	sums, news := nanoFamily+"sums", nanoFamily+"news"
	again := copied(t, base, func(int, []byte) {})
	nearly := copied(t, sums, func(i int, v []byte) {
		if i%50 == 0 {
			v[0] ^= 1 // the last bit
		}
	})
	// Each changes elements of its own, by half of their size.
	one := copied(t, base, func(i int, v []byte) {
		if i%40 == 0 {
			v[0] ^= 0x40
		}
	})
	other := copied(t, base, func(i int, v []byte) {
		if i%40 == 1 {
			v[0] ^= 0x40
		}
	})
	turned := copied(t, base, func(_ int, v []byte) { v[1] ^= 0x80 })

	for _, c := range []struct {
		name   string
		models []string
		keep   bool
		method string
		left   int
		err    error
	}{
		{"experts", []string{sums, news}, false, "wudi_closed", 0, nil},
		{"three experts", []string{sums, news, other}, false, "consensus", 0, nil},
		{"experts, base kept", []string{sums, news}, true, "opcm", 0, nil},
		{"one run", []string{sums, nearly}, false, "linear", 0, nil},
		{"other elements", []string{one, other}, false, "task_arithmetic", 0, nil},
		{"with the base", []string{sums, base, news}, false, "wudi_closed", 1, nil},
		{"with a copy of the base", []string{sums, again, news}, false, "wudi_closed", 1, nil},
		{"twice", []string{sums, news, sums}, false, "", 0, ErrNothing},
		{"nothing but the base", []string{sums, base}, false, "", 0, ErrNothing},
		{"one", []string{sums}, false, "", 0, ErrNothing},
		{"another model", []string{sums, turned}, false, "", 0, ErrApart},
	} {
		r, err := Recommend(t.Context(), base, c.models, RecommendOptions{KeepBase: c.keep})
		if c.err != nil {
			if !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if r.Method != c.method || len(r.Left) != c.left || !strings.Contains(r.Why, "cosine") {
			t.Errorf("%s: %s, %d left out, want %s: %s", c.name, r.Method, len(r.Left), c.method, r.Why)
		}
		for _, text := range append([]string{r.Recipe}, recipes(r)...) {
			if _, err := merge.Parse("r.yaml", []byte(text)); err != nil {
				t.Errorf("%s: %v in\n%s", c.name, err, text)
			}
			if n := strings.Count(text, "- model:"); n != len(c.models)-c.left {
				t.Errorf("%s: %d models in\n%s", c.name, n, text)
			}
		}
	}
}

func recipes(r *Recommendation) (list []string) {
	for _, a := range r.Others {
		if a.Recipe != "" {
			list = append(list, a.Recipe)
		}
	}
	return list
}
