package router

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// named are prompts of experts that are asked in the same words: each has people of its own, and their names alone tell
// them apart. Features say nothing. Others have words of their own.
func named(rng *rand.Rand) (experts [][]Prompt, others []Prompt, ask func(expert, person int, words ...int32) Prompt) {
	feature := func() []float64 {
		x := make([]float64, 6)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		_ = Normalize(x) // of normal draws it cannot fail
		return x
	}

	ask = func(expert, person int, words ...int32) Prompt {
		first, last := int32(1000+person%5), int32(1100+expert*20+person/5) // first names are shared
		return Prompt{feature(), Grams(append([]int32{first, last}, words...))}
	}
	for e := range 2 {
		var list []Prompt
		for person := range 20 {
			for k := range int32(3) {
				list = append(list, ask(e, person, 10*k, 10*k+1, 10*k+2))
			}
		}
		experts = append(experts, list)
	}

	for range 60 {
		ids := make([]int32, 8)
		for i := range ids {
			ids[i] = 2000 + rng.Int32N(200)
		}
		others = append(others, Prompt{feature(), Grams(ids)})
	}

	return experts, others, ask
}

// TestNamesTellExpertsApart: in words that no prompt had, a name that one had finds its expert; prompts like the
// foreign ones are told; and the file gives the same judge.
func TestNamesTellExpertsApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	experts, others, ask := named(rng)
	r, q, err := FitNearest(experts, others, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if q.HeldOut != 120 || q.Others != 60 || q.Accuracy < 0.95 || q.Told < 0.95 || q.Lost > 0.05 ||
		q.Warning() != "" {
		t.Errorf("%+v", q)
	}

	path := filepath.Join(t.TempDir(), "r.safetensors")
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path, 2)
	if err != nil {
		t.Fatal(err)
	}

	// JudgePrompt hashes tokens, so that the prompts are made of tokens here.
	ids := func(expert, person int) []int32 {
		return []int32{int32(1000 + person%5), int32(1100 + expert*20 + person/5), 77, 78}
	}
	wrong, lost := 0, 0
	for e := range 2 {
		for person := range 20 {
			x := ask(e, person).Feature
			p, energy, odds, err := r.JudgePrompt(x, ids(e, person))
			if err != nil {
				t.Fatal(err)
			}
			if best(p) != e {
				wrong++
			}
			if odds > r.Outside {
				lost++
			}

			p2, energy2, odds2, err := again.JudgePrompt(x, ids(e, person))
			if err != nil || !slices.Equal(p, p2) || energy != energy2 || odds != odds2 {
				t.Fatalf("read again: %v and %v, %v and %v: %v", p, p2, odds, odds2, err)
			}
		}
	}
	if wrong > 2 || lost > 4 {
		t.Errorf("%d of 40 wrong, %d lost", wrong, lost)
	}

	told := 0
	for range 40 {
		code := make([]int32, 8)
		for i := range code {
			code[i] = 2000 + rng.Int32N(200)
		}
		_, _, odds, err := r.JudgePrompt(others[0].Feature, code)
		if err != nil {
			t.Fatal(err)
		}
		if odds > r.Outside {
			told++
		}
	}
	if told < 36 {
		t.Errorf("%d of 40 foreign prompts told", told)
	}

	if _, _, _, err := r.Judge(others[0].Feature); !errors.Is(err, ErrFeature) {
		t.Errorf("a feature alone: %v", err)
	}
	if _, _, _, err := r.JudgePrompt([]float64{1}, nil); !errors.Is(err, ErrFeature) {
		t.Errorf("a short feature: %v", err)
	}
}

// TestNearestFile: a file of another number of experts, and one whose prompts do not follow each other, are refused.
func TestNearestFile(t *testing.T) {
	experts, others, _ := named(rand.New(rand.NewPCG(5, 6)))
	r, _, err := FitNearest(experts, others, Options{})
	if err != nil {
		t.Fatal(err)
	}

	for what, spoil := range map[string]func(s *shelf){
		"class":      func(s *shelf) { s.class[1] = 9 },
		"ends":       func(s *shelf) { s.ends[0] = s.ends[1] + 1 },
		"beyond":     func(s *shelf) { s.ends[len(s.ends)-1]++ },
		"descending": func(s *shelf) { s.grams[0], s.grams[1] = s.grams[1], s.grams[0] },
	} {
		whole := *r.shelf
		s := shelf{grams: slices.Clone(whole.grams), ends: slices.Clone(whole.ends), class: slices.Clone(whole.class)}
		spoil(&s)
		r.shelf = &s
		path := filepath.Join(t.TempDir(), what)
		if err := r.Save(path); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path, 2); !errors.Is(err, ErrFile) {
			t.Errorf("%s: %v", what, err)
		}
		r.shelf = &whole
	}

	path := filepath.Join(t.TempDir(), "sound")
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, 3); !errors.Is(err, ErrFile) {
		t.Errorf("three experts: %v", err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, 2); err == nil {
		t.Error("cut off")
	}
}

// TestNearestOfFewPrompts: with one prompt of each expert nothing is held out, and that is said; without any it is an
// error.
func TestNearestOfFewPrompts(t *testing.T) {
	experts, others, _ := named(rand.New(rand.NewPCG(7, 8)))
	_, q, err := FitNearest([][]Prompt{experts[0][:1], experts[1][:1]}, others, Options{})
	if err != nil || q.Accuracy != 0 && q.HeldOut == 0 {
		t.Errorf("%+v %v", q, err)
	}
	if _, _, err := FitNearest([][]Prompt{experts[0], nil}, others, Options{}); !errors.Is(err, ErrPrompts) {
		t.Errorf("%v", err)
	}
}
