package input

import (
	"fmt"

	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Lay lays the experts of a merge's output out as the base has them, or else the first model: all of a block in
// two tensors if it keeps them so, unless they have to stay apart. That is noted in p.Joints, and in p.Warnings
// what is worth telling.
func Lay(p *plan.Plan, models map[recipe.Ref]*Model, apart bool) {
	lead := models[p.Models[max(p.Base, 0)]]

	if apart {
		for _, m := range models {
			if m.fused() {
				p.Warnings = append(p.Warnings, "models keep the experts of a block in one tensor; here each is a "+
					"tensor of its own, which is routed by itself")
				break
			}
		}

		return
	}

	for _, m := range models {
		if m.fused() != lead.fused() {
			p.Warnings = append(p.Warnings, fmt.Sprintf("models keep the experts of a block in one tensor or in "+
				"several; the output does as %s", lead.Name))
			break
		}
	}

	if !lead.fused() {
		return
	}

	byName := map[string]*plan.Tensor{}
	for i := range p.Tensors {
		byName[p.Tensors[i].Name] = &p.Tensors[i]
	}

	shape := func(name string) ([]int64, bool) {
		t := byName[name]
		if t == nil {
			return nil, false
		}
		return t.Shape, true
	}

	for l := range p.Blocks {
		list, ok := lead.table.Fuse(l, shape)
		for _, j := range list {
			for _, part := range j.Parts[1:] {
				ok = ok && byName[part.Name].DType == byName[j.Parts[0].Name].DType
			}
		}
		if !ok {
			p.Warnings = append(p.Warnings, fmt.Sprintf("experts of layer %d differ in type or shape, or some are "+
				"missing: each is written as tensors of its own", l))
			p.Joints = nil
			return
		}

		p.Joints = append(p.Joints, list...)
	}
}
