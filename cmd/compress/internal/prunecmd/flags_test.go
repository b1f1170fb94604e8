package prunecmd

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/safetensors"
)

// given are flags of prune as a command line gives them, with the defaults of the program.
func given(t *testing.T, line string) Options {
	t.Helper()
	o := Options{Method: "magnitude", Pattern: "unstructured", Sparsity: .5, Save: "dense"}
	o.Samples = 8
	set := pflag.NewFlagSet("prune", pflag.ContinueOnError)
	o.Add(set)
	o.AddSearch(set)
	o.AddKeep(set)
	set.StringVar(&o.Method, "method", o.Method, "")
	set.StringVar(&o.Pattern, "pattern", o.Pattern, "")
	set.StringVar(&o.Group, "group", o.Group, "")
	set.StringVar(&o.Save, "save", o.Save, "")
	set.StringVar(&o.Calib, "calib", "", "")
	set.StringVar(&o.MasksFrom, "masks-from", "", "")
	set.StringVar(&o.Adapter, "adapter", "", "")
	set.Float64Var(&o.Sparsity, "sparsity", o.Sparsity, "")
	set.IntVar(&o.Samples, "samples", o.Samples, "")
	set.IntVar(&o.SeqLen, "seqlen", 0, "")
	if err := set.Parse(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestFlagsToTheLibrary: every flag reaches the field of the library's options that it is about, and nothing else.
func TestFlagsToTheLibrary(t *testing.T) {
	for line, holds := range map[string]func(o prune.Options) bool{
		"": func(o prune.Options) bool {
			return o.Metric.Name == "magnitude" && o.Sparsity == .5 && !o.TrueSequential && o.HessianMemory == 2<<30 &&
				o.Allocation.Name == prune.Uniform && o.Update.Name == "" && o.Gradients.File == ""
		},
		"--pattern 2:4 --permutation interleave": func(o prune.Options) bool {
			return o.Pattern == prune.Pattern{N: 2, M: 4} && o.Permutation == prune.Interleave
		},
		"--sequential true --calib c --method wanda --hessian-memory 1MB": func(o prune.Options) bool {
			return o.TrueSequential && o.HessianMemory == 1_000_000
		},
		"--update admm --calib c --damp 0.2 --admm-steps 3 --admm-mask-steps 2 --admm-polish 4": func(
			o prune.Options,
		) bool {
			u := o.Update
			return u.Name == prune.ADMM && u.Damping == .2 && u.Steps == 3 && u.MaskSteps == 2 && u.Polish == 4
		},
		"--update dsnot --calib c --dsnot-cycles 5 --dsnot-threshold 0.3 " +
			"--dsnot-same-sign --dsnot-strict --dsnot-mlp": func(
			o prune.Options,
		) bool {
			u := o.Update
			return u.Cycles == 5 && u.Threshold == .3 && u.SameSign && u.Strict && u.MLP
		},
		"--update sparsegpt --calib c --update-guard": func(o prune.Options) bool { return o.Update.Guard },
		"--allocation owl --calib c --owl-m 7 --owl-lambda 0.1": func(o prune.Options) bool {
			return o.Allocation.Name == prune.OWL && o.Allocation.M == 7 && o.Allocation.Lambda == .1
		},
		"--allocation search --calib c --method wanda --generations 3 --offspring 5": func(o prune.Options) bool {
			return o.Allocation.Name == prune.Search && o.Allocation.Generations == 3 && o.Allocation.Offspring == 5
		},
		"--allocation alpha --alpha-epsilon 0.2 --alpha-estimator hill": func(o prune.Options) bool {
			return o.Allocation.Epsilon == .2 && o.Allocation.Estimator == prune.Hill
		},
		"--masks-from m --sparsity 0.5": func(o prune.Options) bool {
			return o.MasksFrom == "m" && o.Metric.Name == "" && o.Sparsity == 0
		},
		"--method wanda --calib c --swaps 3 --swap-diagonal 0.5": func(o prune.Options) bool {
			return o.Swaps == 3 && o.SwapDiagonal == .5
		},
		"--method oats --calib c --rank-share 0.3 --rank-turns 9 --adapter a": func(o prune.Options) bool {
			return o.LowRank.Share == .3 && o.LowRank.Turns == 9
		},
		"--method pruner-zero --calib c --save-grads g --grads-exact": func(o prune.Options) bool {
			return o.Gradients.Keep == "g" && o.Gradients.Exact
		},
	} {
		o := given(t, line)
		if p, err := o.options(); err != nil || !holds(p) {
			t.Errorf("%s: %v, %+v", line, err, p)
		}
	}
}

// TestFlagsThatCannotBe: each wrong value is a wrong use, in words that name the flag or list what is known.
func TestFlagsThatCannotBe(t *testing.T) {
	for line, want := range map[string]string{
		"--save packed":      `--save "packed"; known: dense, bitmask`,
		"--sparsity 1":       "--sparsity 1: want 0 or more and less than 1 (HINT: 0.5 is half of the weights)",
		"--sparsity NaN":     "--sparsity NaN",
		"--sparsity -0.1":    "--sparsity -0.1",
		"--samples 0":        "--samples 0: want 1 or more",
		"--seqlen 1":         "--seqlen 1: want 2 or more",
		"--damp 2":           "--damp 2: want 0 to 1",
		"--damp NaN":         "--damp NaN",
		"--block-size -1":    "--block-size -1",
		"--rank-share 0.3":   "--rank-share and --rank-turns go with --method oats",
		"--rank-share 1":     "--rank-share 1: want more than 0 and less than 1",
		"--rank-turns -1":    "--rank-turns -1: want 1 or more",
		"--adapter a":        "--adapter a: method magnitude has no low-rank parts",
		"--method oats":      "the low-rank parts have no place (HINT: give --adapter DIR)",
		"--generations 3":    "generations and offspring belong to search",
		"--swap-diagonal 1":  "--swap-diagonal 1: no swaps to make (HINT: add --swaps N",
		"--swap-diagonal -1": "--swap-diagonal -1: want 0 or more",
		"--sequential both":  `--sequential "both"; known: block, true`,
		"--hessian-memory 5": "--hessian-memory",
		"--method wnda":      "wanda",
		"--method expr:" + strings.Repeat("W+", 60): `"…`,
		"--method wanda":                    "method wanda: no calibration data (HINT: give --calib FILE",
		"--update sparsegpt":                "--update sparsegpt: no calibration data",
		"--masks-from m --update sparsegpt": "--update sparsegpt: no calibration data",
		"--pattern 4:2":                     "pattern 4:2",
	} {
		err := Check(given(t, line))
		if !cli.IsUsage(err) || !strings.Contains(err.Error(), want) || len(err.Error()) > 700 {
			t.Errorf("%s: %v", line, err)
		}
	}

	// a file that is not there is a failure of the work
	var unread *fs.PathError
	if err := Check(given(t, "--overrides /nowhere/o.yaml")); !errors.As(err, &unread) || cli.IsUsage(err) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestPlacesOfPruning: outputs that name the same place, are in the way or would replace what is not ours, and inputs
// that are not there, are told before the model is opened.
func TestPlacesOfPruning(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "model")
	if err := os.Mkdir(model, 0o777); err != nil {
		t.Fatal(err)
	}

	tensors := func(name string, meta map[string]string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		w, err := safetensors.Create(path, nil, meta, safetensors.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	masks := tensors("masks.safetensors", map[string]string{"meaning": "U8, 1 = kept"})
	grads := tensors("grads.safetensors", map[string]string{"made_from": "x"})
	if isMasks(grads) || isGradients(masks) || !isMasks(masks) || !isGradients(grads) || isMasks("/nowhere") {
		t.Error("files of ours are known by what they say")
	}

	check := func(change func(o *Options)) error {
		o := Options{Out: filepath.Join(dir, "out")}
		change(&o)
		said := clitest.Run(t, func(j *cli.Job) (any, error) { return nil, o.checkPlaces(j, model) })
		return said.Err
	}

	for want, change := range map[string]func(o *Options){
		"":                                      func(*Options) {},
		"--out and --masks name the same file":  func(o *Options) { o.Masks = o.Out },
		"--masks and --save-grads name the":     func(o *Options) { o.Masks, o.Flags.SaveTo = masks, masks },
		"model":                                 func(o *Options) { o.Out = model },
		"output already exists (HINT: choose":   func(o *Options) { o.Masks = masks },
		"not a file of masks of an earlier run": func(o *Options) { o.Masks = grads },
		"not a file of gradients of an earlier": func(o *Options) { o.Flags.SaveTo = masks },
		"--calib: ":                             func(o *Options) { o.Calib = filepath.Join(dir, "none") },
		"--grads: ":                             func(o *Options) { o.Gradients = filepath.Join(dir, "none") },
		"--masks-from: ":                        func(o *Options) { o.MasksFrom = filepath.Join(dir, "none") },
	} {
		err := check(change)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}

	for name, change := range map[string]func(o *Options){
		"overwritten": func(o *Options) { o.Masks, o.Overwrite = masks, true },
		"resumed":     func(o *Options) { o.Masks, o.Resume = masks, true },
		"gradients":   func(o *Options) { o.Flags.SaveTo = grads },
	} {
		if err := check(change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	other := filepath.Join(dir, "other")
	if err := os.MkdirAll(filepath.Join(other, "thesis"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := check(func(o *Options) { o.Out, o.Overwrite = other, true }); !errors.Is(err, checkpoint.ErrTarget) {
		t.Errorf("a folder of somebody else: %v", err)
	}
	if err := check(func(o *Options) { o.Out, o.Resume = other, true }); err != nil {
		t.Errorf("with --resume the library looks at it: %v", err)
	}
}

// TestProgressOfBlocks: whatever the stages and their counts, the walk over the blocks begins at 0, does not go beyond
// a block before the next one begins, and ends at the end.
func TestProgressOfBlocks(t *testing.T) {
	const blocks = 3
	rapid.Check(t, func(t *rapid.T) {
		measured := rapid.Bool().Draw(t, "measured")
		of := rapid.IntRange(1, 40).Draw(t, "of")
		last := int64(0)
		for block := range blocks {
			stages := []prune.Stage{prune.Select}
			if measured {
				stages = []prune.Stage{prune.Statistics, prune.Select, prune.Propagate}
			}

			for _, stage := range stages {
				for done := range of + 1 {
					at := position(prune.Step{Stage: stage, Block: block, Done: done, Of: of}, blocks, measured)
					if at < last || at < int64(block)*blockSteps || at > int64(block+1)*blockSteps {
						t.Fatalf("block %d, %s, %d of %d: %d after %d", block, stage, done, of, at, last)
					}
					last = at
				}
			}
		}

		if last != blocks*blockSteps || position(prune.Step{Stage: prune.Save}, blocks, measured) != last {
			t.Fatalf("it ends at %d", last)
		}
		if at := position(prune.Step{Stage: prune.Select, Block: 1}, blocks, measured); at < blockSteps {
			t.Fatalf("a stage of nothing: %d", at)
		}
	})
}

// TestPrunedInWords: the table by role, what was chosen by, what an update gained, and what it cost.
func TestPrunedInWords(t *testing.T) {
	r := &Report{Out: "out", Report: &prune.Report{
		Meaning: "half of every row", Options: prune.Options{Metric: prune.Magnitude()},
		Tensors: []prune.Tensor{
			{Name: "q0", Role: "q", Zeros: 50, Kept: 50},
			{Name: "up0", Role: "up", Zeros: 10, Kept: 30},
			{Name: "q1", Role: "q", Zeros: 25, Kept: 75},
		},
		Total: prune.Total{Matrices: 3, Weights: 240, Zeros: 85, Sparsity: 85. / 240, Overall: .125},
		Notes: []string{"mind \x1b[2J"}, Times: prune.Times{Total: 1.25},
	}, Packed: &checkpoint.Conversion{BytesIn: 2000, BytesOut: 1200}}

	out, said := clitest.Show(t, func(j *cli.Job) { r.print(j) })
	want := `role  matrices  weights  zeros  zeros %
───────────────────────────────────────
q            2      200     75    37.50
up           1       40     10    25.00
all          3      240     85    35.42
magnitude, half of every row; 12.5 % of all parameters are zero
packed: 1.2 kB instead of 2 kB
written to out in `
	if !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " s, 1.2 of them pruning\n") ||
		said != "mind \\x1b[2J\n" {
		t.Errorf("have\n%s\nwant\n%s\n%q", out, want, said)
	}

	r.Options.Update, r.Options.Allocation = prune.Update{Name: prune.ADMM}, prune.Allocation{Name: prune.OWL}
	r.Total.NearTies = 7
	r.Tensors[0].Change = &prune.Change{Masked: .5, Updated: .25}
	r.Tensors[2].Change = &prune.Change{Masked: .25, Updated: .125}
	out, _ = clitest.Show(t, func(j *cli.Job) { r.print(j) })
	for _, want := range []string{
		"magnitude with update admm, allocation owl, half",
		"; 7 near ties: weights of which the CPU may choose otherwise\n",
		"relative squared error of the outputs on the calibration data: 0.3750 by zeroing, 0.1875 with the update\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}

	r.Options = prune.Options{MasksFrom: "m.safetensors", Update: prune.Update{Name: prune.NoUpdate}}
	if got := r.method(); got != "masks of m.safetensors" {
		t.Error(got)
	}
}

// TestComparisonsInWords: what is shared is named beside the seconds, figures that are none have words, and
// methods that are not told apart have their probability.
func TestComparisonsInWords(t *testing.T) {
	for p, want := range map[float64]string{.04: "0.0400", .00005: "<0.0001", 1: "1.0000", .0001: "0.0001"} {
		if got := chance(p); got != want {
			t.Errorf("%g: %s", p, got)
		}
	}
	if chance(math.NaN()) != "n/a" {
		t.Error(chance(math.NaN()))
	}

	r := sampleRuns()
	if strings.Contains(table(r).Note, "leave out") {
		t.Errorf("nothing is shared: %s", table(r).Note)
	}
	r.Runs[0].Shared = 1.5
	r.Runs[3].Shared = 2
	r.Runs[1].CPU = 8
	got := table(r)
	if !strings.Contains(got.Note, "; seconds leave out 3.5 for gradients and allocations") || got.Rows[2][10] != 8.0 ||
		got.Rows[1][10] != nil ||
		got.Cell(0, 3) != "2.000" ||
		got.Cell(1, 5) != "1.500" {
		t.Errorf("%s %v", got.Note, got.Rows)
	}

	// the last one has fewer zeros and comes in front; the axis is logarithmic from three times on
	curve := charts(r)[0]
	if !curve.Y.Log || curve.Series[0].Y[1] != 30 {
		t.Errorf("%+v", curve)
	}
	r.Runs[5].Perplexity = 5.9
	if charts(r)[0].Y.Log {
		t.Error("less than three times as much")
	}
}
