package peft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// WriteOptions of [Write].
type WriteOptions struct {
	DType safetensors.DType // of all tensors; 0: F32
	// the scale goes into B and alpha becomes the rank, for readers that do not scale as PEFT does
	Bake      bool
	Overwrite bool // replace an adapter that is there
	// Own writes a kind that PEFT has files for in its own form, instead of as plain LoRA.
	Own bool
	// Pair gives the factors A [rank, in] and B [out, rank] of a module when they are written, module by
	// module; nil: [adapter.Low.Pair].
	Pair func(l *adapter.Low) (a, b kernels.Mat, err error)
}

// Write writes an adapter as plain LoRA to the folder dir, which appears under its name once it is complete. The
// factors are those of [adapter.Low.Pair], whatever the kind, unless the kind's own form is asked for. The errors wrap
// [stage.ErrExists], [adapter.ErrUnsupported] for what plain LoRA cannot say, or are those of the operating system.
func Write(dir string, a *adapter.Adapter, o WriteOptions) error {
	if o.DType == 0 {
		o.DType = safetensors.F32
	}
	if err := Vacant(dir, o.Overwrite); err != nil {
		return err
	}

	entries, err := tensors(a, o)
	if err != nil {
		return err
	}

	text, err := configText(a, o)
	if o.Own && a.Config.Kind != adapter.LoRA {
		text, err = ownText(a)
	}
	if err != nil {
		return err
	}

	return stage.Write(dir, Rule(o.Overwrite), func(at string) error {
		if err := writeWeights(filepath.Join(at, WeightsName), entries, o.DType, &a.Config); err != nil {
			return err
		}
		return safefile.WriteFile(filepath.Join(at, ConfigName), text, 0o666)
	})
}

// entry is a tensor of the file. Its values are made when they are written.
type entry struct {
	key   string
	shape []int64
	value func() ([]float32, error)
	raw   func() []byte // of a tensor of I32; nil: values
}

// tensors lists what goes into the file, sorted by name as PEFT's are.
func tensors(a *adapter.Adapter, o WriteOptions) ([]entry, error) {
	var list []entry
	add := func(key string, value func() ([]float32, error), shape ...int64) {
		list = append(list, entry{key: prefix + key, shape: shape, value: value})
	}

	pairs := &pairs{of: o.Pair}
	for _, l := range a.Low {
		if o.Bake && l.Bias != nil {
			return nil, fmt.Errorf("%w: the scale of an adapter with lora_bias cannot be baked into B",
				adapter.ErrUnsupported)
		}
		if o.Own && a.Config.Kind != adapter.LoRA {
			list = append(list, ownTensors(l)...)
			continue
		}
		addLow(add, l, pairs, o.Bake)
	}

	for _, w := range a.Whole {
		add(wholeKey(a, w), stored(w.Value), w.Shape...)
	}

	for _, r := range a.Rows {
		add(r.Module.Path+".token_adapter.trainable_tokens_delta", stored(r.Value), int64(r.Value.Value.Rows),
			int64(r.Value.Value.Cols))
	}

	slices.SortFunc(list, func(x, y entry) int { return strings.Compare(x.key, y.key) })
	return list, nil
}

// wholeKey is the key of a whole tensor, without the prefix: PEFT calls what is inside an adapted module its
// base layer.
func wholeKey(a *adapter.Adapter, w *adapter.Whole) string {
	dot := strings.LastIndexByte(w.Key, '.')
	if !savedWhole(&a.Config, w.Key[:dot]) && adapted(a, w.Key[:dot]) {
		return w.Key[:dot] + ".base_layer" + w.Key[dot:]
	}
	return w.Key
}

// KeyOf is the key of a parameter in the file that [Write] makes of a LoRA.
func KeyOf(a *adapter.Adapter, p *adapter.Param) string {
	for _, w := range a.Whole {
		if w.Value == p {
			return prefix + wholeKey(a, w)
		}
	}

	for _, r := range a.Rows {
		if r.Value == p {
			return prefix + r.Module.Path + ".token_adapter.trainable_tokens_delta"
		}
	}

	return prefix + p.Name
}

// stored gives a parameter's value.
func stored(p *adapter.Param) func() ([]float32, error) {
	return func() ([]float32, error) { return p.Data(), nil }
}

// pairs makes the factors of a module once for both of its tensors, which are neighbours in the file.
type pairs struct {
	of   func(l *adapter.Low) (a, b kernels.Mat, err error)
	last *adapter.Low
	a, b kernels.Mat
}

func (p *pairs) get(l *adapter.Low) (a, b kernels.Mat, err error) {
	if p.last == l {
		return p.a, p.b, nil
	}

	p.last = nil

	if p.of == nil {
		p.a, p.b = l.Pair()
	} else if p.a, p.b, err = p.of(l); err != nil {
		return a, b, err
	}

	p.last = l
	return p.a, p.b, nil
}

