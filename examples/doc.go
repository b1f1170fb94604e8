// Package examples holds five short programs, one for each entry point of the library, to be copied: they
// import nothing that a program outside of this module could not, take the folder of a model as their first argument
// and their data from flags, stop at an interrupt, and print what the report says.
//
//	examples/prune    prune.Model: half of the weights of a model go, and what that costs
//	examples/search   gp.Search: a formula that says which weights to prune
//	examples/merge    merge.Models: several checkpoints become one, by a recipe
//	examples/adapt    lora.Train: an adapter for a model, saved and tried
//	examples/editing  editeval.Run: facts are written into a model, and what it loses elsewhere
//
// With a model of your own, in the Hugging Face layout (config.json, *.safetensors, tokenizer.json):
//
//	go run ./examples/prune ./my-model -calib calib.txt -text test.txt -out pruned
//	go run ./examples/merge ./my-model ./tuned-on-code ./tuned-on-chats -out merged
//
// Without arguments, from the root of the repository, each runs on the project's small model in a few seconds.
package examples
