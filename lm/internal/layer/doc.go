// Package layer computes the blocks of a model and their gradients on a device. Every step is a pair of functions, one
// forward and one backward, in the same file.
//
// A [Pass] runs over the rows of some sequences. What a block computes on the way lies in a [Tape]: a plain run
// reuses the memory of everything that the next step does not need, a recorded one ([Pass.Record]) keeps what
// [Pass.Backward] needs, and [Pass.Replay] computes that again from the block's input alone, without the last
// product of each branch that no gradient depends on.
//
// # Backward
//
// A backward function gets dy, the gradient of the loss with respect to what its forward function computed, and gives
// dx, that with respect to what went in; gradients of parameters go to [Pass].Grads, where somebody asked for them. An
// absent matrix (the zero kernels.Mat) for dx says that nobody below needs it, and saves the product. Where several
// paths meet at one input (residual stream, gate and up, parallel branches), the first writes and the others
// accumulate: the order is fixed, so that gradients are the same to the last bit whether a block was recorded or
// replayed.
//
// For a decoder layer x₁ = x + attention(norm(x)), x₂ = x₁ + mlp(norm(x₁)) the residual stream's gradient d stands in
// one matrix and is changed in place: d += norm'(mlp'(d)), d += norm'(attention'(d)).
//
// The values of weights are the caller's: they must be resident while a pass runs.
package layer
