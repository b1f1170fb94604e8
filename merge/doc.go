// Package merge combines checkpoints into one by mergekit's recipes: any of some thirty methods, with filters,
// gradients, slices and differing vocabularies, streamed through a bounded memory.
//
//	r, err := merge.Read("recipe.yaml")
//	report, err := merge.Models(ctx, r, "merged", merge.Options{})
//
// or, without a file,
//
//	r, err := merge.New(merge.Spec{Method: "ties", Base: "base", Models: []merge.Input{
//		{Model: "a", Settings: merge.Settings{"weight": 1, "density": 0.5}}, …
//	}})
//
// [NewMixture] and [Mix] do the same for a mixture of experts.
//
// Tensors are paired by name; no architecture needs to be known. Inputs are read through file mappings block by
// block, computed on in float32 with sums in float64, and rounded once to the output's type. How many elements
// are kept by a threshold is exact; which of equal magnitudes, and other random choices, hash (seed, tensor,
// model, index), see Options.Ties, so that the output's bytes depend on nothing but the inputs, the recipe and
// the seed: not on the number of threads, nor on an interruption.
//
// Package mediate makes recipes by mediate, which keep experts beside a dense model, and package search finds the
// numbers that a recipe leaves open.
//
// An output appears under its name only when it is complete and has been read back. Values that are not finite,
// tensors that are missing or do not fit, unknown keys and parameters without meaning are errors that name the
// tensor or the line.
package merge
