package packed

import (
	"fmt"
	"io"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// separate makes parameters of their own of those that lie in one stored tensor, as the experts of a block do
// in the fused layout; see [arch.Arch.Split]. Nothing is copied: a parameter is a range of the stored tensor.
func (s *Source) separate(c *arch.Config) error {
	var names []string
	for _, name := range s.names {
		want, ok := c.FusedShape(name)
		if !ok {
			names = append(names, name)
			continue
		}

		info, _ := s.dir.Info(name)
		parts := c.Arch.Split(name, info.Shape)
		if !slices.Equal(info.Shape, want) || parts == nil {
			return fmt.Errorf("%s: tensor %q: %w: shape %v, but config.json gives %v for the experts of a block "+
				"in one tensor", s.file(name), name, arch.ErrShape, info.Shape, want)
		}

		for _, p := range parts {
			if _, both := s.dir.Info(p.Name); both || s.matrices[p.Name] != nil {
				return fmt.Errorf("%s: tensor %q: %w: %q is there as well", s.file(name), name, arch.ErrExtraTensor,
					p.Name)
			}
			s.inside[p.Name] = p
			names = append(names, p.Name)
		}

		s.joints[name] = parts
	}

	s.names = names
	return nil
}

// Parts lists the parameters that lie in a stored tensor of the fused layout, in their order there; nil for
// every other tensor.
func (s *Source) Parts(stored string) []arch.Part { return s.joints[stored] }

// Place is where a parameter's bytes are: the stored tensor, and its first element there.
func (s *Source) Place(name string) (stored string, first int64) {
	if p, ok := s.inside[name]; ok {
		return p.From, p.First
	}
	return name, 0
}

// inner is what a parameter inside of a stored tensor would be on its own.
func (s *Source) inner(p arch.Part) safetensors.Info {
	info, _ := s.dir.Info(p.From)
	bits := int64(info.DType.Bits())
	part := safetensors.Info{Name: p.Name, DType: info.DType, Shape: p.Shape, Offset: info.Offset + p.First*bits/8}
	part.Size = part.Elements() * bits / 8
	return part
}

// Bytes gives a parameter's data without copying it; not of one that is packed.
func (s *Source) Bytes(name string) ([]byte, error) {
	stored, _ := s.Place(name)
	data, err := s.dir.Bytes(stored)
	if p, ok := s.inside[name]; ok && err == nil {
		info := s.inner(p)
		first := p.First * int64(info.DType.Bits()) / 8
		data = data[first : first+info.Size : first+info.Size]
	}
	return data, err
}

// ReadAt copies a part of a parameter, off bytes into it, as [safetensors.Dir.ReadAt] does; not of one that is
// packed. It does not read on into the parameter that follows in the same tensor.
func (s *Source) ReadAt(name string, b []byte, off int64) (int, error) {
	p, ok := s.inside[name]
	if !ok {
		return s.dir.ReadAt(name, b, off)
	}

	info := s.inner(p)
	if off < 0 || off > info.Size {
		return 0, fmt.Errorf("%s: tensor %q: %w: offset %d, size %d", s.file(p.From), name, safetensors.ErrRange, off,
			info.Size)
	}

	n, err := s.dir.ReadAt(p.From, b[:min(int64(len(b)), info.Size-off)], p.First*int64(info.DType.Bits())/8+off)
	if err == nil && n < len(b) {
		err = io.EOF
	}

	return n, err
}

// Drop gives back the pages of a parameter's tensor; of one that holds several parameters, with the last of
// them. Views stay valid.
func (s *Source) Drop(name string) error {
	p, ok := s.inside[name]
	if !ok {
		return s.dir.Release(name)
	}
	if list := s.joints[p.From]; list[len(list)-1].Name != name {
		return nil
	}
	return s.dir.Release(p.From)
}

// Kernel is the format in which a parameter's rows can be multiplied as they are stored; see [weights.Source.Kernel].
func (s *Source) Kernel(name string) kernels.QuantFormat {
	p, ok := s.inside[name]
	if !ok {
		return s.dir.Kernel(name)
	}
	if info, _ := s.dir.Info(p.From); len(p.Shape) != 2 || info.Shape[len(info.Shape)-1] != p.Shape[1] ||
		p.First%p.Shape[1] != 0 {
		return 0
	}
	return s.dir.Kernel(p.From)
}

// Codes gives a parameter that has a [Source.Kernel] in its bits; see [weights.Source.Codes].
func (s *Source) Codes(name string) (w kernels.Quantised, view bool, err error) {
	if p, ok := s.inside[name]; ok {
		return s.dir.Codes(p.From, int(p.First/p.Shape[1]), int(p.Shape[0]))
	}
	info, _ := s.dir.Info(name)
	return s.dir.Codes(name, 0, int(info.Shape[0]))
}
