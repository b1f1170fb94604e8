package mosfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// version is the version of the format.
const version = 1

// config is the text of adapter_config.json. Unknown keys are refused.
type config struct {
	Type    string `json:"peft_type"`
	Version int    `json:"format_version"`

	R       int     `json:"r"`
	Alpha   float64 `json:"lora_alpha"`
	Dropout float64 `json:"lora_dropout"`
	RSLoRA  bool    `json:"use_rslora,omitempty"`

	EquivalentRank   int    `json:"equivalent_rank,omitempty"`
	Shards           int    `json:"shards,omitempty"`
	Private          int    `json:"private_rank"`
	PairDissociation *bool  `json:"pair_dissociation,omitempty"`
	Sampling         string `json:"sampling,omitempty"`

	DInitial float64 `json:"d_initial,omitempty"`
	Seed     uint64  `json:"projection_prng_key,omitempty"`

	Unshared int `json:"unshared_rank,omitempty"`
	InParts  int `json:"in_parts,omitempty"`
	OutParts int `json:"out_parts,omitempty"`

	SharedRank int    `json:"rasa_k,omitempty"`
	Share      string `json:"share,omitempty"`

	Targets  json.RawMessage `json:"target_modules"`
	Exclude  json.RawMessage `json:"exclude_modules,omitempty"`
	Layers   []int           `json:"layers_to_transform,omitempty"`
	Pattern  []string        `json:"layers_pattern,omitempty"`
	Whole    []string        `json:"modules_to_save,omitempty"`
	Biases   string          `json:"bias,omitempty"`
	TaskType string          `json:"task_type,omitempty"`
	Zeros    bool            `json:"keep_zeros,omitempty"`
	Base     string          `json:"base_model_name_or_path"`
	BaseHash string          `json:"base_fingerprint,omitempty"`
}

var named = map[string]adapter.Kind{
	"MOS": adapter.MoS, "VERA_NATIVE": adapter.VeRA, "PROLORA": adapter.PRoLoRA,
	"RASA_NATIVE": adapter.RaSA, "SHARELORA": adapter.Share,
}

// Handles reports whether this package reads adapters of a peft_type.
func Handles(peftType string) bool { return named[peftType] != "" }

// parse reads the text strictly.
func parse(text []byte) (*adapter.Config, error) {
	var f config
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: %s", adapter.ErrConfig, said(err))
	}
	if err := nulls(text); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("%w: more than one JSON value", adapter.ErrConfig)
	}

	kind, ok := named[f.Type]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: peft_type %.100q; known here: %s", adapter.ErrUnsupported, f.Type,
			strings.Join(slices.Sorted(maps.Keys(named)), ", "))
	case f.Version != version:
		return nil, fmt.Errorf("%w: format_version %d; this program reads %d", adapter.ErrUnsupported, f.Version,
			version)
	}

	c := &adapter.Config{
		Kind: kind, Base: f.Base, BaseHash: f.BaseHash, Rank: f.R, Alpha: f.Alpha, Dropout: f.Dropout, RSLoRA: f.RSLoRA,
		Layers: f.Layers, LayersPattern: f.Pattern, WholeModules: f.Whole, Biases: adapter.Biases(f.Biases),
		TaskType:  f.TaskType,
		KeepZeros: f.Zeros,
		MoS: adapter.MoSConfig{
			EquivalentRank: f.EquivalentRank, Shards: f.Shards, Private: f.Private,
			PairDissociation: f.PairDissociation == nil || *f.PairDissociation, Sampling: adapter.Sampling(f.Sampling),
		},
		VeRA:    adapter.VeRAConfig{DInitial: f.DInitial, Seed: f.Seed},
		PRoLoRA: adapter.PRoLoRAConfig{Unshared: f.Unshared, InParts: f.InParts, OutParts: f.OutParts},
		RaSA:    adapter.RaSAConfig{Shared: f.SharedRank},
		Share:   adapter.Sharing(f.Share),
	}

	if kind == adapter.MoS && f.Sampling == "" {
		c.MoS.Sampling = adapter.Official
	}

	var err error
	if c.Targets, err = parseMatch("target_modules", f.Targets); err != nil {
		return nil, err
	}

	c.Exclude, err = parseMatch("exclude_modules", f.Exclude)
	return c, err
}

