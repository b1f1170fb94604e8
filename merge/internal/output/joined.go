package output

import (
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// inside is where a tensor lies in the one that holds it.
type inside struct {
	name  string // of that
	first int64  // byte
}

// join replaces the tensors that lie in others by those. Parts must have one type; the plan sees to that.
func (f *Folder) join() {
	f.inside, f.left = map[string]inside{}, map[string]int{}
	joints := map[string]*arch.Joint{}
	for i := range f.o.Joints {
		j := &f.o.Joints[i]
		f.left[j.Name] = len(j.Parts)
		for _, p := range j.Parts {
			f.inside[p.Name], joints[p.Name] = inside{j.Name, p.First}, j
		}
	}

	var list []safetensors.Info
	for _, t := range f.o.Tensors {
		j := joints[t.Name]
		if j == nil {
			list = append(list, t)
			continue
		}

		// Offsets in bytes now: elements have been counted before the type was known.
		at := f.inside[t.Name]
		at.first *= int64(t.DType.Bits() / 8)
		f.inside[t.Name] = at
		// The joint stands where its first part stood, so that the order of the file stays that of the model.
		if t.Name == j.Parts[0].Name {
			list = append(list, safetensors.Info{Name: j.Name, DType: t.DType, Shape: j.Shape})
		}
	}

	f.o.Tensors = list
}

// within is where the bytes of a tensor go: itself, unless it lies in another one.
func (f *Folder) within(name string) inside {
	if p, ok := f.inside[name]; ok {
		return p
	}
	return inside{name: name}
}
