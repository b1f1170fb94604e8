package ggufmodel

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/lm/arch"
)

// Checkpoint is what is read of a checkpoint for which a file is planned.
type Checkpoint struct {
	Path    string // for messages, and the last part for general.name
	Tensors arch.Source
	// ReadFile reads a file beside the tensors; the error wraps [fs.ErrNotExist] where there is none.
	ReadFile func(name string) ([]byte, error)
}

// ExportOptions says how a file is planned.
type ExportOptions struct {
	Name string // general.name; "": the last part of the checkpoint's path
	// FileType is general.file_type, which says what most matrices are; llama.cpp's numbers (0 F32, 1 F16, 32 BF16).
	FileType uint32
	// Splitter is the name for tokenizer.ggml.pre where the tokenizer is byte-level; "": found in tokenizer.json.
	Splitter string
	// AllowExtra leaves out tensors that the model does not have, which are an error otherwise.
	AllowExtra bool
}

// Export is a file that a checkpoint can be written as.
type Export struct {
	Config   *arch.Config
	Metadata gguf.Metadata // without general.alignment
	Tensors  []*Target     // in the order of the file

	// Lost says what llama.cpp computes otherwise than the checkpoint says, in texts that are longer than a window: it
	// has none for some architectures. "" where nothing is lost.
	Lost string

	path  string
	parts map[string]arch.Part // parameters that lie in a tensor with others
}

// NewExport plans the file that llama.cpp's converter writes of a checkpoint. No weight is read. What the format or
// llama.cpp would not compute as the checkpoint says is an error around [ErrUnwritable], [ErrRope] or [ErrTokenizer];
// others are those of [arch.ParseConfig] and [arch.Resolve].
func NewExport(c Checkpoint, o ExportOptions) (*Export, error) {
	text, err := c.ReadFile("config.json")
	if err != nil {
		return nil, err
	}

	file := filepath.Join(c.Path, "config.json")
	config, err := arch.ParseConfig(file, text)
	if err != nil {
		return nil, err
	}
	if !config.Arch.GGUFWritable() {
		return nil, unknownType(c.Path, config)
	}

	e := &Export{Config: config, path: c.Path, parts: map[string]arch.Part{}}
	p := &plan{file: c.Path, config: config, byName: map[string]*Target{}}
	if err := e.targets(p, c.Tensors, o.AllowExtra); err != nil {
		return nil, err
	}

	m := &export{
		file: c.Path, config: config, name: o.Name, fileType: o.FileType, splitter: o.Splitter, read: c.ReadFile,
	}
	if m.name == "" {
		m.name = strings.TrimSuffix(filepath.Base(filepath.Clean(c.Path)), ".gguf")
	}
	if err := json.Unmarshal(text, &m.raw); err != nil {
		return nil, &Error{File: file, Err: ErrMetadata, Detail: err.Error()}
	}

	m.sizes = sizes(e.Tensors)
	if e.Metadata, err = m.build(); err != nil {
		return nil, err
	}

	return e, e.check()
}

// targets finds the parameters and plans the tensors of the file.
func (e *Export) targets(p *plan, src arch.Source, allowExtra bool) error {
	apart := e.apart(src)
	layout, err := arch.Resolve(e.Config, apart, allowExtra)
	if err != nil {
		return err
	}

	p.params = layout.Params
	if err := p.build(); err != nil {
		return err
	}

	for _, t := range p.list {
		if len(t.Shape) > 1 && slices.Contains(t.Shape, 0) {
			return &Error{File: p.file, Tensor: t.Sources[0], Err: ErrUnwritable, Detail: "it is empty"}
		}
	}

	p.sort(func(name string) string { return e.Stored(name).From }, src.Names())
	e.Tensors = append(factors(e.Config), p.list...)

	return nil
}

// separate is a checkpoint in which every expert has tensors of its own.
type separate struct {
	arch.Source
	names []string
	parts map[string]arch.Part
}

