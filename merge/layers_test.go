package merge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge/internal/mergetest"
	"github.com/modelcompress/compress/safetensors"
)

// TestLayersTwice: slices whose layer ranges overlap stack those layers twice, as they are; ranges beyond the
// model are refused before anything is written.
func TestLayersTwice(t *testing.T) {
	text := "merge_method: passthrough\nslices:\n- sources: [{model: " + nano + "base, layer_range: [0, 3]}]\n" +
		"- sources: [{model: " + nano + "sums, layer_range: [1, %d]}]\n"
	dst := filepath.Join(t.TempDir(), "out")
	if _, err := Models(context.Background(), parse(t, fmt.Sprintf(text, 4)), dst, Options{}); err != nil {
		t.Fatal(err)
	}

	out, sums := tensorsOf(t, dst), tensorsOf(t, nano+"sums")
	for layer := range 3 {
		name := fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", 3+layer)
		from := fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", 1+layer)
		if got := out[name]; len(got) == 0 || !slices.Equal(got, sums[from]) {
			t.Errorf("%s is not %s of the second model", name, from)
		}
	}

	beyond := filepath.Join(t.TempDir(), "out")
	if _, err := Models(context.Background(), parse(t, fmt.Sprintf(text, 40)), beyond, Options{}); err == nil {
		t.Error("40 layers of a model with 4 are taken")
	}

	empty(t, filepath.Dir(beyond))
}

// tensorsOf are the bytes of all tensors of a folder.
func tensorsOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	all := map[string][]byte{}
	for _, name := range d.Names() {
		data, err := d.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = slices.Clone(data)
	}

	return all
}

// empty checks that nothing lies in a folder.
func empty(t *testing.T, dir string) {
	t.Helper()
	if left := mergetest.Files(t, dir); len(left) > 0 {
		t.Errorf("%d files are left in %s", len(left), dir)
	}
}

// TestTensorMissing: a tensor that one model lacks is refused by name, or merged from the others, copied or
// left out, as the caller says.
func TestTensorMissing(t *testing.T) {
	const gone = "model.layers.2.mlp.up_proj.weight"
	thin := filepath.Join(t.TempDir(), "thin")
	in, err := safetensors.OpenDir(nano + "sums")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()

	var infos []safetensors.Info
	for _, name := range in.Names() {
		info, _ := in.Info(name)
		if name != gone {
			infos = append(infos, info)
		}
	}

	w, err := safetensors.CreateDir(thin, infos, map[string]string{"format": "pt"}, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range infos {
		data, err := in.Bytes(info.Name)
		if err == nil {
			err = w.WriteTensor(info.Name, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	config, err := os.ReadFile(nano + "sums/config.json")
	if err == nil {
		err = os.WriteFile(filepath.Join(thin, "config.json"), config, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}

	r := parse(t,
		"merge_method: linear\nmodels:\n- model: "+nano+"news\n  parameters: {weight: 1}\n- model: "+thin+
			"\n  parameters: {weight: 1}\n")
	news := tensorsOf(t, nano+"news")
	for how, want := range map[Missing][]byte{MissingMerge: news[gone], MissingCopy: news[gone], MissingSkip: nil} {
		dst := filepath.Join(t.TempDir(), "out")
		if _, err := Models(context.Background(), r, dst, Options{Missing: how}); err != nil {
			t.Errorf("%s: %v", how, err)
			continue
		}

		if got := tensorsOf(t, dst)[gone]; !slices.Equal(got, want) {
			t.Errorf("%s: %d bytes that are not the other model's", how, len(got))
		}
	}

	dst := filepath.Join(t.TempDir(), "out")
	if _, err := Models(context.Background(), r, dst, Options{}); err == nil {
		t.Error("a missing tensor is not an error")
	}

	empty(t, filepath.Dir(dst))
}

// TestStoppedInAWhole: methods that need a whole matrix stop within it, and continue to the same bytes.
func TestStoppedInAWhole(t *testing.T) {
	for _, method := range []string{"tsv_m", "iso_c"} {
		r := parse(t,
			"merge_method: "+method+"\nbase_model: "+nano+"base\nmodels:\n- model: "+nano+"sums\n- model: "+nano+
				"news\n")
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		var o Options
		o.Progress = func(p Progress) {
			if p.Done > p.Total/4 {
				cancel()
			}
		}

		dst := filepath.Join(dir, "stopped")
		if _, err := Models(ctx, r, dst, o); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}

		cancel()
		if _, err := Models(context.Background(), r, dst, Options{Resume: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := Models(context.Background(), r, filepath.Join(dir, "whole"), Options{Threads: 1}); err != nil {
			t.Fatal(err)
		}

		mergetest.Same(t, dst, filepath.Join(dir, "whole"))
	}
}

// TestModelTwice: methods between two models take one with itself, also other layers of it, and make what they make of
// it and a copy of it under another name; a remark says so.
func TestModelTwice(t *testing.T) {
	again := filepath.Join(t.TempDir(), "again")
	if err := os.CopyFS(again, os.DirFS(nano+"sums")); err != nil {
		t.Fatal(err)
	}

	for name, text := range map[string]string{
		"slerp": "merge_method: slerp\nbase_model: A\nmodels: [{model: A}, {model: B}]\nparameters: {t: 0.3}\n",
		"slerp of slices": "merge_method: slerp\nbase_model: A\nparameters: {t: 0.3}\nslices:\n" +
			"- sources: [{model: A, layer_range: [0, 2]}, {model: B, layer_range: [0, 2]}]\n",
		"layers": "merge_method: slerp\nbase_model: A\nparameters: {t: 0.3}\nslices:\n" +
			"- sources: [{model: A, layer_range: [0, 2]}, {model: B, layer_range: [2, 4]}]\n",
		"nearswap": "merge_method: nearswap\nbase_model: A\nparameters: {t: 0.001}\n" +
			"models: [{model: A}, {model: B}]\n",
	} {
		var outs [2]map[string][]byte
		for i, second := range []string{nano + "sums", again} {
			dst := filepath.Join(t.TempDir(), "out")
			recipe := parse(t, strings.NewReplacer("A", nano+"sums", "B", second).Replace(text))
			result, err := Models(context.Background(), recipe, dst, Options{})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			itself := func(w string) bool { return strings.Contains(w, "with itself") }
			if slices.ContainsFunc(result.Warnings, itself) != (i == 0) {
				t.Errorf("%s: warnings %q", name, result.Warnings)
			}
			outs[i] = tensorsOf(t, dst)
		}

		if len(outs[0]) == 0 || !maps.EqualFunc(outs[0], outs[1], slices.Equal) {
			t.Errorf("%s: a model that is listed twice gives another result than its copy", name)
		}
	}
}
