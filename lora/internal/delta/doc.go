// Package delta lets an adapter act on a model, forward and backward. Matrices of blocks are changed through
// lm.Delta: the base's own stay as they are, frozen, and get no gradient. What lies outside of the blocks
// (token table, head) and tensors that are trained whole are replaced in the model by changed copies, and put
// back when the adapter is detached.
package delta
