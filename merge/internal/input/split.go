package input

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// ErrTwice: a checkpoint with an expert both in a tensor with others and in one of its own.
var ErrTwice = errors.New("experts are there twice")

// configMax bounds config.json.
const configMax = 64 << 20

// split notes the experts that lie in tensors with others; see [arch.Arch.Split].
func (m *Model) split() error {
	text, err := weights.ReadFile(m.Path, "config.json", configMax)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	m.table = arch.OfText(text)
	m.parts = map[string]arch.Part{}
	for _, name := range m.Dir.Names() {
		var parts []arch.Part
		if info, _ := m.Dir.Info(name); m.table != nil && info.DType.Bits()%8 == 0 {
			parts = m.table.Split(name, info.Shape)
		}
		if parts == nil {
			m.names = append(m.names, name)
		}

		for _, p := range parts {
			if _, own := m.Dir.Info(p.Name); own {
				return fmt.Errorf("%s: %w: %s, and in %s", m.Path, ErrTwice, p.Name, p.From)
			}
			m.parts[p.Name] = p
			m.names = append(m.names, p.Name)
		}
	}

	return nil
}

// fused reports whether experts lie in tensors with others.
func (m *Model) fused() bool { return len(m.parts) > 0 }

// Info says what a tensor is; an expert's is one of its own.
func (m *Model) Info(name string) (safetensors.Info, bool) {
	p, ok := m.parts[name]
	if !ok {
		return m.Dir.Info(name)
	}
	info, _ := m.Dir.Info(p.From)
	width := int64(info.DType.Bits() / 8)
	part := safetensors.Info{Name: name, DType: info.DType, Shape: p.Shape, Offset: info.Offset + p.First*width}
	part.Size = part.Elements() * width
	return part, true
}

// place is where a tensor's bytes are: the stored tensor, and its first element there.
func (m *Model) place(name string) (stored string, first int64) {
	if p, ok := m.parts[name]; ok {
		return p.From, p.First
	}
	return name, 0
}

// bytes are a tensor's as they lie in the file.
func (m *Model) bytes(name string) ([]byte, error) {
	p, ok := m.parts[name]
	if !ok {
		return m.Dir.Bytes(name)
	}

	data, err := m.Dir.Bytes(p.From)
	if err != nil {
		return nil, err
	}

	info, _ := m.Info(name)
	first := p.First * int64(info.DType.Bits()/8)
	return data[first : first+info.Size : first+info.Size], nil
}

// release gives back the memory behind a tensor; that of one with several experts once the last of them is done
// with. A failure costs memory alone.
func (m *Model) release(name string) {
	p, ok := m.parts[name]
	if !ok {
		_ = m.Dir.Release(name)
		return
	}

	whole, _ := m.Dir.Info(p.From)
	part, _ := m.Info(name)
	if p.First+part.Elements() == whole.Elements() {
		_ = m.Dir.Release(p.From)
	}
}
