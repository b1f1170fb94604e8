package peft

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Limits of what a configuration may ask for, far beyond any adapter in use.
const (
	maxConfigSize = 8 << 20
	maxRank       = 1 << 20
)

// settings are a configuration and what else its file says.
type settings struct {
	adapter.Config
	form   *form
	tokens json.RawMessage // trainable_token_indices
	stored bool            // fan_in_fan_out: weights are stored [in, out]; a base says so itself
	notes  []string        // what was accepted without effect
}

// parse reads the text of an adapter_config.json. The errors wrap [adapter.ErrConfig] or [adapter.ErrUnsupported].
func parse(text []byte) (*settings, error) {
	object, err := orderedjson.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", adapter.ErrConfig, err)
	}

	// First, as peft_type may be the last key.
	kind := ""
	if object.Has("peft_type") {
		if err := decode("peft_type", object.Get("peft_type"), &kind, "a string"); err != nil {
			return nil, err
		}
	}

	f, err := typed(kind)
	if err != nil {
		return nil, err
	}

	s := &settings{Config: adapter.Config{Kind: f.kind, Biases: adapter.NoBias, Init: "true"}, form: f}
	f.start(&s.Config) // PEFT's own defaults, for keys that a file leaves out
	for key, value := range object.All() {
		if key == "peft_type" {
			continue
		}
		if err := s.take(key, value); err != nil {
			return nil, err
		}
	}

	return s, f.check(s)
}

// take reads one key.
func (s *settings) take(key string, value json.RawMessage) error {
	if read := s.form.reader(key); read != nil {
		return read(s, key, value)
	}

	switch {
	case slices.Contains(inert, key):
		return nil
	case empty(value):
		if !slices.Contains(refused, key) {
			s.notes = append(s.notes, fmt.Sprintf("key %.100q is not known; it is empty, so it has no effect", key))
		}
		return nil
	case slices.Contains(refused, key):
		return fmt.Errorf("%w: key %q: %.100s changes what the adapter computes", adapter.ErrUnsupported, key, value)
	}

	return bad(key, "not known, and its value %.60s may change what the adapter computes (HINT: remove it if it "+
		"only mattered for the training)", value)
}

// inert are the keys that say nothing about what a trained adapter computes.
var inert = []string{
	"auto_mapping", "peft_version", "revision", "inference_mode", "megatron_config", "megatron_core", "eva_config",
	"corda_config",
	"lora_ga_config", "loftq_config", "qalora_group_size", "runtime_config",
}

// refused are the keys of features that are not computed here, once they are set.
var refused = []string{
	"layer_replication", "target_parameters", "alora_invocation_tokens", "arrow_config", "use_bdlora", "use_qalora",
	"kasa_config",
	"monteclora_config", "velora_config",
}

// readers are the keys with a meaning. Those that PEFT 0.21 declares as Optional may be null.
var readers = map[string]func(s *settings, key string, value json.RawMessage) error{
	"base_model_name_or_path": func(s *settings, k string, v json.RawMessage) error {
		return optional(k, v, &s.Base,
			"a string")
	},
	"task_type": func(s *settings, k string, v json.RawMessage) error {
		return optional(k, v, &s.TaskType,
			"a string")
	},
	"r": func(s *settings, k string, v json.RawMessage) error { return readRank(k, v, &s.Rank) },
	"lora_alpha": func(s *settings, k string, v json.RawMessage) error {
		return readFinite(k, v,
			&s.Alpha)
	},
	"lora_dropout": func(s *settings, k string, v json.RawMessage) error {
		return readFinite(k, v,
			&s.Dropout)
	},
	"use_rslora": func(s *settings, k string, v json.RawMessage) error {
		return decode(k, v, &s.RSLoRA,
			"true or false")
	},
	"use_dora": func(s *settings, k string, v json.RawMessage) error {
		return decode(k, v, &s.DoRA,
			"true or false")
	},
	"fan_in_fan_out": func(s *settings, k string, v json.RawMessage) error {
		return decode(k, v, &s.stored,
			"true or false")
	},
	"lora_bias": func(s *settings, k string, v json.RawMessage) error {
		return decode(k, v, &s.OutputBias, "true or false")
	},
	"ensure_weight_tying": func(s *settings, k string, v json.RawMessage) error {
		return decode(k, v, &s.Tying,
			"true or false")
	},
	"modules_to_save": func(s *settings, k string, v json.RawMessage) error {
		return readNames(k, v,
			&s.WholeModules)
	},
	"layers_pattern": func(s *settings, k string, v json.RawMessage) error {
		return readNames(k, v,
			&s.LayersPattern)
	},
	"target_modules":  func(s *settings, k string, v json.RawMessage) error { return readMatch(k, v, &s.Targets) },
	"exclude_modules": func(s *settings, k string, v json.RawMessage) error { return readMatch(k, v, &s.Exclude) },
	"rank_pattern": func(s *settings, k string, v json.RawMessage) error {
		return readPatterns(k, v,
			&s.RankPattern)
	},
	"alpha_pattern": func(s *settings, k string, v json.RawMessage) error {
		return readPatterns(k, v,
			&s.AlphaPattern)
	},
	"layers_to_transform": func(s *settings, k string, v json.RawMessage) error { return readLayers(k, v, &s.Layers) },
	"init_lora_weights":   func(s *settings, k string, v json.RawMessage) error { return readInit(k, v, &s.Init) },
	"bias":                readBias,
	"trainable_token_indices": func(s *settings, k string, v json.RawMessage) error {
		if !isNull(v) && v[0] != '[' && v[0] != '{' {
			return bad(k, "%.60s is neither a list of tokens nor lists by module", v)
		}
		if !empty(v) {
			s.tokens = v
		}
		return nil
	},
}

