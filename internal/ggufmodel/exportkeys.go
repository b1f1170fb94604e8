package ggufmodel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/lm/arch"
)

// export makes the metadata of a file.
type export struct {
	file     string
	config   *arch.Config
	raw      map[string]json.RawMessage // config.json
	name     string
	fileType uint32
	splitter string
	sizes    string // general.size_label
	read     func(name string) ([]byte, error)
	out      gguf.Metadata
}

// build makes the pairs in the order of llama.cpp's converter.
func (x *export) build() (gguf.Metadata, error) {
	x.set("general.architecture", gguf.Of(x.config.GGUFName()))
	x.set("general.type", gguf.Of("model"))
	if err := x.sampling(); err != nil {
		return nil, err
	}
	x.set("general.name", gguf.Of(strings.ToValidUTF8(x.name, "\uFFFD")))
	x.set("general.size_label", gguf.Of(x.sizes))

	for _, w := range x.config.Arch.GGUFWrites() {
		if err := x.write(w); err != nil {
			return nil, err
		}
	}

	x.set("general.quantization_version", gguf.Of(uint32(2))) // of the layout of blocks, which all files have
	if err := x.vocabulary(); err != nil {
		return nil, err
	}

	return x.out, nil
}

// sampling writes what the generation_config.json says of how tokens are drawn, which llama.cpp does unless it is told
// otherwise.
func (x *export) sampling() error {
	var settings map[string]json.RawMessage
	if err := x.optional("generation_config.json", &settings); err != nil {
		return err
	}

	for _, one := range [][2]string{
		{"top_k", "top_k"},
		{"top_p", "top_p"},
		{"min_p", "min_p"},
		{"temperature", "temp"},
		{"repetition_penalty", "penalty_repeat"},
	} {
		f, err := strconv.ParseFloat(string(settings[one[0]]), 32)
		switch key := "general.sampling." + one[1]; {
		case err != nil || math.Abs(f) > math.MaxInt32:
		case one[0] == "top_k":
			x.set(key, gguf.Of(int32(f)))
		default:
			x.set(key, gguf.Of(float32(f)))
		}
	}

	return nil
}

// optional reads a JSON file beside the tensors, if it is there.
func (x *export) optional(name string, into any) error {
	text, err := x.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return x.fault(ErrMetadata, "%s: %v", name, err)
	}
	return nil
}

func (x *export) set(key string, v gguf.Value) { x.out = append(x.out, gguf.Entry{Key: key, Value: v}) }

// fault is an error about what the file cannot say.
func (x *export) fault(err error, format string, args ...any) error {
	return &Error{File: x.file, Err: err, Detail: fmt.Sprintf(format, args...)}
}

// write writes a key of the tables.
func (x *export) write(w arch.GGUFWrite) error {
	prefix := x.config.GGUFName() + "."
	switch w.Key {
	case "rope.scaling":
		return x.scaling(prefix + w.Key + ".")
	case "general.file_type":
		x.set(w.Key, gguf.Of(x.fileType))
		return nil
	}

	field := w.Value
	plus := ""
	if field == "" {
		var ok bool
		if field, plus, ok = x.field(w.Key); !ok {
			return nil
		}
	}
	if w.Given && !x.given(field) {
		return nil
	}

	v, err := x.value(field, plus)
	if err != nil || v == nil {
		return err
	}
	if w.Unless != nil {
		if text, err := (&metadata{file: x.file}).json(w.Key, *v); err == nil && equal(w.Unless, text) {
			return nil
		}
	}

	x.set(prefix+w.Key, *v)
	return nil
}

// field finds the field of the configuration that a key holds, and the key whose value the reader takes off.
func (x *export) field(key string) (field, plus string, ok bool) {
	a := x.config.Arch
	for _, field := range arch.Fields() {
		if _, known := a.Config[field]; !known {
			continue
		}
		g, ok := a.GGUFField(field)
		if ok && g.Key == key && (g.Cases == nil || field == "window") {
			return field, g.Minus, true
		}
	}
	return "", "", false
}

// given reports whether config.json has a field.
func (x *export) given(field string) bool {
	_, ok := x.stated(field)
	return ok
}

// stated is what config.json says about a field; a null says nothing.
func (x *export) stated(field string) (json.RawMessage, bool) {
	k := x.config.Arch.Config[field]
	for _, key := range append([]string{k.Key}, k.Also...) {
		if v, ok := x.raw[key]; ok && key != "" && string(v) != "null" {
			return v, true
		}
	}
	return nil, false
}

