package peft

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/safetensors"
)

// form is how PEFT's files say a kind.
type form struct {
	kind     adapter.Kind
	peftType string
	// parts are the endings of the keys of a module's tensors.
	parts []part
	// start sets PEFT's defaults, for keys that a file leaves out.
	start func(c *adapter.Config)
	// keys are those of the kind alone, and those of LoRA that it has in common.
	keys   map[string]reading
	common []string
	// check compares keys with each other; nil: nothing is to be compared.
	check func(s *settings) error
	// write adds the keys of the kind to a configuration.
	write func(c *adapter.Config, keys map[string]any)
	// alone: the sizes of modules follow from the tensors.
	alone bool
}

// part is an ending of a key, and what stands under it.
type part struct{ ending, part string }

// reading reads a key of the configuration.
type reading = func(s *settings, key string, value json.RawMessage) error

// everywhere are the keys that all kinds have.
var everywhere = []string{"base_model_name_or_path", "task_type", "target_modules", "modules_to_save", "r"}

// forms are the kinds that PEFT has files for.
var forms = []*form{
	{
		kind: adapter.LoRA, peftType: "LORA", parts: parts, keys: readers, alone: true,
		start: func(c *adapter.Config) { c.Rank, c.Alpha = 8, 8 },
		check: (*settings).check,
	},
	{
		kind: adapter.MiSS, peftType: "MISS", parts: []part{{".miss_block", "block"}},
		start: func(c *adapter.Config) {
			c.Rank = 64
			c.Alpha = 1 // which it does not have
			c.MiSS.Mini = 1
		},
		common: []string{"exclude_modules", "layers_to_transform", "layers_pattern", "bias"},
		keys: map[string]reading{
			"miss_dropout": func(s *settings, k string, v json.RawMessage) error {
				return readFinite(k, v, &s.Dropout)
			},
			"mini_r": func(s *settings, k string, v json.RawMessage) error {
				return readRank(k, v, &s.MiSS.Mini)
			},
			"init_weights": readVariant,
		},
		check: func(s *settings) error {
			if s.Init != "mini" { // mini_r is there, and says nothing
				s.MiSS.Mini = 0
			}
			s.Init = "true"
			return s.check()
		},
		write: func(c *adapter.Config, keys map[string]any) {
			keys["miss_dropout"] = c.Dropout
			keys["mini_r"], keys["init_weights"] = 1, true
			if c.MiSS.Mini > 0 {
				keys["mini_r"], keys["init_weights"] = c.MiSS.Mini, "mini"
			}
		},
	},
	{
		kind: adapter.GraLoRA, peftType: "GRALORA", alone: true,
		parts: []part{
			{".gralora_A", "parts A"},
			{".gralora_B", "parts B"},
			{".gralora_A_general.weight", "A"},
			{".gralora_B_general.weight", "B"},
		},
		start: func(c *adapter.Config) {
			c.Rank, c.Alpha = 32, 64
			c.GraLoRA.Parts = 2
		},
		common: []string{"layers_to_transform", "layers_pattern", "bias", "fan_in_fan_out"},
		keys: map[string]reading{
			"alpha": func(s *settings, k string, v json.RawMessage) error {
				return readFinite(k, v, &s.Alpha)
			},
			"gralora_dropout": func(s *settings, k string, v json.RawMessage) error {
				return readFinite(k, v, &s.Dropout)
			},
			"gralora_k": func(s *settings, k string, v json.RawMessage) error {
				return readRank(k, v, &s.GraLoRA.Parts)
			},
			"hybrid_r":     readHybrid,
			"init_weights": readStart,
		},
		check: (*settings).check,
		write: func(c *adapter.Config, keys map[string]any) {
			keys["alpha"], keys["gralora_dropout"] = whole(c.Alpha), c.Dropout
			keys["gralora_k"], keys["hybrid_r"] = c.GraLoRA.Parts, c.GraLoRA.Hybrid
		},
	},
	{
		kind: adapter.SHiRA, peftType: "SHIRA",
		parts: []part{{".shira_weight", "values"}, {".shira_indices", "places"}},
		start: func(c *adapter.Config) {
			c.Rank = 32
			c.Alpha = 1 // which it does not have
			c.SHiRA.Mask = "random"
		},
		common: []string{"fan_in_fan_out"},
		keys: map[string]reading{
			"mask_type": func(s *settings, k string, v json.RawMessage) error {
				return optional(k, v, &s.SHiRA.Mask, "a string")
			},
			"random_seed": func(s *settings, k string, v json.RawMessage) error {
				return optional(k, v, &s.SHiRA.Seed, "a number without a sign")
			},
			"init_weights": readStart,
		},
		check: (*settings).check,
		write: func(c *adapter.Config, keys map[string]any) {
			keys["mask_type"], keys["random_seed"] = c.SHiRA.Mask, nil
			keys["init_weights"] = true
			if c.SHiRA.Mask == "random" && c.SHiRA.Seed != nil {
				keys["random_seed"] = *c.SHiRA.Seed
			}
		},
	},
}

// Handles reports whether there are files of PEFT's for a kind.
func Handles(k adapter.Kind) bool { return formOf(k) != nil }

// formOf is how PEFT's files say a kind; nil where it has none.
func formOf(k adapter.Kind) *form {
	for _, f := range forms {
		if f.kind == k {
			return f
		}
	}
	return nil
}

