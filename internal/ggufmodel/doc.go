// Package ggufmodel reads a GGUF file, whole or split, as the Hugging Face checkpoint that it was made of: names,
// shapes and order of tensors, config.json, and the files of the tokenizer.
//
// # Architectures
//
// How llama.cpp's files spell an architecture is data: the section "gguf" of its table in lm/arch. This package knows
// the few ways in which tensors are rearranged: experts stacked in one tensor, rows of queries and keys in pairs,
// fused projections in another order, gate and up apart, together or by turns, matrices transposed, norms with 1 added.
//
// # Exactness
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
