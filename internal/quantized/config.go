package quantized

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
)

// Scheme is how one matrix is quantised, as far as its tensors do not say it themselves.
type Scheme struct {
	Bits         int
	Group        int    // elements that share a scale; 0 if the tensors say it, or all of a row
	Block        [2]int // rows and columns that share a scale; 0 without
	Symmetric    bool   // without zero points
	ZerosLessOne bool   // zero points are stored less 1, as in GPTQ's version 1
}

// Config is a quantization_config.
type Config struct {
	Method  string // quant_method
	formats []*Format
	scheme  Scheme // of all matrices that no rule names
	rules   []rule // in the order in which they hold
}

// rule is a scheme for some matrices.
type rule struct {
	targets []target
	scheme  Scheme
}

// target is a name, a regular expression of names, or a class of modules.
type target struct {
	name  string
	re    *regexp.Regexp
	class bool
}

// methods is the table of quant_method.
var methods = map[string]func(c *Config, text []byte) error{
	"compressed-tensors": (*Config).compressedTensors,
	"gptq":               (*Config).gptq,
	"awq":                (*Config).awq,
	"bitsandbytes":       (*Config).bitsAndBytes,
	"fp8":                (*Config).fp8,
	"mxfp4":              (*Config).mxfp4,
}

// Methods lists the known values of quant_method.
func Methods() []string { return slices.Sorted(maps.Keys(methods)) }

// ParseConfig reads the quantization_config of a config.json. The error wraps [ErrConfig].
func ParseConfig(text []byte) (*Config, error) {
	var head struct {
		Method   string `json:"quant_method"`
		Load4Bit bool   `json:"load_in_4bit"`
		Load8Bit bool   `json:"load_in_8bit"`
	}
	if err := failure.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if head.Method == "" && (head.Load4Bit || head.Load8Bit) {
		head.Method = "bitsandbytes" // as its first versions wrote it
	}

	read, ok := methods[head.Method]
	if !ok {
		return nil, fmt.Errorf("%w: quant_method %q (known: %s)", ErrConfig, head.Method,
			strings.Join(Methods(), ", "))
	}

	c := &Config{Method: head.Method}
	if err := read(c, text); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, head.Method, err)
	}
	return c, nil
}

// Scheme is how a matrix is quantised; name is that of its module, without ".weight".
func (c *Config) Scheme(name string) (Scheme, error) {
	if len(c.rules) == 0 {
		return c.scheme, nil
	}

	// As compressed-tensors matches them: a name before an expression before a class of modules.
	for _, is := range []func(target) bool{
		func(t target) bool { return t.name == name && t.re == nil && !t.class },
		func(t target) bool { return t.re != nil && t.re.MatchString(name) },
		func(t target) bool { return t.class },
	} {
		for _, r := range c.rules {
			if slices.ContainsFunc(r.targets, is) {
				return r.scheme, nil
			}
		}
	}

	if c.Method == "gptq" {
		return c.scheme, nil
	}
	return Scheme{}, fmt.Errorf("%w: no group of config_groups names module %q, whose weight is quantised", ErrConfig,
		name)
}

// compressedTensorsFormats are those that a configuration of compressed-tensors may name.
var compressedTensorsFormats = []*Format{
	&packQuantized, &intQuantized, &floatQuantized, &mxfp8Quantized, &nvfp4Quantized, &mxfp4Quantized,
}

// weightArgs is how compressed-tensors describes the quantisation of a weight.
type weightArgs struct {
	Bits      *int   `json:"num_bits"`
	Type      string `json:"type"`
	Symmetric *bool  `json:"symmetric"`
	Strategy  string `json:"strategy"`
	Group     int    `json:"group_size"`
	Block     []int  `json:"block_structure"`
}

func (c *Config) compressedTensors(text []byte) error {
	var file struct {
		Format string `json:"format"`
		Groups map[string]struct {
			Targets []string    `json:"targets"`
			Weights *weightArgs `json:"weights"`
			Format  string      `json:"format"`
		} `json:"config_groups"`
	}
	if err := failure.Unmarshal(text, &file); err != nil {
		return err
	}

	for _, name := range slices.Sorted(maps.Keys(file.Groups)) {
		g := file.Groups[name]
		for _, format := range []string{file.Format, g.Format} {
			if err := knownFormat(format); err != nil {
				return err
			}
		}
		if g.Weights == nil {
			continue
		}

		s, err := g.Weights.scheme()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r := rule{scheme: s}
		for _, text := range g.Targets {
			t, err := parseTarget(text)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			r.targets = append(r.targets, t)
		}
		c.rules = append(c.rules, r)
	}

	if len(c.rules) == 0 {
		return fmt.Errorf("config_groups quantise no weights")
	}
	c.formats = compressedTensorsFormats
	return nil
}