// typed finds the form that a file names.
func typed(peftType string) (*form, error) {
	var known []string
	for _, f := range forms {
		if f.peftType == peftType {
			return f, nil
		}
		known = append(known, f.peftType)
	}
	return nil, fmt.Errorf("%w: key \"peft_type\": %.60q; of PEFT's, these are read here: %s", adapter.ErrUnsupported,
		peftType, strings.Join(known, ", "))
}

// reader of a key; nil where the kind has no such key.
func (f *form) reader(key string) reading {
	if read := f.keys[key]; read != nil {
		return read
	}
	if slices.Contains(f.common, key) || slices.Contains(everywhere, key) {
		return readers[key]
	}
	return nil
}

// readVariant reads which MiSS it is.
func readVariant(s *settings, key string, value json.RawMessage) error {
	var flag bool
	if json.Unmarshal(value, &flag) == nil {
		return nil
	}
	if err := decode(key, value, &s.Init, "true, false or a name"); err != nil {
		return err
	}

	switch s.Init {
	case "mini":
		return nil
	case "bat":
		return failure.Hinted(fmt.Errorf("%w: key %q: \"bat\" changes a matrix by what it holds (W·D + D), so that "+
			"the change has no factors", adapter.ErrUnsupported, key),
			"PEFT's merge_and_unload writes such an adapter into the weights")
	}
	return bad(key, "%.60q; known: true, false, mini, bat", s.Init)
}

// readStart reads how values were started, which does not matter once they are trained.
func readStart(_ *settings, key string, value json.RawMessage) error {
	var flag bool
	return optional(key, value, &flag, "true or false")
}

func readHybrid(s *settings, key string, value json.RawMessage) error {
	h := &s.GraLoRA.Hybrid
	if err := decode(key, value, h, "an integer"); err != nil {
		return err
	}
	if *h < 0 || *h > maxRank {
		return bad(key, "%d is not between 0 and %d", *h, maxRank)
	}
	return nil
}

// addOwn reads the tensors of a module of a kind other than LoRA.
func (r *reader) addOwn(m adapter.Module, f *found) error {
	l, err := kinds.Low(&r.Config, m)
	if err != nil {
		return fmt.Errorf("module %s: %w", m.Path, err)
	}

	left := len(f.keys)
	for _, p := range l.Parameters() {
		key := prefix + p.Name
		if !f.has(key) {
			return fmt.Errorf("tensor %.200q: %w: it is missing", key, adapter.ErrFile)
		}

		info, _ := r.file.Info(key)
		if !slices.Equal(info.Shape, p.FileShape()) {
			return fmt.Errorf("tensor %.200q: %w: shape %v, the base and the configuration ask for %v", key,
				adapter.ErrBase, info.Shape, p.FileShape())
		}
		if err := r.widen(p.Data(), key, info); err != nil {
			return err
		}
		left--
	}

	if s, sparse := l.Factors.(adapter.Sparse); sparse {
		if err := r.readPlaces(f, s); err != nil {
			return err
		}
		left--
	}
	if left > 0 {
		return fmt.Errorf("tensor %.200q: %w: module %s has tensors that the configuration does not ask for", f.first,
			adapter.ErrFile, m.Path)
	}

	r.out.Low = append(r.out.Low, l)
	return nil
}

func (f *found) has(key string) bool {
	for _, k := range f.keys {
		if k == key {
			return true
		}
	}
	return false
}

// readPlaces reads where the elements of a change are: [2, n], outputs and inputs.
func (r *reader) readPlaces(f *found, s adapter.Sparse) error {
	key := f.keys["places"]
	if key == "" {
		return fmt.Errorf("tensor %.200q: %w: there are no places of its elements (shira_indices)", f.first,
			adapter.ErrFile)
	}

	info, _ := r.file.Info(key)
	n := len(s.Rows)
	if want := []int64{2, int64(n)}; !slices.Equal(info.Shape, want) {
		return fmt.Errorf("tensor %.200q: %w: shape %v, the base and the configuration ask for %v", key,
			adapter.ErrBase, info.Shape, want)
	}
	if info.DType != safetensors.I32 && info.DType != safetensors.I64 {
		return fmt.Errorf("tensor %.200q: %w: it is %s, not I32", key, adapter.ErrFile, info.DType)
	}

	err := r.file.View(key, func(data []byte) error {
		size := len(data) / (2 * n)
		for i := range n {
			row, col := integer(data[i*size:], size), integer(data[(n+i)*size:], size)
			if row < 0 || row >= int64(s.Out) || col < 0 || col >= int64(s.In) {
				return fmt.Errorf("tensor %.200q: %w: place %d is (%d, %d), the matrix is %d × %d", key,
					adapter.ErrBase, i, row, col, s.Out, s.In)
			}
			s.Rows[i], s.Cols[i] = int32(row), int32(col)
		}
		return nil
	})
	if err != nil {
		return err
	}

	// A place named twice has two values in the file, which PEFT adds; that no training makes.
	seen := make(map[[2]int32]bool, n)
	for i := range n {
		at := [2]int32{s.Rows[i], s.Cols[i]}
		if seen[at] {
			return fmt.Errorf("tensor %.200q: %w: place (%d, %d) is there twice", key, adapter.ErrFile, at[0], at[1])
		}
		seen[at] = true
	}
	return nil
}

// integer reads a little-endian integer of 4 or 8 bytes.
func integer(p []byte, size int) int64 {
	v := uint64(0)
	for i := range size {
		v |= uint64(p[i]) << (8 * i)
	}
	if size == 4 {
		return int64(int32(v))
	}
	return int64(v)
}