// check compares keys with each other.
func (s *settings) check() error {
	switch {
	case s.Dropout < 0 || s.Dropout > 1:
		return bad("lora_dropout", "%g is not between 0 and 1", s.Dropout)
	case s.Targets.Regex != "" && len(s.Layers) > 0:
		return bad("layers_to_transform", "needs target_modules as a list, not a regular expression")
	case len(s.LayersPattern) > 0 && len(s.Layers) == 0:
		return bad("layers_pattern", "needs layers_to_transform")
	}

	for _, p := range s.RankPattern {
		if p.Value != math.Trunc(p.Value) || p.Value < 1 || p.Value > maxRank {
			return bad("rank_pattern", "%.60q: %g is no rank", p.Key, p.Value)
		}
	}

	return nil
}

func readRank(key string, value json.RawMessage, rank *int) error {
	if err := decode(key, value, rank, "an integer"); err != nil {
		return err
	}
	if *rank < 1 || *rank > maxRank {
		return bad(key, "%d is not between 1 and %d", *rank, maxRank)
	}
	return nil
}

// readFinite reads a number that fits a float32.
func readFinite(key string, value json.RawMessage, v *float64) error {
	if err := decode(key, value, v, "a number"); err != nil {
		return err
	}
	if math.Abs(*v) > math.MaxFloat32 {
		return bad(key, "%g is too large", *v)
	}
	return nil
}

// readNames reads a string or a list of strings.
func readNames(key string, value json.RawMessage, names *[]string) error {
	var one string
	if json.Unmarshal(value, &one) == nil {
		if one != "" {
			*names = []string{one}
		}
		return nil
	}

	if err := optional(key, value, names, "a string or a list of strings"); err != nil {
		return err
	}
	if slices.Contains(*names, "") {
		return bad(key, "an entry is empty, which would fit everything")
	}

	return nil
}

// readMatch reads a list of names, a regular expression or "all-linear".
func readMatch(key string, value json.RawMessage, m *adapter.Match) error {
	var text string
	if isNull(value) || json.Unmarshal(value, &text) != nil {
		return readNames(key, value, &m.Names)
	}

	if strings.EqualFold(text, "all-linear") && key == "target_modules" {
		m.All = true
		return nil
	}

	m.Regex = text
	return nil
}

// readPatterns reads a map from patterns to numbers, in the order of the file.
func readPatterns(key string, value json.RawMessage, list *[]adapter.Pattern) error {
	if isNull(value) {
		return nil
	}

	entries, err := orderedjson.Parse(value)
	if err != nil {
		return bad(key, "%v", err)
	}

	// In the order of the file: of several patterns that fit a path, PEFT takes the first.
	for pattern, number := range entries.All() {
		if isNull(number) {
			return bad(key, "%.60q has no value", pattern)
		}

		p := adapter.Pattern{Key: pattern}
		if err := readFinite(key, number, &p.Value); err != nil {
			return err
		}

		*list = append(*list, p)
	}

	return nil
}

// readLayers reads the number of a block or a list of them.
func readLayers(key string, value json.RawMessage, layers *[]int) error {
	var one int
	if !isNull(value) && json.Unmarshal(value, &one) == nil {
		*layers = []int{one}
		return nil
	}

	if err := optional(key, value, layers, "a block's number or a list of them"); err != nil {
		return err
	}
	if len(*layers) == 0 {
		*layers = nil // an empty list restricts nothing
	}

	return nil
}

// readBias reads which biases were trained.
func readBias(s *settings, key string, value json.RawMessage) error {
	b := &s.Biases
	if err := decode(key, value, b, "a string"); err != nil {
		return err
	}
	// Other kinds call the biases of adapted modules after themselves: MiSS_only, gralora_only.
	if strings.HasSuffix(string(*b), "_only") && s.Kind != adapter.LoRA {
		*b = adapter.LoRABias
	}
	if *b != adapter.NoBias && *b != adapter.AllBias && *b != adapter.LoRABias {
		return bad(key, "%.60q; known: none, all, lora_only", *b)
	}
	return nil
}

// lost are the starts that change the base's weights by what follows from neither the adapter nor the base.
var lost = []string{"pissa_niter_", "corda", "lora_ga", "loftq"}

// readInit reads how the factors were started. Once they are trained, that matters only where the start has
// changed the base.
func readInit(key string, value json.RawMessage, name *string) error {
	if isNull(value) {
		return nil // how factors were started does not matter once they are trained, so that PEFT takes it too
	}

	var flag bool
	if json.Unmarshal(value, &flag) == nil {
		*name = fmt.Sprint(flag)
		return nil
	}

	if err := decode(key, value, name, "true, false or a name"); err != nil {
		return err
	}

	*name = strings.ToLower(*name)

	for _, m := range lost {
		if strings.HasPrefix(*name, m) {
			return fmt.Errorf("%w: key %q: %.60q changes the base's weights too, by what the adapter does not hold "+
				"(HINT: PEFT's save_pretrained converts such an adapter to plain LoRA with "+
				"path_initial_model_for_weight_conversion)", adapter.ErrUnsupported, key, *name)
		}
	}

	return nil
}
