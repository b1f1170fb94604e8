package prune

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// maskedBy prunes a folder to another with a metric, writes the masks and gives their file.
func maskedBy(t *testing.T, dir, out string, o Options) string {
	t.Helper()
	m, path := load(t, dir, 2, lm.Options{}), out+".masks.safetensors"
	masks, err := NewMasks(path, m, MaskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Masks = masks
	prunedTo(t, m, windows(4, 17, 61), o, out)
	return path
}

// Masks that a run has written prune the same model to the same weights, in every layout, without calibration
// data.
func TestMasksFromFile(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(3), "gpt2": gpt2(), "mixtral": mixtral()} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			dir := c.write(t, filepath.Join(tmp, "in"), nil)
			zero := 0.25
			path := maskedBy(t, dir, filepath.Join(tmp, "first"), Options{Sparsity: .5, Overrides: []Override{
				{Blocks: []int{0}, Roles: []string{"o"}, Dense: true}, {Blocks: []int{1}, Sparsity: &zero},
			}})
			second := filepath.Join(tmp, "second")
			r := prunedTo(t, load(t, dir, 2, lm.Options{}), corpus.Windows{}, Options{MasksFrom: path}, second)
			sameTensors(t, filepath.Join(tmp, "first"), second)

			for _, x := range r.Tensors {
				if x.Target != x.Sparsity || x.Dense != (x.Zeros == 0) {
					t.Errorf("%s: target %g, sparsity %g, dense %v", x.Name, x.Target, x.Sparsity, x.Dense)
				}
			}

			if b := r.Blocks[0]; b.Target != b.Sparsity || b.Target == 0 {
				t.Errorf("block 0: target %g, sparsity %g", b.Target, b.Sparsity)
			}
		})
	}
}

// sameTensors compares two folders byte by byte.
func sameTensors(t *testing.T, a, b string) {
	t.Helper()
	x, err := safetensors.OpenDir(a)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()

	y, err := safetensors.OpenDir(b)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()

	for _, name := range x.Names() {
		want, err := x.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		if got, err := y.Bytes(name); err != nil || string(got) != string(want) {
			t.Errorf("%s differs (%v)", name, err)
		}
	}
}

// SparseGPT with the masks of Wanda from a file is SparseGPT with metric Wanda.
func TestMasksFromFileUpdated(t *testing.T) {
	tmp := t.TempDir()
	dir := llama(1).write(t, filepath.Join(tmp, "in"), nil)
	path := maskedBy(t, dir, filepath.Join(tmp, "wanda"), Options{Sparsity: .5})
	for _, u := range []Update{{Name: SparseGPTUpdate}, {Name: ADMM, Damping: .01}} {
		a, b := filepath.Join(tmp, u.Name+"-metric"), filepath.Join(tmp, u.Name+"-masks")
		prunedTo(t, load(t, dir, 2, lm.Options{}), windows(4, 17, 61), Options{Sparsity: .5, Update: u}, a)
		r := prunedTo(t, load(t, dir, 2, lm.Options{}), windows(4, 17, 61), Options{MasksFrom: path, Update: u}, b)
		sameTensors(t, a, b)
		if r.Tensors[0].Change == nil {
			t.Errorf("%s: no change is reported", u.Name)
		}
	}
}

