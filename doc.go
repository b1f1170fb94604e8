// Package compress is the root of a toolkit that prunes, merges, adapts, edits and scores language-model
// checkpoints, on folders of safetensors in the Hugging Face layout. It needs no Python, no cgo and no network.
//
// # Five calls
//
// Each takes a context, which ends the work between blocks or steps, and Options, whose zero value is useful
// and whose Validate returns every fault at once; each returns a report that is a plain struct with JSON names.
//
//   - [github.com/modelcompress/compress/prune.Model] removes weights by a metric and updates those that stay.
//   - [github.com/modelcompress/compress/gp.Search] evolves formulas of metrics; package prune/fitness judges
//     them on models.
//   - [github.com/modelcompress/compress/merge.Models] carries out a recipe: static methods, mixtures, routed experts.
//   - [github.com/modelcompress/compress/lora.Train] trains adapters, Mixture of Shards among them; the package
//     also folds and combines them.
//   - [github.com/modelcompress/compress/editeval.Run] edits facts by a plan and measures what that does to
//     everything else.
//
// # What they stand on
//
//   - safetensors reads, checks and stream-writes .safetensors files and sharded folders.
//   - lm loads a checkpoint on a device and runs it forward and backward; lm/tokenizer and lm/corpus make windows
//     of tokens from text.
//   - editeval/task scores a model on benchmark tasks, editeval/edit writes facts into it.
//   - kernels names the operations that devices offer; kernels/device opens a CPU or a graphics processor by name.
//
// The command line in cmd/compress is a thin layer over these packages: everything that it does is a library
// call. The programs in examples are short beginnings for pipelines. This package itself only holds [Version].
package compress
