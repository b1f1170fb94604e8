package arch

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Part is a parameter of the table as it lies inside of a stored tensor.
type Part struct {
	Name  string  // as the table spells it
	Shape []int64 // of the parameter
	From  string  // the stored tensor
	First int64   // the parameter's first element there; the others follow
}

// Joint is a tensor that holds several parameters of the table.
type Joint struct {
	Name  string
	Shape []int64
	Parts []Part // one after the other, which fill it
}

// maxExperts bounds the experts of a block, far above any model.
const maxExperts = 1 << 16

// OfText gives the architecture that the text of a config.json names; nil where it names none that has a table,
// or is no configuration.
func OfText(config []byte) *Arch {
	var c struct {
		ModelType string `json:"model_type"`
	}
	if json.Unmarshal(config, &c) != nil {
		return nil
	}

	a, err := Lookup(c.ModelType)
	if err != nil {
		return nil
	}

	return a
}

// Split lists the parameters that a stored tensor of the given shape holds in the fused layout of mixtures,
// which version 5 of the transformers library has in memory and some programs write: the experts of a block lie
// in gate_up_proj [experts, 2·inner, hidden], for each of them the rows of gate before those of up, and in
// down_proj [experts, hidden, inner]. It gives nil for every other tensor.
func (a *Arch) Split(name string, shape []int64) []Part {
	members, block := a.fusedAt(name)
	if members == nil {
		return nil
	}

	if !members[0].PerExpert() {
		return []Part{{Name: Expand(members[0].Name, block, 0), Shape: slices.Clone(shape), From: name}}
	}

	n := int64(len(members))
	if len(members[0].Shape) == 1 && n == 1 && len(shape) == 2 {
		return a.splitVectors(&members[0], block, name, shape)
	}
	if len(shape) != 3 || shape[0] < 1 || shape[0] > maxExperts || shape[1] < n || shape[1]%n != 0 || shape[2] < 1 {
		return nil
	}

	var parts []Part
	rows := shape[1] / n
	cols := shape[2]
	first := int64(0)
	for e := range int(shape[0]) {
		for _, t := range members {
			parts = append(parts,
				Part{Name: Expand(t.Name, block, e), Shape: []int64{rows, cols}, From: name, First: first})
			first += rows * cols
		}
	}

	return parts
}

// splitVectors lists the vectors, one an expert, that lie in a tensor [experts, channels].
func (a *Arch) splitVectors(t *Tensor, block int, name string, shape []int64) []Part {
	if shape[0] < 1 || shape[0] > maxExperts || shape[1] < 1 {
		return nil
	}

	var parts []Part
	for e := range shape[0] {
		parts = append(parts,
			Part{Name: Expand(t.Name, block, int(e)), Shape: shape[1:2:2], From: name, First: e * shape[1]})
	}

	return parts
}

// fusedAt finds what lies in the tensor of a name of the fused layout, and its block; nil for any other name.
func (a *Arch) fusedAt(name string) (members []Tensor, block int) {
	for _, t := range a.Tensors {
		for _, template := range []string{t.Fused, t.Also} {
			if template == "" || !matches(template, name) {
				continue
			}

			before, after, _ := strings.Cut(template, "{l}")
			block, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(name, before), after))
			if err != nil || block < 0 || Expand(template, block, 0) != name {
				return nil, 0
			}

			if t.Fused == "" {
				return []Tensor{t}, block
			}
			return a.members(t.Fused), block
		}
	}

	return nil, 0
}

// Renumbered is what a stored tensor of the fused layout is called in another block; the name itself for one that does
// not lie in a block.
func (a *Arch) Renumbered(stored string, block int) string {
	for _, t := range a.Tensors {
		for _, template := range []string{t.Fused, t.Also} {
			if template != "" && t.PerBlock() && matches(template, stored) {
				return Expand(template, block, 0)
			}
		}
	}
	return stored
}

// FusedShape gives the shape that a tensor of the fused layout has in a model of this configuration; ok is
// false where it has none of that name.
func (c *Config) FusedShape(name string) (shape []int64, ok bool) {
	members, block := c.Arch.fusedAt(name)
	if members == nil || block >= c.Layers {
		return nil, false
	}

	first := &members[0]
	if !c.Holds(first.When, block) {
		return nil, false
	}
	for _, d := range first.Shape {
		shape = append(shape, c.Dim(d))
	}
	if first.PerExpert() {
		shape[0] *= int64(len(members))
		shape = slices.Insert(shape, 0, int64(c.Experts))
	}

	return shape, true
}

// members are the tensors of the table that lie in one fused tensor, in their order there.
func (a *Arch) members(fused string) []Tensor {
	var list []Tensor
	for _, t := range a.Tensors {
		if t.Fused == fused {
			list = append(list, t)
		}
	}
	return list
}

// Fuse is the inverse of [Arch.Split]: the fused tensors of a block, made of parameters whose shapes are
// given by the table's names. ok is false where some of them are missing or do not go together; a block without
// experts has none.
func (a *Arch) Fuse(block int, shape func(name string) ([]int64, bool)) (list []Joint, ok bool) {
	var done []string
	for i := range a.Tensors {
		fused := a.Tensors[i].Fused
		if fused == "" || slices.Contains(done, fused) {
			continue
		}

		done = append(done, fused)
		j, found, ok := a.fuse(fused, block, shape)
		if !ok {
			return nil, false
		}

		if found {
			list = append(list, j)
		}
	}

	return list, true
}

// fuse makes one fused tensor; found is false where the block has none of its parameters.
func (a *Arch) fuse(fused string, block int, shape func(name string) ([]int64, bool)) (j Joint, found, ok bool) {
	members := a.members(fused)
	j.Name = Expand(fused, block, 0)
	var first int64
	for e := range maxExperts {
		for k, t := range members {
			name := Expand(t.Name, block, e)
			have, there := shape(name)
			switch {
			case !there && k == 0 && e == 0:
				return j, false, true
			case !there && k == 0:
				j.Shape = slices.Insert(slices.Clone(j.Parts[0].Shape), 0, int64(e))
				j.Shape[1] *= int64(len(members))
				return j, true, true
			case !there, t.PerExpert() && len(have) != len(t.Shape),
				len(j.Parts) > 0 && !slices.Equal(have, j.Parts[0].Shape):
				return j, true, false
			}

			j.Parts = append(j.Parts, Part{Name: name, Shape: have, From: j.Name, First: first})

			if !t.PerExpert() {
				j.Shape = slices.Clone(have)
				return j, true, true
			}

			n := int64(1)
			for _, d := range have {
				n *= d
			}
			first += n
		}
	}

	return j, true, false
}
