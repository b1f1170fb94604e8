// Package plan resolves recipes: which output tensor is made of which input tensors, and with which numbers.
//
// Resolve takes a document, what its models hold, and the table of methods, and gives a Plan: the output's tensors with
// their sources, and the value of each parameter at each tensor, after filters, gradients and precedence.
//
// A gradient of m values is interpolated at t·(m−1), where t = i/(L−1) for the i-th of a slice's L layers, 1
// for a slice of one layer, and 0 for tensors outside of layers. Truth values and words are not interpolated:
// element ⌊t·(m−1)⌋ counts.
//
// A value is looked for in the slice's source (for parameters that a model has of its own), the slice, the
// module, the recipe, and then the method's table. Parameters of a model see the tensor's name in that model,
// the others the name in the output, which differ where slices move layers.
//
// # Differences from mergekit
//
// Without base_model the first model listed gives configuration and tokenizer. The final tensors of a frankenmerge come
// from the last slice's sources, however many they are. Lists in config.json that have an entry per layer are cut and
// extended with the layers, and a written head unties the configuration.
package plan
