package recipe

import "slices"

// fuse lays the experts of the output out as the base has them, or else the first model: all of a block in two tensors if it keeps them so.
func (x *resolver) fuse() {
	lead := max(x.plan.Base, 0)
	differ := slices.ContainsFunc(x.plan.inputs, func(in *Input) bool { return in.Fused != x.plan.inputs[lead].Fused })
	table := x.plan.layouts[lead].table
	if differ && table != nil {
		x.warn("models keep the experts of a block in one tensor or in several; the output does as %s", x.plan.Models[lead])
	}
	if !x.plan.inputs[lead].Fused || table == nil {
		return
	}
	byName := map[string]*Tensor{}
	for i := range x.plan.Tensors {
		byName[x.plan.Tensors[i].Name] = &x.plan.Tensors[i]
	}
	shape := func(name string) ([]int64, bool) {
		t := byName[name]
		if t == nil {
			return nil, false
		}
		return t.Shape, true
	}
	for l := range x.plan.Blocks {
		list, ok := table.Fuse(l, shape)
		for _, j := range list {
			for _, p := range j.Parts[1:] {
				ok = ok && byName[p.Name].DType == byName[j.Parts[0].Name].DType
			}
		}
		if !ok {
			x.warn("experts of layer %d differ in type or shape, or some are missing: each is written as tensors of its own", l)
			x.plan.Joints = nil
			return
		}
		x.plan.Joints = append(x.plan.Joints, list...)
	}
}
