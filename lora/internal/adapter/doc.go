// Package adapter says what an adapter is: which modules of a base model it changes, by what low-rank factors,
// which whole tensors it replaces, and how all that is made of trained parameters. Other packages read and
// write the files, train, attach, fold and combine.
//
// All numbers of an adapter are F32 in host memory. A factor A is [rank, in]; a factor B is [out, rank] where
// it is stored and handed out, as in the files of the PEFT library, and [rank, out] where it is assembled for
// computing. The change of a weight W [out, in] is Scale·B·A.
package adapter
