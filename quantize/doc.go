// Package quantize stores the weights of a language model in few bits, in the formats that other programs run.
//
// [Model] walks over the blocks of a model once, in order, as package prune does: it measures what flows into a block's
// matrices if the method asks for that, rounds the matrices to the numbers of the scheme, runs the rounded block to get
// the inputs of the next one, and writes codes and scales as they are finished. Embeddings, the output head, norms,
// biases and the routers of mixtures stay as they are.
//
// # Use
//
//	scheme, err := quantize.SchemeByName("w4a16")
//	o := quantize.Options{Scheme: scheme, Method: quantize.GPTQ, Out: "small"}
//	report, err := quantize.Model(ctx, model, calib, o)
//
// # Schemes
//
// A scheme names the numbers and the layout of the files: compressed-tensors' folders, which vLLM, SGLang and
// transformers read, or those of GPTQ. "w4a16" is short for weights of 4 bits and activations of 16.
//
//	w4a16, w4a16_asym   whole numbers of 4 bits, a scale (and a zero point) for 128 inputs of an output
//	w8a16, w8a8         of 8 bits, a scale for each output; with a8, runtimes round activations too, token by token
//	fp8_dynamic         floats E4M3, a scale for each output
//	fp8_block           the same, a scale for 128 outputs by 128 inputs
//	nvfp4a16, mxfp4a16  floats E2M1, a scale E4M3 for 16 inputs and one for the matrix; a power of two for 32
//	gptq                w4a16 in the layout of GPTQ
//
// # Methods
//
// [RTN] rounds every weight to the nearest number. [GPTQ] (Frantar et al., 2022, arXiv:2210.17323) goes through the
// inputs one by one and lets those that are still to come make up for the errors, by the Hessian of the calibration
// data; it begins with the inputs that weigh most. [AWQ] (Lin et al., 2023, arXiv:2306.00978) rounds to the nearest
// number after it has multiplied the inputs of matrices by factors, which norms and other matrices before them are
// divided by, and clips what scales are made of; [AWQGPTQ] does both. Options.Smooth chooses such factors by
// SmoothQuant's formula, for schemes whose activations are rounded too. [HQQ] (Badri and Shaji, 2023) moves zero points
// and scales without data, for schemes that have zero points. What an expert of a mixture has no tokens for falls back
// to RTN, and is counted.
//
// # Memory and interruption
//
// One block and the activations of all calibration tokens are held, and with [GPTQ] the Hessians of a block, 8 bytes
// times the square of a width; without calibration one matrix at a time. Finished matrices go to the disk block by
// block. After an interruption the same call with Resume gives the same bytes; the result does not depend on the number
// of threads.
package quantize
