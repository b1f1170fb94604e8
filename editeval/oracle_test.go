package editeval

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
)

// referenceRow is a line of the reference's table.
type referenceRow struct {
	Edits   int                `json:"edits"`
	Edit    map[string]float64 `json:"edit"`
	Ability map[string]float64 `json:"ability"`
}

// TestOracleRetention: the reference's table of sequential editing at ten edits, for the methods that take
// seconds. The reference computes with weights in F32 and the model stores BF16, so that single answers may tip
// over: one of ten edits, three of a hundred facts.
func TestOracleRetention(t *testing.T) {
	dir := os.Getenv("COMPRESS_ORACLE")
	if dir == "" {
		dir = "../../shared/oracle"
	}

	var table struct {
		Methods map[string][]referenceRow `json:"methods"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "editing", "retention.json"))
	base := filepath.Join(dir, "../data/lab/base")
	if _, missing := os.Stat(base); err != nil || missing != nil {
		t.Skipf("%s or %s is not there", filepath.Join(dir, "editing/retention.json"), base)
	}
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}

	cheap := map[string]Editor{
		"ft":    {Name: "ft", Method: "ft-l", HParams: "{layers: [2], learning_rate: 0.001, steps: 25, eps: 0.005}"},
		"grace": {Name: "grace", Method: "grace", HParams: "{layers: [4], learning_rate: 1, steps: 30, eps: 1}"},
	}

	const edits = 10
	p := Plan{
		Edits: []string{filepath.Join(dir, "editing/lab-counterfact.json")}, Counts: []int{edits}, Near: 5,
		Drift: 1, Draws: 100, Tasks: []Task{{Entry: "../cmd/compress/testdata/editeval/lab_facts.yaml"}},
	}

	for name := range table.Methods {
		if e, ok := cheap[name]; ok {
			p.Editors = append(p.Editors, e)
		}
	}

	if len(p.Editors) == 0 {
		t.Skip("the table has none of the methods that take seconds")
	}

	m, err := lm.Load(t.Context(), base, cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	rows := study(t, m, p, "").Models[0].Rows
	for _, row := range rows[1:] {
		for _, want := range table.Methods[row.Editor] {
			if want.Edits != edits {
				continue
			}

			for _, c := range []struct {
				name           string
				got, want, tol float64
			}{
				{"edits that hold", row.Held.Mean, want.Edit["ES"], 0.1},
				{"likeliest", float64(row.Exact), want.Edit["ES_argmax"], 0.1},
				{"paraphrases", float64(row.Paraphrase), want.Edit["PS"], 0.1},
				{"neighbours", float64(row.Neighborhood), want.Edit["NS"], 0.04},
				{"facts", float64(row.Abilities["facts"].Value), want.Ability["facts_mc_acc"], 0.03},
			} {
				if math.Abs(c.got-c.want) > c.tol {
					t.Errorf("%s, %d edits: %s %.3f, the reference has %.3f", row.Editor, edits, c.name, c.got, c.want)
				}
			}
		}
	}
}
