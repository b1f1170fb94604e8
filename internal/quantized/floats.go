package quantized

import (
	"fmt"
	"math"
	"sync"

	"github.com/modelcompress/compress/safetensors"
)

// rowBuffer is space for the numbers of a row, and for the values of the numbers of a group.
type rowBuffer struct {
	b     []byte
	table [128]float32 // of 7 bits
}

var rowBuffers = sync.Pool{New: func() any { return new(rowBuffer) }}

func (r *rowBuffer) bytes(n int) []byte {
	if cap(r.b) < n {
		r.b = make([]byte, n)
	}
	return r.b[:n]
}

// floatQuantized is compressed-tensors' format of 8-bit floats E4M3, with a scale for the matrix, each row, groups or
// blocks. The value is q·scale, rounded to the type of the scales.
var floatQuantized = Format{
	Name: "float-quantized", marks: []string{".weight"}, parts: []string{".weight_scale"},
	fits: func(w *stored) bool {
		return w.dtype(".weight") == safetensors.F8_E4M3 && w.has(".weight_scale") &&
			w.dtype(".weight_scale") != safetensors.U8
	},
	open: func(w *stored, s Scheme) (*Matrix, error) { return openE4M3(w, ".weight_scale", s, floats...) },
}

// mxfp8Quantized is compressed-tensors' format of 8-bit floats E4M3 in groups of 32, whose scale is a power of two.
// The value is q·2^(e-127), rounded to BF16.
var mxfp8Quantized = Format{
	Name: "mxfp8-quantized", marks: []string{".weight"}, parts: []string{".weight_scale"},
	fits: func(w *stored) bool {
		return w.dtype(".weight") == safetensors.F8_E4M3 && w.dtype(".weight_scale") == safetensors.U8
	},
	open: func(w *stored, s Scheme) (*Matrix, error) { return openE4M3(w, ".weight_scale", s, safetensors.U8) },
}

// fp8 is the format of checkpoints of DeepSeek and Qwen: 8-bit floats E4M3 with a scale for blocks of, mostly,
// 128×128, or for the matrix. The value is q·scale in F32, or BF16 where scales are powers of two.
var fp8 = Format{
	Name: "fp8", marks: []string{".weight_scale_inv"}, parts: []string{".weight"},
	open: func(w *stored, s Scheme) (*Matrix, error) {
		types := append([]safetensors.DType{safetensors.F8_E8M0, safetensors.U8}, floats...)
		return openE4M3(w, ".weight_scale_inv", s, types...)
	},
}

func openE4M3(w *stored, ending string, s Scheme, types ...safetensors.DType) (*Matrix, error) {
	weight, err := w.matrix(".weight", safetensors.F8_E4M3)
	if err != nil {
		return nil, err
	}
	scale, err := w.part(ending, types...)
	if err != nil {
		return nil, err
	}
	g, err := newGrid(scale, weight.rows(), weight.cols(), s.Block)
	if err != nil {
		return nil, err
	}

	m := &Matrix{Rows: weight.rows(), Cols: weight.cols(), DType: scale.DType}
	if scale.DType.Bits() == 8 {
		m.DType = safetensors.BF16
	}
	m.eachRow(func(dst []float32, r int) error {
		row := weight.data[r*len(dst):][:len(dst)]
		for group := range g.width {
			s, err := g.at(r, group)
			if err != nil {
				return err
			}

			first := group * g.cols
			n := min(g.cols, len(dst)-first)
			scaleE4M3(dst[first:][:n], row[first:][:n], s, m.DType)
		}
		return nil
	})

	return m, nil
}

func scaleE4M3(dst []float32, row []byte, s float32, d safetensors.DType) {
	for i, v := range row {
		dst[i] = e4m3[v] * s
	}
	round(dst, d)
}

// e2m1 is the value of each 4-bit float E2M1.
var e2m1 = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, negativeZero, -.5, -1, -1.5, -2, -3, -4, -6}

var negativeZero = float32(math.Copysign(0, -1))

