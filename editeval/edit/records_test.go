package edit

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRecordForms: the three forms give the same edit; the subject is cut out at its last place in the prompt.
func TestRecordForms(t *testing.T) {
	for name, c := range map[string]struct {
		text, format string
		want         Record
	}{
		"CounterFact": {
			`[{"case_id": 7, "requested_rewrite": {"prompt": "{} is in", "subject": "Rome", "relation_id": "P1",
			  "target_new": {"str": "Spain"}, "target_true": {"str": "Italy"}},
			  "paraphrase_prompts": ["Where is Rome? In"], "neighborhood_prompts": ["Milan is in"]}]`,
			"counterfact",
			Record{
				ID: "7", Prompt: "{} is in", Subject: "Rome", New: "Spain", True: "Italy", Relation: "P1",
				Rephrase: []string{"Where is Rome? In"}, Near: []string{"Milan is in"},
			},
		},
		"zsRE": {
			`[{"subject": "Rome", "src": "Rome, that is Rome, is in", "alt": "Spain", "answers": ["Italy", "EU"],
			  "rephrase": "Where?", "loc": "nq question: who", "loc_ans": "me"}]`,
			"zsre",
			Record{
				ID: "0", Prompt: "Rome, that is {}, is in", Subject: "Rome", New: "Spain", True: "Italy",
				Rephrase: []string{"Where?"}, Far: []Question{{"who?", "me"}},
			},
		},
		"EasyEdit": {
			`[{"subject": "Rome", "prompt": "Rome is in", "target_new": "Spain", "ground_truth": "Italy",
			  "locality_prompt": ["Milan is in", "2+2 is"], "locality_ground_truth": ["Italy", "4"],
			  "portability": {"b": {"prompt": "q", "ground_truth": "a"}}}]`,
			"easyedit",
			Record{
				ID: "0", Prompt: "{} is in", Subject: "Rome", New: "Spain", True: "Italy",
				Near: []string{"Milan is in"}, Far: []Question{{"2+2 is", "4"}}, Ported: []Question{{"q", "a"}},
			},
		},
	} {
		s, err := parse([]byte(c.text), ReadOptions{})
		if err != nil || s.Format != c.format || len(s.Records) != 1 {
			t.Errorf("%s: %+v %v", name, s, err)
			continue
		}
		if diff := cmp.Diff(c.want, s.Records[0]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestNoSubject: where no method looks for a subject, a record without one is about its whole prompt; otherwise it is a
// fault.
func TestNoSubject(t *testing.T) {
	for name, text := range map[string]string{
		"CounterFact": `[{"requested_rewrite": {"prompt": "Rome is in ", "target_new": {"str": "Spain"}}}]`,
		"zsRE":        `[{"src": "Rome is in", "alt": "Spain"}]`,
		"EasyEdit":    `[{"prompt": "Rome is in", "target_new": "Spain", "subject": ""}]`,
	} {
		if _, err := parse([]byte(text), ReadOptions{}); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", name, err)
		}
		s, err := parse([]byte(text), ReadOptions{NoSubject: true})
		if err != nil || s.Records[0].Full() != "Rome is in" || s.Records[0].Prompt != "{}" {
			t.Errorf("%s: %+v %v", name, s, err)
		}
	}

	const bad = `[{"prompt": "{} is in", "target_new": "Spain"}]`
	if _, err := parse([]byte(bad), ReadOptions{NoSubject: true}); !errors.Is(err, ErrRecord) {
		t.Errorf("a place for a subject that is not there: %v", err)
	}
	for method, want := range map[string]bool{
		"ultraedit": false, "ft": false, "grace": false, "rome": true, "wise": true,
	} {
		if NeedsSubject(method) != want {
			t.Error(method)
		}
	}
}

// fact is a record of EasyEdit's form.
func fact(subject, prompt, answer string) string {
	return `{"subject": "` + subject + `", "prompt": "` + prompt + `", "target_new": "` + answer +
		`", "ground_truth": "Italy"}`
}

func listed(records ...string) []byte { return []byte("[" + strings.Join(records, ",") + "]") }

// TestRecordRemarks: what is odd about records is said of the later one, with the number of the earlier.
func TestRecordRemarks(t *testing.T) {
	s, err := parse(listed(
		fact("Rome", "Rome is in", "Spain"), fact("Milan", "Milan is in", " Italy"), fact("Rome", "{} is in", "Spain "),
		fact("Rome", "Rome is in", "France"),
	), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}

	want := []Remark{
		{1, `the new answer " Italy" is the present one`, 1, false},
		{2, "the same edit as record 0", 0, false},
		{3, `contradicts record 0: "France", there "Spain"`, 0, true},
	}
	if !slices.Equal(s.Remarks, want) {
		t.Errorf("%+v", s.Remarks)
	}
	if over := overruled(s.Records); !maps.Equal(over, map[int]int{0: 3, 2: 3}) {
		t.Errorf("overruled in one batch: %v", over)
	}
	if over := overruled(s.Records[:3]); len(over) > 0 {
		t.Errorf("overruled before the contradiction: %v", over)
	}
}

// TestCountAndSkip: faults beyond the records that are wanted do not matter, and skipped ones are replaced by the next.
func TestCountAndSkip(t *testing.T) {
	good, bad := fact("Rome", "Rome is in", "Spain"), fact("Oslo", "Rome is in", "Spain")
	text := listed(good, bad, fact("Nice", "Nice is in", "Spain"), fact("Bonn", "Bonn is in", ""))

	s, err := parse(text, ReadOptions{Count: 1})
	if err != nil || len(s.Records) != 1 {
		t.Errorf("the first one: %v", err)
	}

	s, err = parse(text, ReadOptions{Count: 2, Skip: true})
	if err != nil || len(s.Records) != 2 || s.Records[1].Subject != "Nice" || len(s.Skipped) != 1 ||
		s.Skipped[0].Index != 1 || !strings.Contains(s.Skipped[0].What, "subject is not in the prompt") {
		t.Errorf("two good ones: %+v %v", s, err)
	}

	_, err = parse(text, ReadOptions{})
	if !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), "record 1: ") ||
		!strings.Contains(err.Error(), "record 3: target_new: empty") || strings.Contains(err.Error(), "\n") {
		t.Errorf("all faults: %v", err)
	}

	if _, err := parse(listed(bad, bad), ReadOptions{Skip: true}); !errors.Is(err, ErrRecord) {
		t.Errorf("nothing is left: %v", err)
	}
}

// TestRecordFaults: each is named by record and field.
func TestRecordFaults(t *testing.T) {
	for text, want := range map[string]string{
		`[`:                     "not a JSON array",
		`{}`:                    "not a JSON array",
		`[] []`:                 "something after the array",
		`[]`:                    "no records",
		"\ufeff[]":              "no records", // a mark before the text is no part of it
		"\ufeff \n":             "nothing in it",
		"":                      "nothing in it",
		`[{"a": 1}]`:            "record 0 has none of requested_rewrite",
		"[{\"src\": \"\xff\"}]": "not UTF-8",
		`[{"requested_rewrite": {"prompt": "{} {}", "subject": "a", "target_new": {"str": "b"}}}]`: "not exactly one {}",
		`[{"requested_rewrite": {"prompt": "{}", "subject": "a", "target_new": {"str": 3}}}]`:      "target_new: str: not a string",
		`[{"requested_rewrite": 5}]`: "record 0: requested_rewrite: not an object",
		`[{"subject": "a", "prompt": "a", "target_new": "b", "locality_prompt": ["c"]}]`: "0 answers for 1 prompts",
	} {
		_, err := parse([]byte(text), ReadOptions{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