// apart takes what lies together apart, as [arch.Arch.Split] does.
func (e *Export) apart(src arch.Source) *separate {
	s := &separate{Source: src, parts: e.parts}
	for _, name := range src.Names() {
		shape, _ := src.Shape(name)
		parts := e.Config.Arch.Split(name, shape)
		if len(parts) == 0 {
			s.names = append(s.names, name)
		}
		for _, part := range parts {
			s.names = append(s.names, part.Name)
			s.parts[part.Name] = part
		}
	}
	return s
}

// Names implements [arch.Source].
func (s *separate) Names() []string { return s.names }

// Shape implements [arch.Source].
func (s *separate) Shape(name string) ([]int64, bool) {
	if part, ok := s.parts[name]; ok {
		return part.Shape, true
	}
	return s.Source.Shape(name)
}

// File implements [arch.Source].
func (s *separate) File(name string) string {
	if part, ok := s.parts[name]; ok {
		name = part.From
	}
	return s.Source.File(name)
}

// Stored is where a parameter lies in the checkpoint that the plan was made for: the tensor there, and the first of its
// elements. One with a tensor of its own is all of it.
func (e *Export) Stored(name string) arch.Part {
	if part, ok := e.parts[name]; ok {
		return part
	}
	return arch.Part{Name: name, From: name}
}

// factors are the tensors of factors of rotations.
func factors(c *arch.Config) []*Target {
	p := &plan{}
	if c.Rope == nil {
		return nil
	}

	switch c.Rope.Type {
	case "llama3":
		p.extra(ropeFreqs, llama3Factors(c.Rope))
	case "longrope":
		p.extra(ropeLong, c.Rope.LongFactor)
		p.extra(ropeShort, c.Rope.ShortFactor)
	}

	return p.list
}

// llama3Factors gives what frequencies are divided by, in float32 at every step, as llama.cpp's converter computes
// them.
func llama3Factors(r *arch.Rope) []float64 {
	list := make([]float64, r.Dim/2)
	factor := float32(r.Factor)
	low, high := float32(r.LowFreq), float32(r.HighFreq)
	for i := range list {
		power := float32(math.Pow(r.Theta, float64(float32(2*i)/float32(r.Dim))))
		wave := float32(2*math.Pi) / (1 / power)
		switch {
		case wave < float32(float64(r.Original)/r.HighFreq):
			list[i] = 1
		case wave > float32(float64(r.Original)/r.LowFreq):
			list[i] = r.Factor
		default:
			smooth := (float32(r.Original)/wave - low) / (high - low)
			list[i] = float64(1 / ((1-smooth)/factor + smooth))
		}
	}
	return list
}

// unlike lists the fields of a configuration in which a model and its file may differ: one architecture's files are
// also those of another, and the rest is not computed with.
var unlike = []string{"ModelType", "Arch", "DType", "BOS", "EOS", "Unknown"}

// check reads the plan as a file and compares what it means with the configuration: what the format does not hold, or
// llama.cpp takes to be otherwise, must not be lost.
func (e *Export) check() error {
	m, err := open(planned{e}, e.path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnwritable, err)
	}

	config := *e.Config
	config.Inner = mlp(e.Config)
	if config.Experts == 0 {
		config.SharedInner = 0
	}

	want, have := reflect.ValueOf(config), reflect.ValueOf(*m.config)
	for i := range want.NumField() {
		field := want.Type().Field(i)
		if !field.IsExported() || slices.Contains(unlike, field.Name) {
			continue
		}
		a, b := want.Field(i).Interface(), have.Field(i).Interface()
		if same(a, b) {
			continue
		}

		name := field.Name
		if key := spelt[name]; key != "" {
			name = key
		}
		detail := fmt.Sprintf("%s, and llama.cpp computes a %s with %s", brief(name, a, b), e.Config.GGUFName(),
			brief(name, b, a))
		if field.Name != "Windows" {
			return &Error{File: e.path, Err: ErrUnwritable, Detail: detail}
		}
		e.Lost = detail
	}

	for _, key := range e.Config.Arch.GGUF.Unread {
		if v, ok := e.Metadata.Get(e.Config.GGUFName() + "." + key); ok {
			e.Lost = fmt.Sprintf("%s is %v, which llama.cpp does not read", key, v)
		}
	}

	return nil
}