// Masks that do not fit are refused before the work, with the file and the tensor.
func TestMasksFromFileRefused(t *testing.T) {
	tmp := t.TempDir()
	dir := llama(2).write(t, filepath.Join(tmp, "in"), nil)
	path := maskedBy(t, dir, filepath.Join(tmp, "first"), Options{Metric: Magnitude(), Sparsity: .5})
	const q = "model.layers.1.self_attn.q_proj.weight"
	for name, c := range map[string]struct {
		change func(i *safetensors.Info, data []byte) (*safetensors.Info, []byte)
		says   string
	}{
		"missing": {func(*safetensors.Info, []byte) (*safetensors.Info, []byte) {
			return nil, nil
		}, `none for 1 of 14 matrices of the model; the first is "` + q},
		"extra": {func(i *safetensors.Info, d []byte) (*safetensors.Info, []byte) {
			i.Name = "model.layers.1.self_attn.qq_proj.weight"
			return i, d
		}, "none for 1 of 14"},
		"shape": {func(i *safetensors.Info, d []byte) (*safetensors.Info, []byte) {
			i.Shape = []int64{16, 64}
			return i, d
		}, `q_proj.weight": unusable masks: shape [16 64]; want [32 32]`},
		"type": {func(i *safetensors.Info, d []byte) (*safetensors.Info, []byte) {
			i.DType = safetensors.BOOL
			return i, d
		}, "type BOOL; want U8"},
		"value": {func(i *safetensors.Info, d []byte) (*safetensors.Info, []byte) {
			d[37] = 2
			return i, d
		}, "element [1, 5] is 2; want 0 or 1"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "bad.safetensors")
			rewriteMasks(t, path, bad, q, c.change)
			_, err := Model(ctx, load(t, dir, 2, lm.Options{}), corpus.Windows{}, Options{MasksFrom: bad})
			if !errors.Is(err, ErrMasks) || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), bad) {
				t.Errorf("error %v", err)
			}
		})
	}

	more := filepath.Join(tmp, "more.safetensors")
	rewriteGradients(t, path, more, "model.layers.9.mlp.up_proj.weight")
	err := Check(ctx, load(t, dir, 2, lm.Options{}), corpus.Windows{}, Options{MasksFrom: more})
	if !errors.Is(err, ErrMasks) ||
		!strings.Contains(err.Error(), `1 tensors are masks of no matrix of the model; the first is "model.layers.9`) {
		t.Errorf("one more: %v", err)
	}
}

// rewriteMasks copies a file with one tensor changed; without it where change gives none.
func rewriteMasks(t *testing.T, from, to, which string,
	change func(*safetensors.Info, []byte) (*safetensors.Info, []byte),
) {
	t.Helper()
	f, err := safetensors.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	var infos []safetensors.Info
	var all [][]byte
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		data, err := f.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		i, d := &safetensors.Info{Name: name, DType: info.DType, Shape: info.Shape}, append([]byte(nil), data...)
		if name == which {
			i, d = change(i, d)
		}
		if i != nil {
			infos, all = append(infos, *i), append(all, d)
		}
	}

	w, err := safetensors.Create(to, infos, nil, safetensors.Options{})
	for i := range infos {
		if err == nil {
			err = w.WriteTensor(infos[i].Name, all[i])
		}
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Options that choose weights do not go with masks that say them; the options survive JSON, and the content of the
// file counts in the job.
func TestMasksFromFileOptions(t *testing.T) {
	for _, o := range []Options{
		{Metric: Wanda()},
		{Sparsity: .5},
		{Pattern: Pattern{2, 4}},
		{Group: Row},
		{Allocation: Allocation{Name: OWL}},
		{Gradients: GradientOptions{File: "g"}},
		{Overrides: []Override{{Blocks: []int{0}, Dense: true}}},
		{Update: Update{Name: DSnoT}},
		{Update: Update{Name: ADMM, MaskSteps: 3}},
	} {
		o.MasksFrom = "masks.safetensors"
		if err := o.Validate(); !errors.Is(err, ErrOptions) ||
			!strings.Contains(err.Error(), "masks from a file with") {
			t.Errorf("%+v: %v", o, err)
		}
	}

	tmp := t.TempDir()
	dir := llama(2).write(t, filepath.Join(tmp, "in"), nil)
	path := maskedBy(t, dir, filepath.Join(tmp, "first"), Options{Metric: Magnitude(), Sparsity: .5})
	other := maskedBy(t, dir, filepath.Join(tmp, "other"), Options{Metric: Magnitude(), Sparsity: .4})
	m := load(t, dir, 1, lm.Options{})
	one, err := Fingerprint(ctx, m, corpus.Windows{}, Options{MasksFrom: path})
	if err != nil {
		t.Fatal(err)
	}

	if two, err := Fingerprint(ctx, m, corpus.Windows{}, Options{MasksFrom: other}); err != nil || one == two {
		t.Errorf("jobs %s and %s (%v)", one, two, err)
	}

	moved := filepath.Join(tmp, "moved.safetensors")
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if again, err := Fingerprint(ctx, m, corpus.Windows{}, Options{MasksFrom: moved}); err != nil || again != one {
		t.Errorf("the same masks elsewhere: %s, %s (%v)", one, again, err)
	}

	r, err := Model(ctx, m, corpus.Windows{}, Options{MasksFrom: moved})
	if err != nil {
		t.Fatal(err)
	}

	text, err := json.Marshal(r.Options)
	if err != nil {
		t.Fatal(err)
	}

	var back Options
	if err := json.Unmarshal(text, &back); err != nil || back.Validate() != nil {
		t.Errorf("%s: %v, %v", text, err, back.Validate())
	}
}
