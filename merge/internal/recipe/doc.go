// Package recipe reads merge recipes, the YAML that mergekit made the field's own, and resolves them: which output
// tensor is made of which input tensors, and with which numbers.
//
// Parse gives one Document per YAML document, or every fault of the file at once; nothing that a recipe says is
// ignored. Order puts documents that use each other's results in order. Resolve takes a document, what its
// models hold, and the table of methods, and gives a Plan: the output's tensors with their sources, and the
// value of each parameter at each tensor, after filters, gradients and precedence.
//
// # Settings
//
// A parameter is a scalar, a gradient or a list of rules:
//
//	weight: 0.5
//	weight: [0, 0.5, 1]                       # over the layers of the slice
//	weight: [{filter: mlp, value: [0, 1]}, {value: 0.5}]
//
// A gradient of m values is interpolated at t·(m−1), where t = i/(L−1) for the i-th of a slice's L layers, 1
// for a slice of one layer, and 0 for tensors outside of layers. Truth values and words are not interpolated:
// element ⌊t·(m−1)⌋ counts. The first rule whose filter is part of the tensor's name counts; "*" and no filter
// match everything; without a match, or with an empty list, the setting is as good as absent.
//
// A value is looked for in the slice's source (for parameters that a model has of its own), the slice, the
// module, the recipe, and then the method's table. Parameters of a model see the tensor's name in that model,
// the others the name in the output, which differ where slices move layers.
//
// # Differences from mergekit
//
// Unknown keys and unknown parameters are errors, and so is everything that could only fail later. Without base_model
// the first model listed gives configuration and tokenizer. The final tensors of a frankenmerge come from the last
// slice's sources, however many they are. Lists in config.json that have an entry per layer are cut and extended with
// the layers, and a written head unties the configuration.
package recipe
