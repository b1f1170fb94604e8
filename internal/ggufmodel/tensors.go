package ggufmodel

import (
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/lm/arch"
)

// file is what is read of a GGUF model; *gguf.Model and *gguf.File are some.
type file interface {
	Metadata() gguf.Metadata
	Names() []string
	Info(name string) (gguf.Info, bool)
	Bytes(name string) ([]byte, error)
	View(name string, fn func(data []byte) error) error
}

// tensors is the tensors of a file by their names there.
type tensors struct {
	src   file
	names []string
	info  map[string]gguf.Info
	order map[string]int // place in the file
	// shapes are the names with numbers of blocks and experts replaced by the placeholders of templates.
	shapes map[string]bool
}

func newTensors(src file) *tensors {
	t := &tensors{src: src, names: src.Names(), shapes: map[string]bool{}}
	t.info = make(map[string]gguf.Info, len(t.names))
	t.order = make(map[string]int, len(t.names))
	for i, name := range t.names {
		t.info[name], _ = src.Info(name)
		t.order[name] = i
		t.shapes[template(name)] = true
	}
	return t
}

// template replaces the number of a block in a name by its placeholder.
func template(name string) string {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return name
	}
	number, rest, ok := strings.Cut(rest, ".")
	if _, err := strconv.Atoi(number); err != nil || !ok {
		return name
	}
	return "blk.{l}." + rest
}

// match reports whether some tensor has a name of a template.
func (t *tensors) match(template string) bool { return t.shapes[template] }

// has reports whether a file has all tensors of a source.
func (t *tensors) has(s arch.GGUFSource, block, number int) bool {
	for _, p := range s.Parts {
		if _, ok := t.info[arch.Expand(p.Name, block, number)]; !ok {
			return false
		}
	}
	return true
}

// view reads a tensor.
func (t *tensors) view(name string, fn func(data []byte) error) error { return t.src.View(name, fn) }

// dtype is how a configuration names the type of most values: that of the plain matrices, if all have one.
func (t *tensors) dtype() string {
	names := map[gguf.Type]string{gguf.F32: "float32", gguf.F16: "float16", gguf.BF16: "bfloat16"}
	var kinds []gguf.Type
	for _, info := range t.info {
		if isMatrix(&info) && !slices.Contains(kinds, info.Type) {
			kinds = append(kinds, info.Type)
		}
	}
	if len(kinds) == 1 && names[kinds[0]] != "" {
		return names[kinds[0]]
	}
	return names[gguf.F32]
}

// isMatrix reports whether a tensor has the type that a file was asked to have, which norms, routers, sinks and tables
// of positions never have.
func isMatrix(info *gguf.Info) bool {
	exempt := []string{"_norm.", "_inp.", "_inp_shexp.", "position_embd.", "_sinks.", "rope_"}
	return len(info.Shape) > 1 && strings.HasSuffix(info.Name, ".weight") &&
		!slices.ContainsFunc(exempt, func(part string) bool { return strings.Contains(info.Name, part) })
}