// value works out what a key is: nil where the model has nothing of the kind.
func (x *export) value(text, plus string) (*gguf.Value, error) {
	if json.Valid([]byte(text)) {
		return literal(text)
	}

	if v, ok := x.derived(text); ok {
		return v, nil
	}
	if _, ok := whole[text]; ok || strings.Contains(text, "+") {
		sum := 0
		for one := range strings.SplitSeq(text, "+") {
			sum += whole[one](x.config)
		}
		if plus == "rope.dimension_count" {
			sum += x.config.RopeDim
		}
		return of(uint32(sum)), nil
	}

	return x.number(text)
}

func of[T gguf.Scalar](v T) *gguf.Value {
	value := gguf.Of(v)
	return &value
}

// literal is a value that tables give.
func literal(text string) (*gguf.Value, error) {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case bool:
		return of(v), nil
	case string:
		return of(v), nil
	case float64:
		return of(uint32(v)), nil
	}
	panic("ggufmodel: a table writes " + text)
}

// whole lists fields that are counts.
var whole = map[string]func(c *arch.Config) int{
	"vocab":        func(c *arch.Config) int { return c.Vocab },
	"hidden":       func(c *arch.Config) int { return c.Hidden },
	"layers":       func(c *arch.Config) int { return c.Layers },
	"heads":        func(c *arch.Config) int { return c.Heads },
	"kv_heads":     func(c *arch.Config) int { return c.KVHeads },
	"head_dim":     func(c *arch.Config) int { return c.HeadDim },
	"inner":        func(c *arch.Config) int { return c.Inner },
	"positions":    func(c *arch.Config) int { return c.MaxPositions },
	"q_rank":       func(c *arch.Config) int { return c.QRank },
	"kv_rank":      func(c *arch.Config) int { return c.KVRank },
	"nope_dim":     func(c *arch.Config) int { return c.NopeDim },
	"rope_dim":     func(c *arch.Config) int { return c.RopeDim },
	"v_dim":        func(c *arch.Config) int { return c.VDim },
	"experts":      func(c *arch.Config) int { return c.Experts },
	"top_k":        func(c *arch.Config) int { return c.TopK },
	"expert_inner": func(c *arch.Config) int { return c.ExpertInner },
	"shared_inner": func(c *arch.Config) int { return c.SharedInner },
	"groups":       func(c *arch.Config) int { return max(c.Groups, 1) },
	"top_groups":   func(c *arch.Config) int { return max(c.TopGroups, 1) },
	"window":       window,
	"mlp":          mlp,
}

// window is the window of the blocks that have one; 0 where none has.
func window(c *arch.Config) (n int) {
	for _, w := range c.Windows {
		n = max(n, w)
	}
	return n
}

// mlp is the inner size of the MLP, or of an expert; without experts the shared one is the MLP.
func mlp(c *arch.Config) int {
	if c.Experts == 0 && c.SharedInner > 0 {
		return c.SharedInner
	}
	return c.Inner
}

// derived gives what configurations say otherwise than files.
func (x *export) derived(name string) (v *gguf.Value, ok bool) {
	c := x.config
	rope := c.Rope
	if rope == nil {
		rope = &arch.Rope{Theta: 10000, Dim: c.HeadDim}
	}

	switch name {
	case "rotated":
		return of(uint32(rope.Dim)), true
	case "rope_base":
		return of(float32(rope.Theta)), true
	case "rope_base_swa":
		return x.localBase(), true
	case "original":
		return x.original(), true
	case "long_gain":
		if rope.Type != "longrope" {
			return nil, true
		}
		_, gain := rope.InvFreq(math.MaxInt32)
		return of(float32(gain)), true
	case "score_gain":
		if rope.MScaleAllDim == 0 {
			return nil, true
		}
		return of(float32(0.1 * rope.MScaleAllDim)), true // what llama.cpp divides by again
	case "windows":
		slides := make([]bool, len(c.Windows))
		for i, w := range c.Windows {
			slides[i] = w > 0
		}
		list := gguf.List(slides)
		return &list, true
	}

	return nil, false
}

// localBase is the base of the rotation of blocks with a window, where they have one of their own.
func (x *export) localBase() *gguf.Value {
	c := x.config
	if c.Arch.RopeLocal == nil {
		return nil
	}
	for l, at := range c.RopeOf {
		if at >= 0 && c.Windows[l] > 0 {
			return of(float32(c.Ropes[at].Theta))
		}
	}
	return nil
}

