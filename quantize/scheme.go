package quantize

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/quantize/internal/typemix"
)

// Kind is a kind of numbers.
type Kind string

// The kinds of numbers.
const (
	Int   Kind = "int"   // whole numbers of 2 to 8 bits
	Float Kind = "float" // of 8 bits E4M3, of 4 bits E2M1
)

// Strategy says which elements share a scale.
type Strategy string

// The strategies, by the names that compressed-tensors has for them.
const (
	PerChannel     Strategy = "channel"      // all inputs of an output
	PerGroup       Strategy = "group"        // Group inputs of an output
	PerBlock       Strategy = "block"        // Block[0] outputs by Block[1] inputs
	PerTensorGroup Strategy = "tensor_group" // Group inputs of an output, beside one scale for the matrix
	PerToken       Strategy = "token"        // activations: all of a token
)

// Numbers are the values that quantised weights or activations can have.
type Numbers struct {
	Kind      Kind     `json:"kind"`
	Bits      int      `json:"bits"`
	Symmetric bool     `json:"symmetric"` // without zero points
	Strategy  Strategy `json:"strategy"`
	Group     int      `json:"group,omitempty"`
	Block     [2]int   `json:"block,omitzero"`
	// PowerOfTwo: scales are powers of two, in a byte (the MX formats).
	PowerOfTwo bool `json:"power_of_two,omitempty"`
}

// Scheme is a way to store a quantised model: in a folder, or in a GGUF file.
type Scheme struct {
	Name    string  `json:"name"`             // "w4a16", …; see [SchemeByName]
	Layout  string  `json:"layout"`           // a format of compressed-tensors, gptq, or gguf
	Weights Numbers `json:"weights,omitzero"` // of the matrices in folders
	// Inputs are the numbers that runtimes round activations to as they come; nil: none.
	Inputs *Numbers `json:"inputs,omitempty"`
}

// The layouts of matrices.
const (
	packed      = "pack-quantized"
	bytesInt    = "int-quantized"
	bytesFloat  = "float-quantized"
	nvfp4Packed = "nvfp4-pack-quantized"
	mxfp4Packed = "mxfp4-pack-quantized"
	gptqLayout  = "gptq"
	ggufLayout  = "gguf"
)

// schemes is the table.
var schemes = []Scheme{
	{
		Name: "w4a16", Layout: packed,
		Weights: Numbers{Kind: Int, Bits: 4, Symmetric: true, Strategy: PerGroup, Group: 128},
	},
	{
		Name: "w4a16_asym", Layout: packed,
		Weights: Numbers{Kind: Int, Bits: 4, Strategy: PerGroup, Group: 128},
	},
	{
		Name: "w8a16", Layout: packed,
		Weights: Numbers{Kind: Int, Bits: 8, Symmetric: true, Strategy: PerChannel},
	},
	{
		Name: "w8a8", Layout: bytesInt,
		Weights: Numbers{Kind: Int, Bits: 8, Symmetric: true, Strategy: PerChannel},
		Inputs:  &Numbers{Kind: Int, Bits: 8, Symmetric: true, Strategy: PerToken},
	},
	{
		Name: "fp8_dynamic", Layout: bytesFloat,
		Weights: Numbers{Kind: Float, Bits: 8, Symmetric: true, Strategy: PerChannel},
		Inputs:  &Numbers{Kind: Float, Bits: 8, Symmetric: true, Strategy: PerToken},
	},
	{
		Name: "fp8_block", Layout: bytesFloat,
		Weights: Numbers{Kind: Float, Bits: 8, Symmetric: true, Strategy: PerBlock, Block: [2]int{128, 128}},
		Inputs:  &Numbers{Kind: Float, Bits: 8, Symmetric: true, Strategy: PerGroup, Group: 128},
	},
	{
		Name: "nvfp4a16", Layout: nvfp4Packed,
		Weights: Numbers{Kind: Float, Bits: 4, Symmetric: true, Strategy: PerTensorGroup, Group: 16},
	},
	{
		Name: "mxfp4a16", Layout: mxfp4Packed,
		Weights: Numbers{Kind: Float, Bits: 4, Symmetric: true, Strategy: PerGroup, Group: 32, PowerOfTwo: true},
	},
	{
		Name: "gptq", Layout: gptqLayout,
		Weights: Numbers{Kind: Int, Bits: 4, Symmetric: true, Strategy: PerGroup, Group: 128},
	},
}

// Schemes lists the schemes: those of folders, then those of GGUF files.
func Schemes() []Scheme {
	list := append([]Scheme(nil), schemes...)
	for _, name := range typemix.Names() {
		list = append(list, Scheme{Name: name, Layout: ggufLayout})
	}
	return list
}

