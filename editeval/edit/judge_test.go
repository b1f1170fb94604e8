package edit

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// facts are the parts of a suite that are about records of text.
type facts struct {
	Records []int                `json:"records"`
	ROME    []string             `json:"rome_templates"`
	MEMIT   [][]string           `json:"memit_templates"`
	Base    []map[string]float64 `json:"base_metrics"`
}

// names are the reference's names of our metrics.
var metricNames = map[string]string{
	"ES": "efficacy_success", "EM": "efficacy_magnitude", "ES_argmax": "efficacy_exact", "PS": "paraphrase_success",
	"PM":        "paraphrase_magnitude",
	"PS_argmax": "paraphrase_exact", "PtS": "paraphrase_trained_success", "PtM": "paraphrase_trained_magnitude",
	"PtS_argmax": "paraphrase_trained_exact",
	"NS":         "neighborhood_success", "NM": "neighborhood_magnitude", "NS_argmax": "neighborhood_exact",
	"S": "score",
}

// TestOracleRecords compares tokens and positions of records, and their metrics on the untouched model and
// after the edits whose cases have some.
func TestOracleRecords(t *testing.T) {
	for _, path := range oracle(t) {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			var f facts
			text, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(text, &f)
			}
			if err != nil {
				t.Fatal(err)
			}

			if len(f.Records) == 0 {
				t.Skip("no records of text")
			}

			s := load(t, path)
			set, err := Read(filepath.Join(s.dir, "..", filepath.Base(s.dir)+"-counterfact.json"))
			if err != nil {
				t.Fatal(err)
			}

			tok, err := tokenizer.Load(filepath.Join(s.dir, "../../../data", filepath.Base(s.dir), "base"))
			if err != nil {
				t.Skip(err)
			}

			var records []Record
			for _, i := range f.Records {
				records = append(records, set.Records[i])
			}

			s.tokens(t, tok, records, [][]string{f.ROME}, s.ROME)
			s.tokens(t, tok, records, f.MEMIT, s.MEMIT)
			s.metrics(t, tok, records, f)
		})
	}
}

func (s *suite) tokens(t *testing.T, tok *tokenizer.Tokenizer, records []Record, templates [][]string, want []request) {
	t.Helper()
	x := &Encoder{Tokenizer: tok, Templates: templates}
	for i := range records {
		got, err := x.Record(&records[i])
		if err != nil {
			t.Fatal(err)
		}

		if w := want[i].encoded(); !reflect.DeepEqual(got, w) {
			t.Errorf("record %d: %+v, want %+v", i, got, w)
		}
	}
}

func (s *suite) metrics(t *testing.T, tok *tokenizer.Tokenizer, records []Record, f facts) {
	x := &Encoder{Tokenizer: tok}
	st := s.statistics(t)
	e, err := New(s.m, Options{Method: "rome", Statistics: st})
	if err != nil {
		t.Fatal(err)
	}

	s.judged(t, "base", e, x, records, f.Base)

	for _, c := range s.Cases {
		var name string
		var want []map[string]float64
		_ = json.Unmarshal(c["name"], &name)
		if c["metrics"] == nil || json.Unmarshal(c["metrics"], &want) != nil {
			continue
		}
		if name != "memit" && name != "grace" && name[:min(5, len(name))] != "rome." {
			continue // one of each kind: the deltas of the others are compared elsewhere
		}

		s.after(t, name, c, st, x, records, want)
	}
}

// after repeats a case's edits and compares what they did to the records.
func (s *suite) after(t *testing.T, name string, c map[string]json.RawMessage, st *Statistics, x *Encoder,
	records []Record, want []map[string]float64,
) {
	method := map[byte]string{'r': "rome", 'm': "memit", 'g': "grace"}[name[0]]
	hp := s.hyper(t, c, method)
	e, err := New(s.m, Options{Method: method, HParams: &hp, Statistics: st})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		e.Close()
		if err := e.Undo(0); err != nil {
			t.Error(err)
		}
	}()

	switch method {
	case "grace":
		s.grace(t, c, e)
	case "rome":
		_, err = e.Apply(context.Background(), s.requests(t, c, s.ROME), nil)
	default:
		_, err = e.Apply(context.Background(), s.requests(t, c, s.MEMIT), nil)
	}
	if err != nil {
		t.Fatal(err)
	}

	s.judged(t, name, e, x, records, want)
}

func (s *suite) judged(t *testing.T, what string, e *Editing, x *Encoder, records []Record, want []map[string]float64) {
	t.Helper()
	j, err := e.Judge(context.Background(), x, records)
	if err != nil {
		t.Fatal(err)
	}

	for i, w := range want {
		for theirs, ours := range metricNames {
			// probabilities after deltas within tolDelta
			if v, ok := w[theirs]; ok && math.Abs(v-j.Records[i][ours]) > 1e-3 {
				t.Errorf("%s: record %d: %s %g, want %g", what, i, ours, j.Records[i][ours], v)
			}
		}
	}
}
