package merge

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/mergetest"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// TestExpertLayouts: a merge gives the same bits whether its models keep the experts of a block in one tensor
// or each in its own; the output does as the base, or else the first model.
func TestExpertLayouts(t *testing.T) {
	for _, name := range []string{"mixtral", "olmoe", "qwen2_moe", "qwen3_moe"} {
		a, err := arch.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
			t.Run(name+" "+d.String(), func(t *testing.T) {
				t.Parallel()
				compareLayouts(t, a, d)
			})
		}
	}
}

// compareLayouts merges two checkpoints of a type by several methods, each in both layouts.
func compareLayouts(t *testing.T, a *arch.Arch, d safetensors.DType) {
	x, y := mergetest.MixtureTensors(t, a, 1), mergetest.MixtureTensors(t, a, 2)
	one, two := [2]string{}, [2]string{}
	for i, fused := range []bool{false, true} {
		one[i], two[i] = mergetest.WriteMixture(t, a, x, fused, d), mergetest.WriteMixture(t, a, y, fused, d)
	}

	for _, recipe := range []string{
		"merge_method: linear\nmodels:\n  - {model: %s, parameters: {weight: 0.3}}\n  - {model: %s, " +
			"parameters: {weight: 0.7}}\n",
		"merge_method: ties\nbase_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, " +
			"density: 0.4}}\n",
		"merge_method: dare_ties\n" +
			"base_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, density: 0.5}}\n",
		"merge_method: slerp\nbase_model: %[1]s\nparameters: {t: 0.4}\nmodels:\n  - model: %[1]s\n  - " +
			"model: %[2]s\n",
		"merge_method: passthrough\n" +
			"slices:\n  - sources: [{model: %[1]s, layer_range: [1, 2]}]\n  - sources: [{model: %[2]s, " +
			"layer_range: [0, 2]}]\n",
	} {
		var want map[string]string
		for i := range one {
			for j := range two {
				out := filepath.Join(t.TempDir(), "out")
				if _, err := Models(t.Context(), parse(t, fmt.Sprintf(recipe, one[i], two[j])), out,
					Options{}); err != nil {
					t.Fatalf("%d, %d: %v\n%s", i, j, err, recipe)
				}

				got, fused := mergetest.Apart(t, a, out)
				if fused != (i == 1) {
					t.Errorf("%d, %d: fused is %v\n%s", i, j, fused, recipe)
				}
				if want == nil {
					want = got
				}
				if differ := mergetest.Differing(want, got); len(differ) > 0 || len(got) != len(want) {
					t.Errorf("%d, %d: %v differ, %d tensors, want %d\n%s", i, j, differ, len(got), len(want), recipe)
				}
			}
		}
	}
}

// TestExpertLayoutsDiffer: experts that would not share a type stay tensors of their own, and that is said.
func TestExpertLayoutsDiffer(t *testing.T) {
	a, err := arch.Lookup("qwen3_moe")
	if err != nil {
		t.Fatal(err)
	}

	x := mergetest.MixtureTensors(t, a, 1)
	first, second := mergetest.WriteMixture(t, a, x, true, safetensors.F32),
		mergetest.WriteMixture(t, a, mergetest.MixtureTensors(t, a, 2), false, safetensors.F32)
	text := "merge_method: linear\nmodels:\n  - {model: %s, parameters: {weight: 1}}\n  - {model: %s, parameters: " +
		"{weight: 1}}\n"
	out := filepath.Join(t.TempDir(), "out")
	r, err := Models(t.Context(), parse(t, fmt.Sprintf(text, first, second)), out, Options{})
	if err != nil || !slices.ContainsFunc(r.Warnings, func(s string) bool {
		return strings.Contains(s,
			"the output does as")
	}) {
		t.Fatal(r, err)
	}

	for name, v := range x {
		if strings.Contains(name, "experts.2.up_proj") { // an expert less in one layer
			delete(x, name)
			_ = v
		}
	}

	lacking := mergetest.WriteMixture(t, a, x, false, safetensors.F32)
	r, err = Models(t.Context(), parse(t, fmt.Sprintf(text, first, lacking)), filepath.Join(t.TempDir(), "out"),
		Options{Missing: "skip"})
	if err != nil || !slices.ContainsFunc(r.Warnings, func(s string) bool {
		return strings.Contains(s,
			"tensors of its own")
	}) {
		t.Fatal(r, err)
	}
}

// TestExpertLayoutsResume: a merge that is cut off anywhere is resumed to the same bytes when the experts of a
// block share tensors, of which only those are kept that have all their parts.
func TestExpertLayoutsResume(t *testing.T) {
	a, err := arch.Lookup("qwen3_moe")
	if err != nil {
		t.Fatal(err)
	}

	x, y := mergetest.WriteMixture(t, a, mergetest.MixtureTensors(t, a, 1), true, safetensors.F32),
		mergetest.WriteMixture(t, a, mergetest.MixtureTensors(t, a, 2), false, safetensors.F32)
	r := parse(t, fmt.Sprintf("merge_method: dare_ties\n"+
		"base_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, density: 0.5}}\n", x, y))
	whole := filepath.Join(t.TempDir(), "out")
	if _, err := Models(t.Context(), r, whole, Options{}); err != nil {
		t.Fatal(err)
	}

	want := mergetest.Files(t, whole)
	for stop := 1; stop < 22; stop += 4 { // of 23 parts and tensors
		out := filepath.Join(t.TempDir(), "out")
		whole := cutOff(t, r, out, stop)
		if len(whole) > stop {
			t.Errorf("stopped at %d: %q are kept", stop, whole)
		}
		if _, err := Models(t.Context(), r, out, Options{Resume: true}); err != nil {
			t.Fatal(err)
		}
		if d := mergetest.Differing(mergetest.Files(t, out), want); len(d) > 0 {
			t.Errorf("stopped at %d: %v differ", stop, d)
		}
	}
}

// cutOff ends a merge once so many tensors or parts of them are written, and lists the tensors that lie in
// others which it keeps: all that lie in one of those, or none.
func cutOff(t *testing.T, r Recipe, dir string, stop int) (kept []string) {
	t.Helper()
	all := job.Handle(r).Recipe()
	w, err := job.Open(t.Context(), all, all.Docs[0], nil, job.Options(Options{}.Job()))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	key, err := identity(w, Options{Memory: DefaultMemory})
	if err != nil {
		t.Fatal(err)
	}

	open := func() *output.Folder {
		out, err := output.Open(dir,
			output.Options{Resume: true, Job: key, Tensors: w.Layout(), Joints: w.Plan.Joints, Every: 1})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	out := open()
	groups, err := w.Groups(out.Done)
	if err != nil {
		t.Fatal(err)
	}

	errStop := errors.New("cut off")
	o := w.Engine()
	n := 0
	written := map[string]bool{}
	o.Threads = 1
	o.Written = func(name string) error {
		n++
		if n > stop {
			return errStop
		}
		written[name] = true
		return out.Written(name)
	}

	if _, err := stream.Run(t.Context(), groups, out, o); !errors.Is(err, errStop) {
		t.Fatal(err)
	}
	if err := out.Suspend(); err != nil {
		t.Fatal(err)
	}

	out = open()
	for _, j := range w.Plan.Joints {
		for _, p := range j.Parts {
			if out.Done(p.Name) {
				kept = append(kept, p.Name)
			}
			if out.Done(p.Name) && !written[p.Name] {
				t.Errorf("stopped at %d: %s is kept and was not written", stop, p.Name)
			}
		}
	}

	if err := out.Suspend(); err != nil {
		t.Fatal(err)
	}

	return kept
}
