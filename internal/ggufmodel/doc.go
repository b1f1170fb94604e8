// Package ggufmodel reads a GGUF file, whole or split, as the Hugging Face checkpoint that it was made of ([New]):
// names, shapes and order of tensors, config.json, and the files of the tokenizer. And it plans the file that
// llama.cpp's converter makes of a checkpoint ([NewExport]), and writes it ([Export.Write]).
//
// # Architectures
//
// How llama.cpp's files spell an architecture is data: the section "gguf" of its table in lm/arch. This package knows
// the few ways in which tensors are rearranged: experts stacked in one tensor, rows of queries and keys in pairs,
// fused projections in another order, gate and up apart, together or by turns, matrices transposed, norms with 1 added.
//
// The same tables are read in both directions. A tensor of a file to be written is a [Target]: it says which tensors of
// the checkpoint it is made of, and gives any of its rows from theirs, so that they may come from a file or from a
// memory where they were changed, and no more is held than the rows that are written.
//
// # Exactness
//
// A planned file is read as a model before it is written: where that would compute something else than the checkpoint
// says, the plan is an error. Tensors, metadata and their order are those of the converter.
//
// What the conversion keeps is given back bit for bit. What it drops is what a configuration without it means, where
// llama.cpp computes the same. Factors of rotations are only known by their effect in the file ("rope_freqs.weight");
// parameters that give them are found, or the file is refused.
//
// # Strangers' files
//
// Sizes in metadata are compared with those of the tensors before anything is made of them. Every error is one line
// that names the file, and the key or the tensor.
package ggufmodel