func knownFormat(name string) error {
	names := []string{"", "mixed-precision", "naive-quantized", "dense"}
	for _, f := range compressedTensorsFormats {
		names = append(names, f.Name)
	}
	if slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("format %q (known: %s)", name, strings.Join(names[1:], ", "))
}

func (a *weightArgs) scheme() (Scheme, error) {
	s := Scheme{Bits: 8, Symmetric: true, Group: max(a.Group, 0)}
	if a.Bits != nil {
		s.Bits = *a.Bits
	}
	if a.Symmetric != nil {
		s.Symmetric = *a.Symmetric
	}
	if a.Strategy == "block" {
		if len(a.Block) != 2 || a.Block[0] < 1 || a.Block[1] < 1 {
			return s, fmt.Errorf("block_structure %v", a.Block)
		}
		s.Block = [2]int{a.Block[0], a.Block[1]}
	}
	return s, nil
}

// parseTarget reads "re:" and an expression, which matches from the start of a name on, the name of a module, which
// has a dot or stands alone in lower case, or a class.
func parseTarget(text string) (target, error) {
	if pattern, ok := strings.CutPrefix(text, "re:"); ok {
		re, err := regexp.Compile("^(?:" + pattern + ")")
		if err != nil {
			return target{}, fmt.Errorf("target %q: %w", text, err)
		}
		return target{re: re}, nil
	}
	return target{name: text, class: text != "" && text[0] >= 'A' && text[0] <= 'Z'}, nil
}

func (c *Config) gptq(text []byte) error {
	var file struct {
		Bits    int                        `json:"bits"`
		Group   int                        `json:"group_size"`
		Format  string                     `json:"checkpoint_format"`
		Marlin  bool                       `json:"is_marlin_format"` // as AutoGPTQ said it first
		Dynamic map[string]json.RawMessage `json:"dynamic"`
	}
	if err := failure.Unmarshal(text, &file); err != nil {
		return err
	}

	if file.Marlin {
		file.Format = "marlin"
	}

	c.formats = []*Format{&gptq}
	c.scheme = Scheme{Bits: file.Bits, Group: max(file.Group, 0)}
	switch file.Format {
	case "", "gptq":
		c.scheme.ZerosLessOne = true
	case "gptq_v2":
	default:
		return fmt.Errorf("checkpoint_format %q (known: gptq, gptq_v2)", file.Format)
	}

	// GPTQModel's rules for some modules: "+:" or nothing before an expression changes what it names, "-:" leaves
	// modules unquantised, which have no tensors of the format then.
	for _, key := range slices.Sorted(maps.Keys(file.Dynamic)) {
		if strings.HasPrefix(key, "-:") {
			continue
		}

		change := struct {
			Bits  int `json:"bits"`
			Group int `json:"group_size"`
		}{file.Bits, file.Group}
		if err := failure.Unmarshal(file.Dynamic[key], &change); err != nil {
			return fmt.Errorf("dynamic %q: %w", key, err)
		}

		t, err := parseTarget("re:" + strings.TrimPrefix(key, "+:"))
		if err != nil {
			return err
		}
		s := c.scheme
		s.Bits = change.Bits
		s.Group = max(change.Group, 0)
		c.rules = append(c.rules, rule{[]target{t}, s})
	}

	return nil
}

func (c *Config) awq(text []byte) error {
	var file struct {
		Bits    int    `json:"bits"`
		Group   int    `json:"group_size"`
		Version string `json:"version"`
	}
	if err := failure.Unmarshal(text, &file); err != nil {
		return err
	}
	if v := strings.ToLower(file.Version); v != "" && v != "gemm" {
		return fmt.Errorf("version %q (known: gemm)", file.Version)
	}

	c.formats = []*Format{&awq}
	c.scheme = Scheme{Bits: file.Bits, Group: max(file.Group, 0)}
	return nil
}

func (c *Config) bitsAndBytes([]byte) error {
	for _, f := range formats {
		if isBitsAndBytes(f) {
			c.formats = append(c.formats, f)
		}
	}
	return nil
}

func (c *Config) fp8(text []byte) error {
	var file struct {
		Block []int `json:"weight_block_size"`
	}
	if err := failure.Unmarshal(text, &file); err != nil {
		return err
	}

	c.formats = []*Format{&fp8, &floatQuantized} // the second is that of AutoFP8, with the same quant_method
	switch {
	case file.Block == nil:
	case len(file.Block) != 2 || file.Block[0] < 1 || file.Block[1] < 1:
		return fmt.Errorf("weight_block_size %v", file.Block)
	default:
		c.scheme.Block = [2]int{file.Block[0], file.Block[1]}
	}
	return nil
}

func (c *Config) mxfp4([]byte) error {
	c.formats = []*Format{&mxfp4Experts}
	return nil
}
