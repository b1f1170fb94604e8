// Package examples holds five short programs, one for each entry point of the library, to be copied: they
// import nothing that a program outside of this module could not, take their paths from flags, stop at an
// interrupt, and print what the report says.
//
//	examples/prune    prune.Model: half of the weights of a model go, and what that costs
//	examples/search   gp.Search: a formula that says which weights to prune
//	examples/merge    merge.Models: several checkpoints become one, by a recipe
//	examples/adapt    lora.Train: an adapter for a model, saved and tried
//	examples/editing  editeval.Run: facts are written into a model, and what it loses elsewhere
//
// From the root of the repository:
//
//	go run ./examples/prune
//	go run ./examples/merge -recipe my-recipe.yaml -out merged
package examples