// spelt has the words for fields of a configuration that a reader of config.json does not know by their names here.
var spelt = map[string]string{
	"AttnScales": "scales of attention (query_pre_attn_scalar)", "NormTopK": "norm_topk_prob",
	"Windows": "sliding windows (sliding_window)", "Ropes": "rotations (rope_parameters)",
	"Rope": "rotation (rope_parameters)", "GateLimit": "limit of the gates (swiglu_limit)", "Eps": "rms_norm_eps",
}

// same compares parts of configurations; rotations by what they are.
func same(a, b any) bool {
	switch a := a.(type) {
	case *arch.Rope:
		return sameRope(a, b.(*arch.Rope))
	case []*arch.Rope:
		return slices.EqualFunc(a, b.([]*arch.Rope), sameRope)
	}
	return reflect.DeepEqual(a, b)
}

func sameRope(a, b *arch.Rope) bool {
	if a == nil || b == nil {
		return a == b
	}
	if reflect.DeepEqual(*a, *b) {
		return true
	}
	if a.Dim != b.Dim || a.Interleaved != b.Interleaved || a.Static() != b.Static() {
		return false
	}

	// Short texts and long ones; frequencies are float32 in the end.
	for _, n := range []int{0, math.MaxInt32} {
		x, gainX := a.InvFreq(n)
		y, gainY := b.InvFreq(n)
		near := func(p, q float64) bool { return math.Abs(p-q) <= 1e-6*math.Abs(p)*max(a.Factor, 1) }
		if !near(gainX, gainY) || !slices.EqualFunc(x, y, near) {
			return false
		}
	}

	return true
}

// brief says what a field of a configuration is; of a structure, the first of its fields that another one has
// otherwise.
func brief(name string, v, other any) string {
	a, b := reflect.ValueOf(v), reflect.ValueOf(other)
	if a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil() {
		a, b = a.Elem(), b.Elem()
		for i := range a.NumField() {
			if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
				return brief(name+"."+a.Type().Field(i).Name, x, y)
			}
		}
	}

	text, err := json.Marshal(v)
	if err != nil {
		text = []byte(err.Error())
	}

	return name + " " + clip(string(text))
}

// planned is a plan as a file without weights.
type planned struct{ *Export }

// Metadata implements file.
func (p planned) Metadata() gguf.Metadata { return p.Export.Metadata }

// Names implements file.
func (p planned) Names() []string {
	names := make([]string, len(p.Tensors))
	for i, t := range p.Tensors {
		names[i] = t.Name
	}
	return names
}

// Info implements file.
func (p planned) Info(name string) (gguf.Info, bool) {
	i := slices.IndexFunc(p.Tensors, func(t *Target) bool { return t.Name == name })
	if i < 0 {
		return gguf.Info{}, false
	}
	return p.Tensors[i].Info(gguf.F32), true
}

// Bytes implements file; only factors of rotations are read.
func (p planned) Bytes(name string) ([]byte, error) {
	i := slices.IndexFunc(p.Tensors, func(t *Target) bool { return t.Name == name && t.values != nil })
	if i < 0 {
		return nil, &Error{File: p.path, Tensor: name, Err: gguf.ErrUnknownTensor}
	}
	return float32Bytes(p.Tensors[i].values), nil
}

// View implements file.
func (p planned) View(name string, fn func(data []byte) error) error {
	data, err := p.Bytes(name)
	if err != nil {
		return err
	}
	return fn(data)
}
