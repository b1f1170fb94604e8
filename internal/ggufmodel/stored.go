package ggufmodel

import (
	"slices"

	"github.com/modelcompress/compress/gguf"
)

// Stored is a file whose tensors are those of the file itself, under their names there: a look into one that [New]
// refuses. It has neither a configuration nor files; of a tensor that nothing here decodes it has the description
// alone, see [Model.Opaque].
func Stored(src *gguf.Model) *Model {
	m := &Model{
		meta: newMetadata(src.Path(), src.Metadata()), tensors: newTensors(src), byName: map[string]*tensor{},
	}

	for _, name := range m.tensors.names {
		info := m.tensors.info[name]
		if !decodable(&info) {
			m.opaque = append(m.opaque, info)
			continue
		}

		rows := int(info.Rows()) // the tensor lies in a file
		cols := int(info.Cols())
		t := &tensor{name: name, shape: slices.Clone(info.Shape), stack: 1, rows: rows, cols: cols}
		t.pieces = []piece{{info: info, stride: rows, cols: cols, stack: 1, rows: rows}}
		m.list = append(m.list, t)
		m.byName[name] = t
	}

	return m
}

// decodable reports whether a tensor has values, and they can be decoded.
func decodable(info *gguf.Info) bool {
	return info.Type.Decodable() && !slices.Contains(info.Shape, 0)
}

// Opaque lists the tensors of a file that [Stored] cannot decode.
func (m *Model) Opaque() []gguf.Info { return slices.Clone(m.opaque) }

// ConfigText is config.json, also where the file's tokenizer is not understood; nil of a file that is [Stored].
func (m *Model) ConfigText() []byte { return m.text }
