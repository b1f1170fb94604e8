package plan

import (
	"strconv"
	"strings"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// lookupTemplate finds the template of a name: its first number is the layer's, the second, if the template has one,
// the expert's or the head's.
func lookupTemplate(index map[string]*arch.Tensor, name string) *arch.Tensor {
	if t := index[name]; t != nil {
		return t
	}

	parts := strings.Split(name, ".")
	marks := [][]string{{"{l}"}, {"{e}", "{h}"}}
	for i, part := range parts {
		if len(marks) == 0 {
			break
		}

		if _, err := strconv.ParseUint(part, 10, 31); err != nil {
			continue
		}

		for _, mark := range marks[0] {
			parts[i] = mark
			if t := index[strings.Join(parts, ".")]; t != nil {
				return t
			}
		}

		marks = marks[1:]
	}

	return nil
}

// splitLayer splits a name at its first number between dots; block is -1 if there is none.
func splitLayer(name string) (stack string, block int, rest string) {
	for from := 0; ; {
		i := strings.IndexByte(name[from:], '.')
		if i < 0 {
			return "", -1, ""
		}

		i += from
		j := strings.IndexByte(name[i+1:], '.')
		if j < 0 {
			return "", -1, ""
		}

		j += i + 1
		if n, err := strconv.ParseUint(name[i+1:j], 10, 31); err == nil && n < recipe.MaxLayers &&
			name[i+1:j] == strconv.FormatUint(n, 10) {
			return name[:i], int(n), name[j+1:]
		}

		from = j
	}
}

// usualRole knows the usual names of token tables and heads, for architectures without a table.
func usualRole(name string) (role arch.Role, bias bool) {
	stem, part := name, ""
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		stem, part = name[:i], name[i+1:]
	}

	last := stem[strings.LastIndexByte(stem, '.')+1:]
	switch last {
	case "embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in", "token_embedding":
		return arch.Embed, part == "bias"
	case "lm_head", "embed_out":
		return arch.Head, part == "bias"
	}

	return "", false
}

// templateIndex indexes the name templates of a table.
func templateIndex(table *arch.Arch) map[string]*arch.Tensor {
	index := map[string]*arch.Tensor{}
	if table == nil {
		return index
	}
	for i := range table.Tensors {
		index[table.Tensors[i].Name] = &table.Tensors[i]
	}
	return index
}