// nvfp4Quantized is compressed-tensors' format of 4-bit floats E2M1, two to a byte, with a scale E4M3 for 16 elements
// and one for the matrix, by which they are divided. The value is q·(scale/global) in F32, rounded to BF16.
var nvfp4Quantized = Format{
	Name: "nvfp4-pack-quantized", marks: []string{".weight_packed"},
	parts: []string{".weight_scale", ".weight_global_scale"},
	fits: func(w *stored) bool {
		return w.dtype(".weight_packed") == safetensors.U8 && w.has(".weight_global_scale")
	},
	open: func(w *stored, s Scheme) (*Matrix, error) {
		global, err := w.part(".weight_global_scale", safetensors.F32)
		if err != nil {
			return nil, err
		}
		if err := global.expect(1); err != nil {
			return nil, err
		}

		divisor := number(safetensors.F32)(global.data, 0)
		if divisor-divisor != 0 || divisor == 0 {
			return nil, fmt.Errorf("%w: %s is %v", ErrNotFinite, global.Name, divisor)
		}
		return openE2M1(w, func(s float32) float32 { return s / divisor }, safetensors.F8_E4M3)
	},
}

// mxfp4Quantized is compressed-tensors' format of 4-bit floats E2M1, two to a byte, with a power of two for 32
// elements. The value is q·2^(e-127), rounded to BF16.
var mxfp4Quantized = Format{
	Name: "mxfp4-pack-quantized", marks: []string{".weight_packed"}, parts: []string{".weight_scale"},
	fits: func(w *stored) bool {
		return w.dtype(".weight_packed") == safetensors.U8 && !w.has(".weight_global_scale")
	},
	open: func(w *stored, s Scheme) (*Matrix, error) {
		return openE2M1(w, func(s float32) float32 { return s }, safetensors.U8)
	},
}

// openE2M1 opens packed 4-bit floats, whose even elements are the low nibbles.
func openE2M1(w *stored, adjust func(float32) float32, scaleType safetensors.DType) (*Matrix, error) {
	packed, err := w.matrix(".weight_packed", safetensors.U8)
	if err != nil {
		return nil, err
	}
	scale, err := w.matrix(".weight_scale", scaleType)
	if err != nil {
		return nil, err
	}

	m := &Matrix{Rows: packed.rows(), Cols: 2 * packed.cols()}
	g, err := newGrid(scale, m.Rows, m.Cols, [2]int{})
	if err != nil {
		return nil, err
	}
	if g.cols%2 != 0 {
		return nil, scale.misfit("groups of an even number of columns")
	}

	m.readE2M1(packed.data, g, adjust)
	return m, nil
}

// readE2M1 decodes rows of nibbles, with what adjust makes of the scales, to BF16.
func (m *Matrix) readE2M1(data []byte, g *grid, adjust func(float32) float32) {
	m.DType = safetensors.BF16
	m.eachRow(func(dst []float32, r int) error {
		row := data[r*m.Cols/2:][:m.Cols/2]
		for group := range g.width {
			s, err := g.at(r, group)
			if err != nil {
				return err
			}

			pairs16(dst[group*g.cols:][:g.cols], row[group*g.cols/2:][:g.cols/2], &e2m1, adjust(s))
		}
		round(dst, m.DType)
		return nil
	})
}

// mxfp4Experts is the format of gpt-oss: the experts of a block in one tensor NAME_blocks [experts, out, in/32, 16] of
// 4-bit floats E2M1, the even ones in the low nibbles, and NAME_scales [experts, out, in/32] with a power of two for
// each 32. The value is q·2^(e-127), rounded to BF16. The matrices are stacked as they are stored, out × in;
// transformers has them transposed.
var mxfp4Experts = Format{
	Name: "mxfp4", marks: []string{"_blocks"}, parts: []string{"_scales"}, bare: true,
	open: func(w *stored, _ Scheme) (*Matrix, error) {
		const group = 32
		blocks, err := w.part("_blocks", safetensors.U8)
		if err != nil {
			return nil, err
		}
		s := blocks.Shape
		if len(s) != 4 || s[3] != group/2 || blocks.Elements() == 0 {
			return nil, blocks.misfit("experts, rows, groups, %d", group/2)
		}

		scales, err := w.part("_scales", safetensors.U8)
		if err != nil {
			return nil, err
		}
		if err := scales.expect(s[:3]...); err != nil {
			return nil, err
		}

		m := &Matrix{Rows: int(s[0] * s[1]), Cols: int(s[2]) * group, Stack: int(s[0])}
		g := &grid{data: scales.data, read: number(scales.DType), rows: 1, cols: group, width: int(s[2])}
		m.readE2M1(blocks.data, g, func(s float32) float32 { return s })
		return m, nil
	},
}

// pairs16 looks up the nibbles of bytes, the low ones first, and scales what they stand for.
func pairs16(dst []float32, b []byte, table *[16]float32, s float32) {
	for i, v := range b {
		pair := (*[2]float32)(dst[2*i:])
		pair[0] = table[v&15] * s
		pair[1] = table[v>>4] * s
	}
}
