package gp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// ranks is a fitness whose answers depend on the rest of the batch.
type ranks struct{ Fitness }

func (b ranks) EvaluateBatch(ctx context.Context, list []*Expr) ([]Outcome, error) {
	out := make([]Outcome, len(list))
	for i, e := range list {
		q, err := b.Evaluate(ctx, e)
		if err != nil {
			return nil, err
		}

		out[i] = Outcome{
			Quality: q + float64(len(list))/1000,
			Detail:  json.RawMessage(fmt.Sprintf(`{"place":%d,"of":"\u003c%d"}`, i, len(list))),
		}
		if i == 3 {
			out[i] = Outcome{Rejected: "the fourth", Detail: out[i].Detail}
		}
	}

	return out, nil
}

// TestBatchCutOff: a batch of which the journal has the beginning is asked for as a whole, so that answers that
// depend on the batch stay what they were; what the fitness notes beside them is seen again.
func TestBatchCutOff(t *testing.T) {
	dir := t.TempDir()
	fit := ranks{distance(t, "W*sqrt(X)")}
	o := toy()
	o.Generations, o.Journal = 3, filepath.Join(dir, "whole")

	details := ""
	o.Events.Evaluated = func(_ *Expr, out Outcome, _ Counts) { details += string(out.Detail) }
	r, err := Search(t.Context(), PaperGrammar(), fit, o)
	if err != nil {
		t.Fatal(err)
	}

	want, seen := bytesOf(t, r), details
	journal, _ := os.ReadFile(o.Journal)
	o.Journal, o.Resume = filepath.Join(dir, "cut"), true
	for at := range 23 {
		details = ""
		if err := os.WriteFile(o.Journal, journal[:len(journal)*at/22], 0o644); err != nil {
			t.Fatal(err)
		}

		r, err := Search(t.Context(), PaperGrammar(), fit, o)
		if err != nil {
			t.Fatalf("cut at %d/22: %v", at, err)
		}

		if after, _ := os.ReadFile(o.Journal); !bytes.Equal(bytesOf(t, r), want) || !bytes.Equal(after, journal) ||
			details != seen {
			t.Errorf("cut at %d/22: another result, journal or notes", at)
		}
	}

	if err := os.WriteFile(o.Journal, journal[:len(journal)*9/10], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Search(t.Context(), PaperGrammar(), ranks{distance(t, "W*sqrt(G)")}, o); !errors.Is(err, ErrJournal) {
		t.Errorf("a fitness that answers otherwise: %v", err)
	}
}
