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
//   - [github.com/modelcompress/compress/merge.Models] carries out a recipe; package merge/mediate adds experts
//     that are routed by prompt, and merge/search finds the numbers that a recipe leaves open.
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
//   - kernels names the operations that devices offer; kernels/device opens a CPU or a GPU by name.
//
// # Words
//
// Terms of the field have one meaning here:
//
//   - decoder layer: attention and MLP with their norms, one of num_hidden_layers; functions and report keys also
//     say block.
//   - matrix: one linear map [out, in] of a decoder layer, such as q_proj. It is never called a layer.
//   - column block: consecutive columns of a matrix that are pruned or updated together (SparseGPT: 128).
//   - sequence: consecutive tokens that the model sees at once, from position 0; a window is one that is cut from
//     a longer text.
//   - activations: the values that enter a matrix, [tokens, in]; activation statistics are their sums over tokens.
//   - metric: the formula that scores a matrix's weights for pruning; the lowest scores are pruned.
//   - mask: a byte a weight, 0 where the weight is pruned. A pattern N:M prunes N of every M consecutive inputs.
//   - sparsity: the fraction of weights that are zero; density is the rest.
//   - expert: one MLP of a mixture's decoder layer, which a router sends some tokens to.
//   - task model: a fine-tuned model that is merged with others, which Mediator keeps apart where they conflict.
//   - backbone: what the task models of a Mediator checkpoint share.
//   - delta: the difference of a fine-tuned model's weights to its base's; a sparse delta holds some of its elements.
//   - adapter: the trained change of some matrices, such as LoRA's factors B·A.
//   - edit: one fact that is written into the weights, with its subject, prompt and new answer.
//   - top-1: the most probable token.
//   - device: the CPU, or one GPU; the host is the CPU's memory.
//   - backward pass: the gradients of a loss, from the last decoder layer to the first.
//
// The command line in cmd/compress is a thin layer over these packages: everything that it does is a library
// call. The programs in examples are short beginnings for pipelines. This package itself only holds [Version].
package compress
