// Package delta lets an adapter act on a model, forward and backward. Matrices of blocks are changed through
// lm.Delta: the base's own stay as they are, frozen, and get no gradient. What lies outside of the blocks
// (token table, head) and tensors that are trained whole are replaced in the model by changed copies, and put
// back when the adapter is detached.
//
// # What is computed
//
// For a matrix W with the factors A [r, in] and B [out, r] and x, y one row per token:
//
//	y  = x·Wᵀ + s·(x·Aᵀ)·Bᵀ                    forward; t = s·x·Aᵀ is kept for the backward pass
//	dt = dy·B,  dx += s·dt·A                   backward
//	dB = dyᵀ·t,  dA = s·dtᵀ·x
//
// B is held transposed, bt [r, out], so that both factors are wide and short: pools of shards make rows of them
// (package mos), and all narrow products are of one form. The scale s is multiplied into A once per update, not into
// every result.
//
// Variants change a part of it: dropout masks x before A (the masks come of keys, so that the backward pass
// makes them again instead of keeping them), DoRA scales the sum of both (direction.go), adapters that keep a pruned
// model's zeros need the product written out (zeros.go), and tables and heads are replaced whole (outside.go,
// replace.go).
//
// # Where it lives
//
// Parameters are F32 in host memory; the factors for the products are copies on the device that Update makes anew after
// each step. On a device away from the host, parameters and gradients may live there too ([Resident]), so that nothing
// of their size is sent in a step.
package delta
