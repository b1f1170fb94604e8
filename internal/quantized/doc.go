// Package quantized decodes weights that are stored in few bits to float32, equal to the bits of the libraries that
// wrote them.
//
// There are two layers. A [Block] describes a format that is a sequence of blocks with their scales inside, as GGUF's
// types are; each is a row of data and the function that takes one block apart. A [Format] describes a matrix that is
// stored as several tensors, as in the folders of compressed-tensors, GPTQ, AWQ, bitsandbytes and FP8 checkpoints. Both
// give a [Matrix], which is decoded row by row as it is needed.
//
// # Exactness
//
// The value of an element is defined by the reference implementation of its format down to the last bit: where that
// computes in float16 or bfloat16, products are rounded to it. No multiplication is fused with an addition, on any
// processor.
//
// # Memory
//
// Nothing is decoded before it is asked for, and nothing but the result is allocated. Tensors may lie in mapped files:
// callers decode within mmapsafe.Do or in its groups.
package quantized
