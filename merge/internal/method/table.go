package method

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/spectral"
)

// Method is one way to merge.
type Method struct {
	// Spec says what recipes may say about it.
	Spec recipe.Method
	// Summary is one line for lists and model cards.
	Summary string
	// Global reports whether all tensors of the model form one group; nil: never.
	Global func(v Values) bool
	// Stat names the parameter with the file of an input's statistics; "" if the method has none.
	Stat string
	// New makes the program of a group: one tensor, or all of them.
	New func(g []*Tensor) (*Program, error)
}

// Find looks a method up. The error lists the known names.
func Find(name string) (*Method, error) {
	i := slices.IndexFunc(table, func(m Method) bool { return m.Spec.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("merge method %.100q is not known; there are %s", name, strings.Join(Names(), ", "))
	}
	return &table[i], nil
}

// Names lists the methods.
func Names() []string {
	names := make([]string, len(table))
	for i, m := range table {
		names[i] = m.Spec.Name
	}
	return names
}

// Specs is the table as recipes are checked against it.
func Specs() []recipe.Method {
	specs := make([]recipe.Method, len(table))
	for i, m := range table {
		specs[i] = m.Spec
	}
	return specs
}

// Parameters of several methods.
var (
	weight = recipe.Param{Name: "weight", Type: recipe.Number, Scope: recipe.PerModel, Required: true}
	// accepted, without effect
	int8Mask = recipe.Param{Name: "int8_mask", Type: recipe.Bool, Default: recipe.BoolValue(false)}
	scope    = recipe.Param{Name: "scope", Type: recipe.Text, Default: recipe.TextValue("model")}
	density  = perModel("density", 1)
)

func number(name string, v float64) recipe.Param {
	return recipe.Param{Name: name, Type: recipe.Number, Default: recipe.NumberValue(v)}
}

func perModel(name string, v float64) recipe.Param {
	return recipe.Param{Name: name, Type: recipe.Number, Scope: recipe.PerModel, Default: recipe.NumberValue(v)}
}

func integer(name string, v int) recipe.Param {
	return recipe.Param{Name: name, Type: recipe.Integer, Default: recipe.IntegerValue(v)}
}

func truth(name string, v bool) recipe.Param {
	return recipe.Param{Name: name, Type: recipe.Bool, Default: recipe.BoolValue(v)}
}

// arithmeticSpec is the specification of a method of task arithmetic's family.
func arithmeticSpec(name string, normalize, rescale bool, more ...recipe.Param) recipe.Method {
	return recipe.Method{Name: name, Base: recipe.BaseRequired, Params: append([]recipe.Param{
		weight, number("lambda", 1), truth("normalize", normalize), truth("rescale", rescale), int8Mask,
	}, more...)}
}

// sparse are the parameters of methods that sparsify.
func sparse(more ...recipe.Param) []recipe.Param {
	return append([]recipe.Param{density, {Name: "rescale_norm", Type: recipe.Text}}, more...)
}

// thresholds are those of methods whose thresholds may run over the whole model.
func thresholds(more ...recipe.Param) []recipe.Param {
	return sparse(append([]recipe.Param{{Name: "scope", Type: recipe.Text, Default: recipe.TextValue("tensor")}},
		more...)...)
}

// modelWide reports whether the parameter scope asks for one group.
func modelWide(v Values) bool { return v.Text("scope") == "model" }

// table is every method.
var table = []Method{
	{
		Summary: "weighted mean of the models",
		Spec: recipe.Method{Name: "linear", MinInputs: 1, Params: []recipe.Param{
			{Name: "weight", Type: recipe.Number, Scope: recipe.PerInput, Required: true}, truth("normalize", true),
		}},
		New: each(linear),
	},
	{
		Summary: "spherical interpolation between a base and another model",
		Spec: recipe.Method{
			Name: "slerp", Base: recipe.BaseRequired, MinInputs: 2, MaxInputs: 2,
			Params: []recipe.Param{
				{Name: "t", Type: recipe.Number, Required: true},
			},
		},
		New: each(slerp),
	},
	{
		Summary: "spherical interpolation of two models, or of their differences to a base",
		Spec: recipe.Method{
			Name: "nuslerp", Base: recipe.BaseOptional, MinModels: 2, MaxModels: 2,
			Params: []recipe.Param{
				weight, truth("nuslerp_flatten", true), truth("nuslerp_row_wise", false),
			},
		},
		New: each(nuslerp),
	},
	{
		Summary: "spherical mean of several models, by one step along tangents",
		Spec: recipe.Method{Name: "multislerp", Base: recipe.BaseOptional, MinInputs: 1, Params: []recipe.Param{
			weight, truth("normalize_weights", true), number("eps", 1e-8),
		}},
		New: each(multislerp),
	},
	{
		Summary: "weighted sum of differences to a base",
		Spec:    arithmeticSpec("task_arithmetic", false, false),
		New:     arithmetic{}.program,
	},
	{
		Summary: "sum of the largest differences, with an election of signs",
		Spec:    arithmeticSpec("ties", true, false, thresholds()...),
		Global:  modelWide, New: arithmetic{consensus: true, sparsify: largest}.program,
	},
	{
		Summary: "sum of randomly thinned differences, with an election of signs",
		Spec:    arithmeticSpec("dare_ties", false, true, sparse()...),
		New:     arithmetic{consensus: true, sparsify: random}.program,
	},
	{
		Summary: "sum of randomly thinned differences",
		Spec:    arithmeticSpec("dare_linear", false, true, sparse()...),
		New:     arithmetic{sparsify: random}.program,
	},
	{
		Summary: "sum of differences without the largest and the small ones",
		Spec:    arithmeticSpec("breadcrumbs", false, false, thresholds(perModel("gamma", 0.01))...),
		Global:  modelWide, New: arithmetic{sparsify: inner}.program,
	},
	{
		Summary: "sum of differences without the largest and the small ones, with an election of signs",
		Spec:    arithmeticSpec("breadcrumbs_ties", false, false, thresholds(perModel("gamma", 0.01))...),
		Global:  modelWide, New: arithmetic{consensus: true, sparsify: inner}.program,
	},
	{
		Summary: "sum of differences thinned by their rank in the row, with an election of signs",
		Spec:    arithmeticSpec("della", true, true, sparse(perModel("epsilon", 0.15))...),
		New:     arithmetic{consensus: true, sparsify: graduated}.program,
	},
	{
		Summary: "sum of differences thinned by their rank in the row",
		Spec:    arithmeticSpec("della_linear", false, true, sparse(perModel("epsilon", 0.15))...),
		New:     arithmetic{sparsify: graduated}.program,
	},
	{
		Summary: "point between the base and the mean of models, by the angle between their differences",
		Spec: recipe.Method{
			Name: "model_stock", Base: recipe.BaseRequired, MinModels: 2,
			Params: []recipe.Param{truth("filter_wise", false)},
		},
		New: each(modelStock),
	},
	{
		Summary: "differences selected by variance, weighted by their energy, with an election of signs",
		Spec: recipe.Method{
			Name: "sce", Base: recipe.BaseRequired, MinModels: 1,
			Params: []recipe.Param{number("select_topk", 1), int8Mask},
		},
		New: each(sce),
	},
	{
		Summary: "Riemannian mean of the models' directions",
		Spec: recipe.Method{
			Name: "karcher", MinInputs: 2,
			Params: []recipe.Param{integer("max_iter", 10), number("tol", 1e-5)},
		},
		New: each(karcher),
	},
	{
		Summary: "the other model's elements where they matter most",
		Spec:    recipe.Method{Name: "arcee_fusion", Base: recipe.BaseRequired, MinInputs: 2, MaxInputs: 2},
		New:     each(fusion),
	},
	{
		Summary: "the other model's elements where they are near the base's",
		Spec: recipe.Method{
			Name: "nearswap", Base: recipe.BaseRequired, MinInputs: 2, MaxInputs: 2,
			Params: []recipe.Param{
				{Name: "t", Type: recipe.Number, Required: true},
			},
		},
		New: each(nearswap),
	},
	{
		Summary: "one model's tensors as they are, or scaled",
		Spec: recipe.Method{Name: "passthrough", MinInputs: 1, MaxInputs: 1, Params: []recipe.Param{
			{Name: "scale", Type: recipe.Number, Scope: recipe.PerInput},
		}},
		New: each(passthrough),
	},
	{
		Summary: "sum of what one model changed and mean of what several did",
		Spec: recipe.Method{
			Name: "ram", Base: recipe.BaseRequired, MinModels: 1,
			Params: []recipe.Param{number("epsilon", 1e-5)},
		},
		New: each(ram(false)),
	},
	{
		Summary: "the same, with what one model changed made larger",
		Spec: recipe.Method{Name: "ramplus_tl", Base: recipe.BaseRequired, MinModels: 1, Params: []recipe.Param{
			number("epsilon", 1e-5), number("r", 0.1), number("alpha", 0.2),
		}},
		New: each(ram(true)),
	},
	{
		Summary: "sum of the differences that enough models want (TALL masks)",
		Spec: recipe.Method{Name: "consensus", Base: recipe.BaseRequired, MinModels: 1, Params: []recipe.Param{
			perModel("lambda", 0.4), integer("k", 2), number("alpha", 0.5), {Name: "task", Type: recipe.Integer},
		}},
		New: each(consensus),
	},
	{
		Summary: "one elected difference, masked and scaled for one model or for all",
		Spec: recipe.Method{Name: "emr", Base: recipe.BaseRequired, MinModels: 1, Params: []recipe.Param{
			{Name: "task", Type: recipe.Integer}, scope,
		}},
		Global: func(v Values) bool { return modelWide(v) && v.Has("task") }, New: emr,
	},
	{
		Summary: "the largest difference of each element",
		Spec: recipe.Method{
			Name: "magmax", Base: recipe.BaseRequired, MinModels: 1,
			Params: []recipe.Param{number("scale", 0.5)},
		},
		New: each(magMax),
	},
	{
		Summary: "differences weighed by parameter competition",
		Spec: recipe.Method{Name: "pcb", Base: recipe.BaseRequired, MinModels: 1, Params: []recipe.Param{
			number("r", 0.1), perModel("lambda", 1.2), scope,
		}},
		Global: modelWide, New: pcb,
	},
	{
		Summary: "signs of differences times their mean magnitude",
		Spec: recipe.Method{
			Name: "bitdelta", Base: recipe.BaseRequired, MinModels: 1,
			Params: []recipe.Param{perModel("weight", 1)},
		},
		New: each(bitDelta),
	},
	{
		Summary: "mean weighted by Fisher information",
		Spec: recipe.Method{Name: "fisher", MinInputs: 1, Params: []recipe.Param{
			{Name: "weight", Type: recipe.Number, Scope: recipe.PerInput, Default: recipe.NumberValue(1)},
			{Name: "fisher", Type: recipe.Text, Scope: recipe.PerInput, Required: true},
		}},
		Stat: "fisher", New: each(fisher),
	},
	{
		Summary: "matrices whose outputs are nearest to every model's, by Gram matrices of inputs",
		Spec: recipe.Method{Name: "regmean", MinInputs: 1, Params: []recipe.Param{
			{Name: "gram", Type: recipe.Text, Scope: recipe.PerInput, Required: true},
			number("alpha", 0.95),
			truth("transposed", false),
		}},
		Stat: "gram", New: each(regMean),
	},
	{
		Summary: "leading singular directions of differences, made orthogonal",
		Spec: recipe.Method{
			Name: "tsv_m", Base: recipe.BaseRequired, MinModels: 1,
			Params: []recipe.Param{number("alpha", 1)},
		},
		New: each(spectrum(spectral.Parts.TaskSingular).program),
	},
	{
		Summary: "sum of differences with equal singular values",
		Spec: recipe.Method{
			Name: "iso_c", Base: recipe.BaseRequired, MinModels: 1,
			Params: []recipe.Param{number("alpha", 1)},
		},
		New: each(spectrum(spectral.Parts.Isotropic).program),
	},
	{
		Summary: "sum of differences, moved until none disturbs another where that has its rows",
		Spec: recipe.Method{Name: "wudi", Base: recipe.BaseRequired, MinModels: 1, Params: []recipe.Param{
			number("alpha", 1), integer("iterations", 300), number("rate", 1e-5),
		}},
		New: each(wudi(wudiSteps)),
	},
	{
		Summary: "difference that disturbs no model's where that has its rows, by one solve",
		Spec: recipe.Method{Name: "wudi_closed", Base: recipe.BaseRequired, MinModels: 1, Params: []recipe.Param{
			number("alpha", 1), number("damping", 0.1),
		}},
		New: each(wudi(wudiClosed)),
	},
	{
		Summary: "one model after the other, each without what would disturb those before it",
		Spec: recipe.Method{Name: "opcm", Base: recipe.BaseRequired, MinModels: 1, Params: []recipe.Param{
			number("alpha", 0.5), {Name: "lambda", Type: recipe.Number}, integer("merged", 1),
		}},
		New: each(continual),
	},
}