// original is the length of the original training, of architectures that say it outside of the section.
func (x *export) original() *gguf.Value {
	if k := x.config.Arch.Rope.Original; k != nil {
		text, ok := x.raw[k.Key]
		if !ok {
			text = k.Default
		}
		if n, err := strconv.ParseUint(string(text), 10, 32); err == nil {
			return of(uint32(n))
		}
	}
	return of(uint32(max(x.config.Rope.Original, 0)))
}

// number is a field that has no place in whole, from config.json or what its absence means: a factor, a flag, or a
// count.
func (x *export) number(field string) (*gguf.Value, error) {
	k := x.config.Arch.Config[field]
	text, ok := x.stated(field)
	if !ok {
		text = k.Default
		if v, null := x.raw[k.Key]; null && string(v) == "null" && k.Null != nil {
			text = k.Null
		}
	}

	if b, err := strconv.ParseBool(string(text)); err == nil && (string(text) == "true" || string(text) == "false") {
		return of(b), nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return nil, x.fault(ErrUnwritable, "%s: %s is not a number", k.Key, clip(string(text)))
	}

	if counts[field] {
		return of(uint32(f)), nil
	}

	return of(float32(f)), nil
}

// counts lists the fields in which [export.number] finds counts.
var counts = map[string]bool{"shared_experts": true, "dense_first": true}

// scaling writes how frequencies are scaled.
func (x *export) scaling(prefix string) error {
	r := x.config.Rope
	if r == nil {
		return nil
	}

	switch r.Type {
	case "default", "llama3": // llama3's factors are a tensor
		return nil
	case "linear", "yarn":
		x.set(prefix+"type", gguf.Of(r.Type))
		x.set(prefix+"factor", gguf.Of(float32(r.Factor)))
	default:
		return x.fault(ErrRope, "files of a %s have no %q", x.config.ModelType, r.Type)
	}
	if r.Type == "linear" {
		return nil
	}

	x.set(prefix+"original_context_length", gguf.Of(uint32(r.Original)))
	for _, one := range []struct{ key, stated string }{
		{"yarn_attn_factor", "attention_factor"}, {"yarn_beta_fast", "beta_fast"}, {"yarn_beta_slow", "beta_slow"},
	} {
		if f, ok := x.section(one.stated); ok {
			x.set(prefix+one.key, gguf.Of(float32(f)))
		}
	}

	return nil
}

// section finds a number in what config.json says of the rotation of full attention.
func (x *export) section(key string) (float64, bool) {
	for _, name := range []string{"rope_parameters", "rope_scaling"} {
		var section, full map[string]json.RawMessage
		if json.Unmarshal(x.raw[name], &section) != nil {
			continue
		}
		if json.Unmarshal(section["full_attention"], &full) == nil && full != nil {
			section = full
		}
		if f, err := strconv.ParseFloat(string(section[key]), 64); err == nil {
			return f, true
		}
	}
	return 0, false
}

// sizes says how many parameters a model has, as llama.cpp labels them: "135M", or "8x7.0B" of a mixture.
func sizes(targets []*Target) string {
	var total, shared, expert, experts, stacks float64
	for _, t := range targets {
		size := 1.0
		for _, d := range t.Shape {
			size *= float64(d)
		}

		total += size
		if !strings.Contains(t.Name, "_exps.") || len(t.Shape) < 3 {
			shared += size
			continue
		}
		expert += math.Floor(size / float64(t.Shape[0]))
		experts += float64(t.Shape[0])
		stacks++
	}

	if stacks == 0 {
		return rounded(total)
	}
	return fmt.Sprintf("%.0fx%s", math.Floor(experts/stacks), rounded(shared+expert))
}

// rounded writes a number with a suffix, and at least two digits.
func rounded(n float64) string {
	scale, suffix := 1e-3, "K"
	switch {
	case n > 1e12:
		scale, suffix = 1e-12, "T"
	case n > 1e9:
		scale, suffix = 1e-9, "B"
	case n > 1e6:
		scale, suffix = 1e-6, "M"
	}

	digits := len(strings.TrimLeft(strconv.FormatFloat(math.RoundToEven(n*scale), 'f', 0, 64), "0"))
	return strconv.FormatFloat(n*scale, 'f', max(2-digits, 0), 64) + suffix
}

func float32Bytes(values []float32) []byte {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data
}
