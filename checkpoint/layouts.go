package checkpoint

import (
	"context"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// apart is a checkpoint whose experts are tensors of their own, also where it keeps those of a block in one;
// see [arch.Arch.Split].
type apart struct {
	*weights.Source
	names []string
	parts map[string]arch.Part
	// reason for which a GGUF file's tensors are shown as they are stored; nil: they are the model's
	reason error
}

// openApart opens a folder or file. Without a config.json that names an architecture with a table, tensors are
// what they are.
func openApart(ctx context.Context, path string) (*apart, error) {
	d, reason, err := openShown(ctx, path)
	if err != nil {
		return nil, err
	}
	if reason != nil && d.Header() != nil {
		s := separate(d, nil)
		s.reason = reason
		return s, nil
	}

	text, _ := weights.ReadFile(path, "config.json", maxConfig) // a comparison does not need one
	if text == nil {
		text = d.MadeConfig()
	}
	return separate(d, arch.OfText(text)), nil
}

// separate finds the experts of an architecture; nil: none.
func separate(d *weights.Source, table *arch.Arch) *apart {
	s := &apart{Source: d, parts: map[string]arch.Part{}}
	for _, name := range d.Names() {
		var parts []arch.Part
		if info, _ := d.Info(name); table != nil && info.DType.Bits()%8 == 0 {
			parts = table.Split(name, info.Shape)
		}
		if len(parts) == 0 {
			s.names = append(s.names, name)
		}
		for _, p := range parts {
			s.names, s.parts[p.Name] = append(s.names, p.Name), p
		}
	}

	return s
}

// stored is the tensor of the files that holds a tensor.
func (s *apart) stored(name string) string {
	if p, ok := s.parts[name]; ok {
		return p.From
	}
	return name
}

// Names implements [safetensors.Source].
func (s *apart) Names() []string { return s.names }

// Info implements [safetensors.Source].
func (s *apart) Info(name string) (safetensors.Info, bool) {
	p, ok := s.parts[name]
	if !ok {
		return s.Source.Info(name)
	}
	info, ok := s.Source.Info(p.From)
	part := safetensors.Info{Name: name, DType: info.DType, Shape: p.Shape}
	part.Size = part.Elements() * int64(info.DType.Bits()/8)
	return part, ok
}

// ReadAt implements [safetensors.Source].
func (s *apart) ReadAt(name string, p []byte, off int64) (int, error) {
	part, ok := s.parts[name]
	if !ok {
		return s.Source.ReadAt(name, p, off)
	}
	info, _ := s.Info(name)
	return s.Source.ReadAt(part.From, p, off+part.First*int64(info.DType.Bits()/8))
}
