package quantize

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/modelcompress/compress/internal/orderedjson"
)

// The versions of the libraries whose configurations are written.
const compressedTensorsVersion = "0.18.0"

// weightArgs is how compressed-tensors describes quantised numbers. The library refuses keys that it does not know.
type weightArgs struct {
	Bits      int            `json:"num_bits"`
	Type      Kind           `json:"type"`
	Symmetric bool           `json:"symmetric"`
	Strategy  Strategy       `json:"strategy"`
	Group     *int           `json:"group_size"`
	Block     []int          `json:"block_structure"`
	Dynamic   bool           `json:"dynamic"`
	Order     *string        `json:"actorder"`
	ScaleType *string        `json:"scale_dtype,omitempty"`
	ZeroType  *string        `json:"zp_dtype,omitempty"`
	Observer  *string        `json:"observer"`
	Observing map[string]any `json:"observer_kwargs"`
}

// arguments describes numbers; dynamic ones are fitted to activations as they come.
func (n Numbers) arguments(layout string, dynamic bool, order, observer string) *weightArgs {
	text := func(s string) *string { return &s }
	a := &weightArgs{
		Bits: n.Bits, Type: n.Kind, Symmetric: n.Symmetric, Strategy: n.Strategy, Dynamic: dynamic,
		Observing: map[string]any{},
	}

	if n.Group > 0 {
		a.Group = &n.Group
	}
	if n.Strategy == PerBlock {
		a.Block = n.Block[:]
	}
	if !dynamic {
		a.Observer = text(cmp.Or(observer, RangeMinMax))
		if order == OrderWeight {
			a.Order = text("static")
		}
	}

	switch layout {
	case nvfp4Packed:
		a.ScaleType = text("torch.float8_e4m3fn")
		a.ZeroType = text("torch.float8_e4m3fn")
	case mxfp4Packed:
		a.ScaleType = text("torch.uint8")
		a.ZeroType = text("torch.uint8")
	}

	return a
}

// typed is the matrices, by the names of their modules, that have another scheme than most.
type typed struct {
	scheme  Scheme
	modules []string
}

// configGroup is how compressed-tensors describes modules that are stored alike.
type configGroup struct {
	Targets []string    `json:"targets"`
	Weights *weightArgs `json:"weights"`
	Inputs  *weightArgs `json:"input_activations"`
	Outputs *weightArgs `json:"output_activations"`
	Format  string      `json:"format,omitempty"` // where groups differ in it
}

// mixedFormat is what compressed-tensors calls a folder whose groups have formats of their own.
const mixedFormat = "mixed-precision"

// configuration is the quantization_config of an output. ignore are the modules that stay floats, others those of other
// schemes.
func (o Options) configuration(ignore []string, others []typed) ([]byte, error) {
	s := o.Scheme
	if s.Layout == gptqLayout {
		return json.Marshal(struct {
			Method string         `json:"quant_method"`
			Bits   int            `json:"bits"`
			Group  int            `json:"group_size"`
			Desc   bool           `json:"desc_act"`
			Sym    bool           `json:"sym"`
			Head   bool           `json:"lm_head"`
			Format string         `json:"checkpoint_format"`
			Pack   string         `json:"pack_dtype"`
			Meta   map[string]any `json:"meta"`
			Damp   float64        `json:"damp_percent,omitempty"`
		}{
			Method: "gptq", Bits: s.Weights.Bits, Group: groupOf(s.Weights), Sym: s.Weights.Symmetric,
			Format: "gptq", Pack: "int32", Meta: map[string]any{"quantizer": []string{"compress"}}, Damp: o.Damping,
		})
	}

	// A name goes before a class, so that the first group is of all that the others do not name.
	groups := map[string]*configGroup{"group_0": s.group([]string{"Linear"}, o)}
	format := s.Layout
	for i, t := range others {
		groups[fmt.Sprintf("group_%d", i+1)] = t.scheme.group(t.modules, o)
		if t.scheme.Layout != s.Layout {
			format = mixedFormat
		}
	}
	if format == mixedFormat {
		groups["group_0"].Format = s.Layout
		for i, t := range others {
			groups[fmt.Sprintf("group_%d", i+1)].Format = t.scheme.Layout
		}
	}

	return json.Marshal(struct {
		Method  string         `json:"quant_method"`
		Format  string         `json:"format"`
		Status  string         `json:"quantization_status"`
		Ratio   any            `json:"global_compression_ratio"`
		Groups  any            `json:"config_groups"`
		Ignore  []string       `json:"ignore"`
		KVCache any            `json:"kv_cache_scheme"`
		Sparse  map[string]any `json:"sparsity_config"`
		Turned  map[string]any `json:"transform_config"`
		Version string         `json:"version"`
	}{
		Method: "compressed-tensors", Format: format, Status: "compressed", Ignore: ignore, Groups: groups,
		Sparse: map[string]any{}, Turned: map[string]any{}, Version: compressedTensorsVersion,
	})
}

// group describes modules of the scheme.
func (s Scheme) group(targets []string, o Options) *configGroup {
	g := &configGroup{Targets: targets, Weights: s.Weights.arguments(s.Layout, false, o.Order, o.Range)}
	if s.Inputs != nil {
		g.Inputs = s.Inputs.arguments("", true, "", "")
	}
	return g
}

// withConfiguration puts a quantization_config at the end of the text of a config.json, in the place of one that is
// there.
func withConfiguration(text, config []byte) ([]byte, error) {
	object, err := orderedjson.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	object.Set("quantization_config", config)
	return object.Indent()
}

// groupOf is the size of groups as GPTQ spells it: -1 for all inputs of an output.
func groupOf(n Numbers) int {
	if n.Group == 0 {
		return -1
	}
	return n.Group
}
