// Package recipe reads merge recipes, the YAML that mergekit made the field's own.
//
// Parse gives one Document per YAML document, or every fault of the file at once; nothing that a recipe says is
// ignored. Order puts documents that use each other's results in order. Which tensors a document makes of which, and
// with which numbers, is package plan's.
//
// # Settings
//
// A parameter is a scalar, a gradient or a list of rules:
//
//	weight: 0.5
//	weight: [0, 0.5, 1]                       # over the layers of the slice
//	weight: [{filter: mlp, value: [0, 1]}, {value: 0.5}]
//
// The first rule whose filter is part of the tensor's name counts; "*" and no filter match everything; without a
// match, or with an empty list, the setting is as good as absent.
//
// # Differences from mergekit
//
// Unknown keys and unknown parameters are errors, and so is everything that could only fail later.
package recipe
