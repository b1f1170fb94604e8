package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// output runs a command line and gives what it prints as JSON.
func output(t *testing.T, line string) map[string]any {
	t.Helper()
	words := strings.Fields(line)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "~", " ")
	}

	var stdout, stderr strings.Builder
	if code := run(append(words, "--json", "--quiet"), &stdout, &stderr); code != 0 {
		t.Fatalf("%s: exit code %d: %s", line, code, &stderr)
	}
	var all map[string]any
	if err := json.Unmarshal([]byte(stdout.String()), &all); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return all
}

// TestKeptVerbs: what a model measures, says and learns in its bits is what its decoded values do, but for the rounding
// of sums, and of values to BF16 where the scales of a folder are that; and under --fast but for that of activations.
func TestKeptVerbs(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		scheme, flags string
		rounded       float64 // how far perplexities and losses may be apart, as a fraction
	}{
		// Sums of F32 are off by 1e-7 of their terms, a loss of hundreds of sums by less than ten times that.
		{"q8_0", "", 1e-6},
		{"q4_0", "", 1e-6},
		{"q4_1", "", 1e-6},
		{"q5_0", "", 1e-6},
		{"q4_k_m", "", 1e-6},
		{"q6_k", "", 1e-6},
		// A value is off by 2^-9 of itself, those of a sum in all directions; of a loss about a tenth of that is left.
		{"w4a16", "--group-size 32", 0x1p-9},
		{"w4a16_asym", "--group-size 32", 0x1p-9},
		{"w8a16", "", 0x1p-9},
		{"w8a8", "", 0x1p-9},
	} {
		t.Run(c.scheme, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.Symlink(nano, "nano"); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile("nano/text/test.txt")
			if err != nil {
				t.Fatal(err)
			}
			write(t, "short.txt", string(text[:4000]))

			model := "model"
			if strings.HasPrefix(c.scheme, "q") {
				model = "model.gguf"
			}
			output(t, "quantize nano/base --to "+c.scheme+" "+c.flags+" --out "+model)

			number := func(line, key string) float64 { return output(t, line)[key].(float64) }
			measure := "ppl " + model + " --data short.txt --seqlen 64"
			ppl := number(measure, "ppl")
			want := number(measure+" --decode", "ppl")
			fast := number(measure+" --fast", "ppl")
			if gap := math.Abs(ppl/want - 1); gap > c.rounded {
				t.Errorf("perplexity %v, decoded %v", ppl, want)
			}
			// Steps of 1/127 of the largest activation of a block move a loss by far less than a step.
			if gap := math.Abs(fast/want - 1); gap > 1.0/127 || fast == ppl {
				t.Errorf("perplexity %v under --fast, decoded %v", fast, want)
			}

			say := "generate " + model + " --prompt 3~+~4~= --max-tokens 12"
			if a, b := output(t, say)["text"], output(t, say+" --decode")["text"]; a != b {
				t.Errorf("text %q, decoded %q", a, b)
			}

			train := "lora train " + model +
				" --data nano/text/calib.txt --steps 3 --batch 1 --seqlen 32 --lr 0.01 --out "
			steps := func(line string) (losses []float64) {
				for _, s := range output(t, line)["steps"].([]any) {
					losses = append(losses, s.(map[string]any)["loss"].(float64))
				}
				return losses
			}
			losses, plain := steps(train+"kept"), steps(train+"decoded --decode")
			for i := range plain {
				if gap := math.Abs(losses[i]/plain[i] - 1); gap > 10*c.rounded {
					t.Errorf("losses of training %v, decoded %v", losses, plain)
				}
			}
			adapted := number(measure+" --adapter kept", "ppl")
			if gap := math.Abs(adapted/number(measure+" --decode --adapter decoded", "ppl") - 1); gap > 10*c.rounded {
				t.Errorf("perplexity %v with the adapter, off by %v", adapted, gap)
			}
			if adapted == ppl {
				t.Error("the adapter has no effect")
			}

			tasks := "eval " + model + " --tasks nano/tasks/base.yaml --limit 3 --bootstrap-iters 10 --out "
			output(t, tasks+"one")
			output(t, tasks+"two --decode")
			if a, b := answers(t, "one"), answers(t, "two"); !slices.Equal(a, b) {
				t.Errorf("scores %v, decoded %v", a, b)
			}
		})
	}
}

// answers are the scores of an evaluation.
func answers(t *testing.T, dir string) (scores []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Results map[string]json.RawMessage `json:"results"`
	}
	if err := json.Unmarshal(text, &all); err != nil || len(all.Results) == 0 {
		t.Fatal(err)
	}
	for name, r := range all.Results {
		scores = append(scores, name+string(r))
	}
	slices.Sort(scores)
	return scores
}

// TestKeptStudies: verbs without --decode compute with weights in their bits too.
func TestKeptStudies(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for link, to := range map[string]string{"nano": nano, "other": filepath.Join(nano, "tales")} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range verbInputs {
		write(t, file, strings.ReplaceAll(text, "MODEL", "model.gguf"))
	}

	output(t, "quantize nano/base --to q5_1 --out model.gguf")
	output(t, "editeval plan.yaml --out study")
	output(t, "eval batch batch.yaml --out batch")
	output(t, "edit model.gguf --edits nano/edits.json --count 1 --method rome --texts 1 --out edited "+
		"--stats nano/text/calib.txt --stats-tokens 2000")
	output(t, "edit verify edited --base model.gguf")
	output(t, "edit trace model.gguf --prompt Question:~14~+~6~= --subject 14 --samples 1")
}