// addLow adds the factors of a module.
func addLow(add func(key string, value func() ([]float32, error), shape ...int64), l *adapter.Low, p *pairs,
	bake bool,
) {
	m := l.Module
	nameA, nameB := ".lora_A.weight", ".lora_B.weight"
	if m.Table {
		nameA, nameB = ".lora_embedding_A", ".lora_embedding_B"
	}

	rank := int64(l.Rank)
	in := int64(m.In)
	out := int64(m.Out)
	add(m.Path+nameA, func() ([]float32, error) {
		a, _, err := p.get(l)
		return flat(a), err
	}, rank, in)

	add(m.Path+nameB, func() ([]float32, error) {
		_, b, err := p.get(l)
		// A clone: some kinds hand out the parameter itself.
		data := slices.Clone(flat(b))
		if bake {
			for i := range data {
				data[i] *= float32(l.Scale)
			}
		}
		return data, err
	}, out, rank)

	if l.Bias != nil {
		add(m.Path+".lora_B.bias", stored(l.Bias), out)
	}
	if l.Magnitude != nil {
		add(m.Path+".lora_magnitude_vector", stored(l.Magnitude), out)
	}
}

func flat(m kernels.Mat) []float32 {
	if m.IsZero() {
		return nil
	}
	return m.Buf.F32()[m.Off : m.Off+m.Len()]
}

// adapted reports whether the module at a path has a low-rank change, so that PEFT wraps it.
func adapted(a *adapter.Adapter, path string) bool { return a.Find(path) != nil }

// savedWhole reports whether modules_to_save asks for a module.
func savedWhole(c *adapter.Config, path string) bool {
	r := reader{settings: &settings{Config: *c}}
	return r.savesPart(path)
}

// baseKey is the metadata of the weights with the fingerprint of the base: PEFT has no place for it, and does
// not mind it there.
const baseKey = "base_fingerprint"

// zerosKey is the metadata of an adapter that leaves zeros of its base alone, "true": PEFT does not do so, and
// older versions of it refuse keys of the configuration that they do not know.
const zerosKey = "keep_zeros"

// noted takes over what the metadata of the weights say.
func (s *settings) noted(metadata map[string]string) error {
	s.BaseHash = metadata[baseKey]
	switch v, ok := metadata[zerosKey]; {
	case !ok, v == "false":
	case v == "true":
		s.KeepZeros = true
	default:
		return fmt.Errorf("%w: metadata %q: %.60q is neither true nor false", adapter.ErrFile, zerosKey, v)
	}
	return nil
}

// writeWeights writes the tensors one after the other, with what of the configuration PEFT has no place for.
func writeWeights(path string, entries []entry, t safetensors.DType, c *adapter.Config) error {
	infos := make([]safetensors.Info, len(entries))
	for i, e := range entries {
		infos[i] = safetensors.Info{Name: e.key, DType: t, Shape: e.shape}
		if e.raw != nil {
			infos[i].DType = safetensors.I32
		}
	}

	metadata := map[string]string{"format": "pt"}
	// The hash of the base and the zeros have no key that PEFT would not refuse; it ignores a file's metadata.
	if c.BaseHash != "" {
		metadata[baseKey] = c.BaseHash
	}
	if c.KeepZeros {
		metadata[zerosKey] = "true"
	}

	w, err := safetensors.Create(path, infos, metadata, safetensors.Options{})
	if err != nil {
		return err
	}

	for _, e := range entries {
		if err := writeEntry(w, e, t); err != nil {
			return errors.Join(err, w.Abort())
		}
	}

	return w.Finish()
}

func writeEntry(w *safetensors.Writer, e entry, t safetensors.DType) error {
	if e.raw != nil {
		return w.WriteTensor(e.key, e.raw())
	}

	x, err := e.value()
	if err != nil {
		return err
	}

	data := make([]byte, len(x)*dtype.Size(t))
	if err := dtype.Encode(data, x, t); err != nil {
		return err
	}
	if err := checkRange(e.key, data, x, t); err != nil {
		return err
	}

	return w.WriteTensor(e.key, data)
}

// checkRange refuses values that are not finite once stored.
func checkRange(key string, data []byte, x []float32, t safetensors.DType) error {
	back := make([]float32, len(x))
	if err := dtype.Decode(back, data, t); err != nil {
		return err
	}
	if i := dtype.NonFinite(back); i >= 0 {
		return fmt.Errorf("tensor %q: %w: element %d, %v, does not fit %s", key, adapter.ErrFile, i, x[i], t)
	}
	return nil
}

// Rule is what may be at the place of an adapter: nothing, an empty folder, or, with overwrite, an adapter and nothing
// else.
func Rule(overwrite bool) stage.Rule {
	if !overwrite {
		return nil
	}

	known := []string{ConfigName, WeightsName, card.Name, "training.json", "training.html"}
	return func(dir string) error {
		entries, err := os.ReadDir(dir)
		if !stage.OwnCard(dir) {
			return stage.Foreign([]string{card.Name})
		}
		for _, e := range entries {
			if !slices.Contains(known, safefile.Finished(e.Name())) {
				return fmt.Errorf("%w and holds %q, which is no part of an adapter, so it is not replaced",
					stage.ErrExists, e.Name())
			}
		}
		return err
	}
}

// Vacant returns nil if an adapter may be written to dir; see [Rule].
func Vacant(dir string, overwrite bool) error { return stage.Vacant(dir, Rule(overwrite)) }