// said is an error of the decoder in the terms of the file.
func said(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Sprintf("key %q: %s is not %s", wrong.Field, wrong.Value, wrong.Type)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// choices are the keys that may be null: nothing is chosen then.
var choices = []string{"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"}

// nulls refuses keys without a value, which the decoder would take for their zero.
func nulls(text []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil // more than one value, which the caller reports
	}

	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if string(keys[key]) == "null" && !slices.Contains(choices, key) {
			return fmt.Errorf("%w: key %.100q: null is no value", adapter.ErrConfig, key)
		}
	}

	return nil
}

// parseMatch reads names, a regular expression, or all-linear.
func parseMatch(key string, text json.RawMessage) (adapter.Match, error) {
	var names []string
	var one string
	switch {
	case len(text) == 0 || string(text) == "null":
		return adapter.Match{}, nil
	case json.Unmarshal(text, &names) == nil:
		return adapter.Match{Names: names}, nil
	case json.Unmarshal(text, &one) != nil:
		return adapter.Match{}, fmt.Errorf("%w: %s is neither a list of names nor a text", adapter.ErrConfig, key)
	case strings.EqualFold(one, "all-linear"):
		return adapter.Match{All: true}, nil
	}

	return adapter.Match{Regex: one}, nil
}

func formatMatch(m adapter.Match) json.RawMessage {
	var v any
	switch {
	case m.IsZero():
		return nil
	case m.All:
		v = "all-linear"
	case m.Regex != "":
		v = m.Regex
	default:
		v = m.Names
	}

	text, err := json.Marshal(v)
	if err != nil {
		panic("native: texts cannot be written as JSON")
	}

	return text
}

// types lists the kinds of projection that an adapter has pools for.
func types(a *adapter.Adapter) (names []string) {
	for _, p := range mos.Pools(a) {
		names = append(names, p.Type)
	}
	return names
}

// format writes the text.
func format(a *adapter.Adapter) ([]byte, error) {
	c := &a.Config
	f := config{
		Version: version, R: c.Rank, Alpha: c.Alpha, Dropout: c.Dropout, RSLoRA: c.RSLoRA,
		Targets: formatMatch(c.Targets), Exclude: formatMatch(c.Exclude), Layers: c.Layers, Pattern: c.LayersPattern,
		Whole:  c.WholeModules,
		Biases: string(c.Biases), TaskType: c.TaskType, Zeros: c.KeepZeros, Base: c.Base, BaseHash: c.BaseHash,
	}

	switch c.Kind {
	case adapter.MoS:
		if c.Targets.All {
			f.Targets = formatMatch(adapter.Match{Names: types(a)})
		}

		f.Type = "MOS"
		f.EquivalentRank = c.MoS.EquivalentRank
		f.Shards = c.MoS.Shards
		f.Private = c.MoS.Private
		f.PairDissociation, f.Sampling = &c.MoS.PairDissociation, string(c.MoS.Sampling)
	case adapter.VeRA:
		f.Type = "VERA_NATIVE"
		f.DInitial = c.VeRA.DInitial
		f.Seed = c.VeRA.Seed
	case adapter.PRoLoRA:
		f.Type = "PROLORA"
		f.Unshared = c.PRoLoRA.Unshared
		f.InParts = c.PRoLoRA.InParts
		f.OutParts = c.PRoLoRA.OutParts
	case adapter.RaSA:
		f.Type, f.SharedRank = "RASA_NATIVE", c.RaSA.Shared
	case adapter.Share:
		f.Type, f.Share = "SHARELORA", string(c.Share)
	default:
		return nil, fmt.Errorf("%w: kind %s has no native form", adapter.ErrUnsupported, c.Kind)
	}

	text, err := json.MarshalIndent(f, "", "  ")
	return append(text, '\n'), err
}
