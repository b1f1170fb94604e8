package quantize

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/safetensors"
)

// part is one of the tensors that a matrix is stored as.
type part struct {
	safetensors.Info
	fill func(g *grid) []byte
}

// module is the name of a matrix without its ending.
func module(name string) string { return strings.TrimSuffix(name, ".weight") }

// parts lists the tensors that a matrix becomes, as the scheme lays them out.
func (s Scheme) parts(name string, g *grid) ([]part, error) {
	rows := int64(g.rows)
	cols := int64(g.cols)
	stored := g.numbers.DType
	bits := s.Weights.Bits

	scale := func(d safetensors.DType) part {
		return named(name, ".weight_scale", d, func(g *grid) []byte { return floats(g.scale, d) },
			int64(len(g.scale)/g.width), int64(g.width))
	}

	switch s.Layout {
	case packed:
		list := []part{
			named(name, ".weight_packed", safetensors.I32, packRows(bits), rows,
				int64(quantized.PackedWords(g.cols, bits))),
			scale(stored),
			named(name, ".weight_shape", safetensors.I64, shapeOf, 2),
		}
		if g.zero != nil {
			list = append(list, named(name, ".weight_zero_point", safetensors.I32, packZeros(bits),
				int64(quantized.PackedWords(g.rows, bits)), int64(g.width)))
		}
		return list, nil
	case bytesInt:
		return []part{named(name, ".weight", safetensors.I8, codesOf, rows, cols), scale(stored)}, nil
	case bytesFloat:
		return []part{named(name, ".weight", safetensors.F8_E4M3, codesOf, rows, cols), scale(stored)}, nil
	case nvfp4Packed:
		return []part{
			named(name, ".weight_packed", safetensors.U8, packPairs, rows, cols/2),
			scale(safetensors.F8_E4M3),
			named(name, ".weight_global_scale", safetensors.F32, func(g *grid) []byte {
				return floats([]float32{g.global}, safetensors.F32)
			}, 1),
		}, nil
	case mxfp4Packed:
		return []part{
			named(name, ".weight_packed", safetensors.U8, packPairs, rows, cols/2),
			scale(safetensors.U8),
		}, nil
	case gptqLayout:
		return gptqParts(name, g)
	}

	return nil, fmt.Errorf("%w: layout %q", ErrScheme, s.Layout)
}

// readAs is the type to which readers of a layout round its values, whatever that of the weights was; 0 where it is
// the weights' own.
func (s Scheme) readAs() safetensors.DType {
	switch s.Layout {
	case gptqLayout:
		return safetensors.F16
	case nvfp4Packed, mxfp4Packed:
		return safetensors.BF16
	}
	return 0
}

// named is a tensor of a matrix.
func named(name, ending string, d safetensors.DType, fill func(*grid) []byte, shape ...int64) part {
	size := int64(d.Bits()) / 8
	for _, n := range shape {
		size *= n
	}
	return part{safetensors.Info{Name: module(name) + ending, DType: d, Shape: shape, Size: size}, fill}
}

func codesOf(g *grid) []byte { return g.code }

func shapeOf(g *grid) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(g.rows))
	return binary.LittleEndian.AppendUint64(out, uint64(g.cols))
}

func packPairs(g *grid) []byte {
	out := make([]byte, len(g.code)/2)
	quantized.PackPairs(out, g.code)
	return out
}

func packRows(bits int) func(*grid) []byte {
	return func(g *grid) []byte {
		size := 4 * quantized.PackedWords(g.cols, bits)
		out := make([]byte, g.rows*size)
		for i := range g.rows {
			quantized.PackBits(out[i*size:][:size], g.code[i*g.cols:][:g.cols], bits)
		}
		return out
	}
}

func packZeros(bits int) func(*grid) []byte {
	return func(g *grid) []byte {
		out := make([]byte, 4*quantized.PackedWords(g.rows, bits)*g.width)
		quantized.PackZeros(out, g.zero, g.width, bits)
		return out
	}
}

// floats stores scales in a type that has all of them.
func floats(x []float32, d safetensors.DType) []byte {
	switch d {
	case safetensors.F8_E4M3:
		out := make([]byte, len(x))
		one := quantized.Numbers{Float: true, Bits: 8, DType: safetensors.F32}
		for i, v := range x {
			out[i] = one.Code(v, 1, 0)
		}
		return out
	case safetensors.U8: // powers of two
		out := make([]byte, len(x))
		for i, v := range x {
			out[i] = byte(max(0, 127+math.Ilogb(float64(v))))
		}
		return out
	}

	out := make([]byte, len(x)*d.Bits()/8)
	if err := dtype.Encode(out, x, d); err != nil {
		panic("quantize: scales of no type that a model has")
	}
	return out
}