// SchemeNames lists the names of all schemes.
func SchemeNames() []string {
	var names []string
	for _, s := range Schemes() {
		names = append(names, s.Name)
	}
	return names
}

// File reports whether the scheme is one of GGUF files, which [File] writes, and not of folders, which [Model] does.
func (s Scheme) File() bool { return s.Layout == ggufLayout }

// Meaning says in words what a scheme is.
func (s Scheme) Meaning() string {
	if s.File() {
		m, _ := typemix.Named(s.Name)
		return "GGUF file, most matrices " + m.Base
	}

	w := s.Weights
	text := fmt.Sprintf("%d-bit integers", w.Bits)
	if w.Kind == Float {
		text = fmt.Sprintf("%d-bit floats", w.Bits)
	}
	switch {
	case w.Strategy == PerGroup && w.PowerOfTwo:
		text += fmt.Sprintf(", a power of two for %d inputs", w.Group)
	case w.Strategy == PerGroup:
		text += fmt.Sprintf(", a scale for %d inputs", w.Group)
	case w.Strategy == PerTensorGroup:
		text += fmt.Sprintf(", an 8-bit scale for %d inputs and one for the matrix", w.Group)
	case w.Strategy == PerBlock:
		text += fmt.Sprintf(", a scale for blocks of %d×%d", w.Block[0], w.Block[1])
	default:
		text += ", a scale for each output"
	}
	if !w.Symmetric {
		text += ", with zero points"
	}
	if s.Inputs != nil {
		text += "; runtimes round activations alike"
	}
	if s.Layout == gptqLayout {
		text += ", in the layout of GPTQ"
	}
	return text
}

// SchemeByName finds a scheme. The error wraps [ErrScheme].
func SchemeByName(name string) (Scheme, error) {
	for _, s := range Schemes() {
		if s.Name == name {
			return s, nil
		}
	}
	return Scheme{}, elsewhere(name,
		fmt.Errorf("%w %q%s; known: %s", ErrScheme, name, likely(name), strings.Join(SchemeNames(), ", ")))
}

// elsewhere gives an error about a name the hint that other tools' names for formats, or for how they round, need.
func elsewhere(name string, err error) error {
	switch strings.ToLower(name) {
	case "awq":
		return failure.Hinted(err, "AWQ is a way of rounding: --to w4a16 --method awq --calib FILE")
	case "hqq":
		return failure.Hinted(err, "HQQ is a way of rounding: --to w4a16 --method hqq")
	case "nf4":
		return failure.Hinted(err, "bitsandbytes' formats are read alone; 4 bits are --to w4a16 for a folder")
	case "gguf":
		return failure.Hinted(err, "a file is called for by its type: --to q4_k_m --out model.gguf")
	case "4bit", "int4", "q4":
		return failure.Hinted(err, "4 bits are --to w4a16 for a folder, and --to q4_k_m for a GGUF file")
	case "8bit", "int8", "q8":
		return failure.Hinted(err, "8 bits are --to w8a16 for a folder, and --to q8_0 for a GGUF file")
	}
	return err
}

// likely asks whether a scheme was meant whose name is in other letters or longer.
func likely(name string) string {
	var near []string
	for _, s := range SchemeNames() {
		if low := strings.ToLower(name); s == low || len(low) > 2 && strings.HasPrefix(s, low) {
			near = append(near, s)
		}
	}
	if len(near) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(near, " or ") + "?"
}

// withGroup gives the scheme another size of groups: 0 for its own, -1 for a scale for each output.
func (s Scheme) withGroup(group int) (Scheme, error) {
	w := &s.Weights
	switch {
	case group == 0:
	case w.Kind != Int || s.Layout == bytesInt:
		return s, fmt.Errorf("%w: groups of %d inputs; scheme %s has its own", ErrOptions, group, s.Name)
	case group == -1:
		w.Strategy, w.Group = PerChannel, 0
	case group < 16 || group%16 != 0:
		return s, fmt.Errorf("%w: groups of %d inputs; want a multiple of 16, or -1 for all inputs of an output",
			ErrOptions, group)
	default:
		w.Strategy, w.Group = PerGroup, group
	}
	return s, nil
}

// columns is how many inputs of an output share a scale, of so many.
func (n Numbers) columns(inputs int) int {
	switch n.Strategy {
	case PerGroup, PerTensorGroup:
		return n.Group
	case PerBlock:
		return n.Block[1]
	}
	return inputs
}
