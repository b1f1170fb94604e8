// Package gguf opens, checks, memory-maps and stream-writes files of the GGUF format, whole and split ones, on Unix
// systems, and decodes their quantised tensors.
//
// # Use
//
//	m, err := gguf.OpenModel("model.Q4_K_M.gguf") // any part of a split one; Open for one file alone
//	defer m.Close()
//	arch, _ := m.Metadata().Get("general.architecture")
//	for _, name := range m.Names() {
//		info, _ := m.Info(name)
//		row := make([]float32, info.Cols())
//		err = m.View(name, func(data []byte) error {
//			return info.Type.Decode(row, data[:info.RowSize()])
//		})
//	}
//
// # The format
//
// A file is the four bytes "GGUF", a version (2 and 3 are alike; 1 is refused), the number of tensors, the number of
// key-value pairs, the pairs, a description of each tensor, zeros up to a multiple of the alignment (the key
// general.alignment, 32 without it), and the tensors, each at an offset that is a multiple of it. Everything is
// little-endian; files for big-endian machines, which version 3 allows, are refused.
//
// The format lists the dimensions of a tensor fastest first. [Info.Shape] has them outermost first, as safetensors and
// PyTorch do: a matrix is [rows, columns], and a row is contiguous. A row of a quantised type is a whole number of
// blocks, each of which has its own scales; see [Type].
//
// # Reading
//
// Open checks everything that the header claims against the size of the file, before anything is allocated for it:
// counts, lengths of strings and arrays, dimensions, products of dimensions, offsets. What the format forbids is
// refused, each rule with an error of its own ([ErrOverlap], [ErrTruncated], …; errors.Is finds them, errors.As with
// *[Error] finds file, tensor or key, and offset). Arrays of arrays are refused, as llama.cpp does, since nothing uses
// them; keys and tensors given twice are refused too.
//
// Bytes gives a view into the mapping without a copy, ReadAt copies through pread, and Release gives the memory of a
// view back, so that a file larger than memory can be streamed through either. What the package safetensors says
// about files that change while they are read holds here.
//
// # Values
//
// [Type.Decode] gives the values that gguf-py's dequantize gives, bit for bit. The families IQ1, IQ2, IQ3, TQ1, TQ2
// and the types that only occur within computations can be opened, listed and copied, but not decoded.
//
// # Writing
//
// Create lays out all tensors first, writes the header and reserves the disk space. Tensors are then written whole or
// in parts, in any order, from any number of goroutines; the bytes are the same in every case. The file is called
// name.partial until Finish has seen every byte written, flushed it and renamed it. A writer survives kill -9: see
// [Reopen].
package gguf
