package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// Plan is a document resolved: everything that a merge is going to write and from what.
type Plan struct {
	Document *recipe.Document
	Method   string
	Models   []recipe.Ref // in order of appearance, an unlisted base last; those that only the tokenizer needs follow
	Base     int          // index into Models, -1: none
	Donor    int          // index into Models of the model that gives configuration, tokenizer and other files
	Blocks   int          // layers of the output's first stack

	DType, OutDType safetensors.DType // as the recipe says, 0: not at all
	Tensors         []Tensor
	Joints          []arch.Joint // what Tensors is written in, where the layout asks for it
	Tokenizer       *recipe.Tokenizer
	ChatTemplate    string
	Warnings        []string

	inputs  []*Input // as Models
	layouts []*layout
	origins []origin // of the output's layers
	rows    int64    // of the vocabulary, 0 until SetVocabulary
}

// origin is where a layer of the output comes from.
type origin struct {
	model, layer int
}

// Tensor is a tensor of the output.
type Tensor struct {
	Name  string
	DType safetensors.DType // in the file
	Shape []int64

	Block     int       // layer of the output, -1 outside
	Role      arch.Role // "" if the architecture's table does not know the tensor
	T         float64   // position on gradients
	VocabAxis int       // axis over the vocabulary, -1: none
	Tied      bool      // for some source the token table stands in for a head that is not stored

	Sources []TensorSource // in the order of the recipe, an unlisted base last
	Base    int            // index into Sources, -1: none
	Params  recipe.Values  // parameters of scope Shared
	Absent  []int          // models that should have the tensor and lack it; Options.Missing allowed that
	Copy    bool           // Sources[0] is written as it is: there is nothing to merge
}

// TensorSource is one input of a tensor.
type TensorSource struct {
	Model  int              // index into Plan.Models
	Info   safetensors.Info // as that model stores it
	Params recipe.Values    // parameters of scope PerInput and PerModel
}

// Missing says what becomes of a tensor that some of its models lack.
type Missing uint8

// The choices.
const (
	MissingError Missing = iota // all are reported, and nothing is done
	MissingMerge                // those that have it are merged
	MissingCopy                 // the base's is copied, or the first model's that has it
	MissingSkip                 // it is left out
)

// Options are the choices that a recipe does not make. The zero value is strict.
type Options struct {
	Missing  Missing
	Truncate bool              // vocabularies that differ are cut to the rows that all have
	DType    safetensors.DType // to write, instead of the recipe's; 0: as the recipe says
}

// The ways in which the tensors of a recipe's models can fail to fit.
var (
	ErrMissing = failure.New("tensor is missing",
		"--missing merge, copy or skip says what becomes of such tensors")
	ErrShape        = errors.New("shapes differ")
	ErrDType        = errors.New("types differ")
	ErrArchitecture = errors.New("different architectures")
	ErrDuplicate    = errors.New("tensor is there twice")
)

// Fault is one tensor that does not fit.
type Fault struct {
	Model  string // "" if it is about several
	Tensor string
	Detail string
	Err    error
}

// Faults is all tensors that do not fit. As an error it has a line for each of the first few and counts the others.
type Faults struct {
	List []Fault
}

// shownFaults bounds the lines of a message.
const shownFaults = 12

// Error gives a line per fault.
func (f *Faults) Error() string {
	var lines []string
	for _, x := range f.List[:min(len(f.List), shownFaults)] {
		parts := slices.DeleteFunc([]string{x.Tensor, x.Model, x.Err.Error(), x.Detail},
			func(s string) bool { return s == "" })
		lines = append(lines, strings.Join(parts, ": "))
	}

	if more := len(f.List) - shownFaults; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d tensors more", more))
	}

	return strings.Join(lines, "\n")
}

// Unwrap gives the kinds of faults to errors.Is.
func (f *Faults) Unwrap() []error {
	var kinds []error
	for _, x := range f.List {
		if !slices.Contains(kinds, x.Err) {
			kinds = append(kinds, x.Err)
		}
	}
	return kinds
}

// SetVocabulary gives every tensor with a vocabulary axis that many rows along it.
func (p *Plan) SetVocabulary(rows int64) {
	p.rows = rows
	for i := range p.Tensors {
		if t := &p.Tensors[i]; t.VocabAxis >= 0 {
			t.Shape[t.VocabAxis] = rows
		}
	}
}

// Summary is what a dry run shows.
type Summary struct {
	Method     string         `json:"method"`
	Models     []string       `json:"models"`
	Base       string         `json:"base,omitempty"`
	Donor      string         `json:"config_from"`
	Tensors    int            `json:"tensors"`
	Copied     int            `json:"tensors_copied"`
	Parameters int64          `json:"parameters"`
	Blocks     int            `json:"blocks"`
	BytesIn    int64          `json:"bytes_in"` // of the inputs' tensors, each counted as often as it is read
	BytesOut   int64          `json:"bytes_out"`
	Largest    string         `json:"largest_tensor"`
	LargestIn  int64          `json:"largest_bytes_in"` // of all sources of the largest tensor together
	DTypes     map[string]int `json:"dtypes"`           // tensors by output type
	Vocabulary int64          `json:"vocabulary,omitempty"`
	Warnings   []string       `json:"warnings,omitempty"`
}

// Summary counts what the merge reads and writes.
func (p *Plan) Summary() *Summary {
	s := &Summary{
		Method: p.Method, Donor: p.Models[p.Donor].String(), Tensors: len(p.Tensors), Blocks: p.Blocks,
		DTypes: map[string]int{}, Vocabulary: p.rows, Warnings: p.Warnings,
	}

	for _, r := range p.Models {
		s.Models = append(s.Models, r.String())
	}
	if p.Base >= 0 {
		s.Base = p.Models[p.Base].String()
	}
	for i := range p.Tensors {
		s.add(&p.Tensors[i])
	}

	return s
}

// add counts a tensor.
func (s *Summary) add(t *Tensor) {
	s.DTypes[t.DType.String()]++
	if t.Copy {
		s.Copied++
	}

	s.Parameters += safetensors.Info{Shape: t.Shape}.Elements()
	if size, err := t.DType.ByteSize(t.Shape); err == nil {
		s.BytesOut += size
	}

	var in int64
	for _, x := range t.Sources {
		in += x.Info.Size
	}

	s.BytesIn += in
	if in > s.LargestIn {
		s.Largest, s.LargestIn = t.Name, in
	}
}
