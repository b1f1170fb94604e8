// Package quantized decodes weights that are stored in few bits to float32, equal to the bits of the libraries that
// wrote them, and encodes them, to the bytes that those libraries would write.
//
// There are two layers. A [Block] describes a format that is a sequence of blocks with their scales inside, as GGUF's
// types are; each is a row of data, the function that takes one block apart, and the one that makes blocks. A [Format]
// describes a matrix that is stored as several tensors, as in the folders of compressed-tensors, GPTQ, AWQ,
// bitsandbytes and FP8 checkpoints. Both give a [Matrix], which is decoded row by row as it is needed.
//
// # Exactness
//
// The value of an element is defined by the reference implementation of its format down to the last bit: where that
// computes in float16 or bfloat16, products are rounded to it. No multiplication is fused with an addition, on any
// processor.
//
// Encoders give the bytes of llama.cpp's ggml_quantize_chunk as its build files compile it for x86-64: sums in the
// order of the elements, in float32, nothing fused. A build that fuses, for ARM or with -march=native, gives
// other bytes in some blocks. testdata/encode.py makes what they are tested against.
//
// # Memory
//
// Nothing is decoded before it is asked for, and nothing but the result is allocated. Tensors may lie in mapped files:
// callers decode within mmapsafe.Do or in its groups.
package quantized
