// Package compress is the root of a toolkit that makes language-model checkpoints smaller, combines them, adapts them
// and checks what was lost, on files in the Hugging Face layout. It needs no Python, no cgo and no network.
//
// The work is done by packages below this one:
//
//   - safetensors reads, checks and stream-writes .safetensors files and sharded folders;
//   - lm loads a checkpoint on a device and runs it: loss, logits, generation, hooks; lm/tokenizer and lm/corpus make
//     token windows from text;
//   - prune removes weights by magnitude or by Wanda's score and says what it cost;
//   - kernels names the operations that devices offer; kernels/ref, kernels/cpu and kernels/device implement and choose
//     them.
//
// The command line lives in cmd/compress and is a thin layer over these packages: everything it does is a library call.
// This package itself only holds [Version].
package compress
