package quantize

import (
	"encoding/binary"
	"fmt"

	"github.com/modelcompress/compress/safetensors"
)

// gptqParts are the tensors of GPTQ's layout: words of eight inputs of an output, zero points of eight outputs, scales
// in F16, and the group of every input. It is the first version of the format, whose zero points are stored less 1.
func gptqParts(name string, g *grid) ([]part, error) {
	const perWord = 8 // numbers of 4 bits
	if g.cols%32 != 0 || g.rows%perWord != 0 {
		return nil, fmt.Errorf("%w: %d outputs and %d inputs; GPTQ's words hold 8, and its kernels want 32 inputs",
			ErrLayout, g.rows, g.cols)
	}

	rows := int64(g.rows)
	cols := int64(g.cols)
	width := int64(g.width)
	return []part{
		named(name, ".qweight", safetensors.I32, gptqWeights, cols/perWord, rows),
		named(name, ".qzeros", safetensors.I32, gptqZeros, width, rows/perWord),
		named(name, ".scales", safetensors.F16, gptqScales, width, rows),
		named(name, ".g_idx", safetensors.I32, gptqGroups, cols),
	}, nil
}

// unsigned is a code of GPTQ: from 0 on.
func unsigned(code byte) uint32 { return uint32(code+8) & 15 }

func gptqWeights(g *grid) []byte {
	out := make([]byte, g.rows*g.cols/2)
	for r := 0; r < g.cols; r += 8 {
		for i := range g.rows {
			word := uint32(0)
			for k := range 8 {
				word |= unsigned(g.code[i*g.cols+r+k]) << (4 * k)
			}
			binary.LittleEndian.PutUint32(out[4*(r/8*g.rows+i):], word)
		}
	}
	return out
}

func gptqZeros(g *grid) []byte {
	out := make([]byte, 4*g.width*g.rows/8)
	for group := range g.width {
		for i := range g.rows {
			zero := byte(0)
			if g.zero != nil {
				zero = byte(g.zero[i*g.width+group])
			}
			at := 4 * (group*g.rows/8 + i/8)
			word := binary.LittleEndian.Uint32(out[at:])
			binary.LittleEndian.PutUint32(out[at:], word|(unsigned(zero)-1)&15<<(4*(i%8)))
		}
	}
	return out
}

func gptqScales(g *grid) []byte {
	turned := make([]float32, len(g.scale))
	for i := range g.rows {
		for group := range g.width {
			turned[group*g.rows+i] = g.scale[i*g.width+group]
		}
	}
	return floats(turned, safetensors.F16)
}

func gptqGroups(g *grid) []byte {
	out := make([]byte, 4*g.cols)
	for j := range g.cols {
		binary.LittleEndian.PutUint32(out[4*j:], uint32(j/g.across))
	}
	return out
}
