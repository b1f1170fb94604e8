// Package lm is the language-model engine: it opens a checkpoint folder in the Hugging Face layout, runs it
// (forward pass, per-token losses, generation with a key/value cache) on a [kernels.Device], lets others look
// into it (hooks) and change it (parameters, adapters), and saves it again.
//
//	m, err := lm.Load(ctx, dir, dev, lm.Options{})                // dev of kernels/device.Open
//	r, err := m.Forward(ctx, [][]int32{ids}, lm.ForwardOptions{}) // r.Loss, in nats a token; m.Generate continues ids
//
// For a folder and a text there is a call each: [Perplexity] measures, [Generate] continues.
//
// # Weights
//
// Weights keep the type they are stored in (F32, BF16, F16; F64 is narrowed to F32). On a host device they are
// views of the mapped files; the first change of a tensor makes an owned copy ([Model.MutableParam]). With
// [Options].Stream the weights of a block are given back once the block has run, so that memory holds one block
// and the activations.
//
// # Architectures
//
// What a model computes follows from its configuration and the tables of package arch; there is one code path
// for all of them. A tensor that is missing, unexpected or of another shape than the configuration says is an
// error.
//
// # Running
//
// Several sequences run as one matrix of rows, one after another, without padding ([Hidden]). [Model.Forward]
// runs the whole model; [Model.Embed], [Model.RunBlock], [Model.Loss] and [Model.Logits] are its pieces.
// [Model.Backward] adds gradients, of what is asked for and delivered as they come; [Model.BackwardBlock] stays
// inside one block. Results do not depend on the number of threads. A Model may run from several goroutines at
// once as long as none changes a parameter, attaches a [Delta] or saves.
package lm
