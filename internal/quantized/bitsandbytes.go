package quantized

import (
	"fmt"
	"math"
	mathbits "math/bits"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/safetensors"
)

// nf4 is bitsandbytes' format of 4 bits that stand for quantiles of the normal distribution.
var nf4 = fourBits("nf4", &nf4Values)

// fp4 is bitsandbytes' format of 4-bit floats of its own.
var fp4 = fourBits("fp4", &fp4Values)

var nf4Values = [16]float32{
	-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
	-0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
	0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
}

var fp4Values = [16]float32{
	0, 0.0625 / 12, 8. / 12, 1, 4. / 12, 6. / 12, 2. / 12, 3. / 12,
	negativeZero, -0.0625 / 12, -8. / 12, -1, -4. / 12, -6. / 12, -2. / 12, -3. / 12,
}

// fourBits is a format of 4 bits with a table of values. The weight is a string of nibbles, the high one of each byte
// first, in blocks, mostly of 64, that have a scale in absmax. Where that is nested, its bytes stand for numbers of
// nested_quant_map, times the nested_absmax of 256 of them, plus an offset. The value is table[q]·absmax in F32,
// rounded to the type that quant_state names.
func fourBits(name string, values *[16]float32) Format {
	state := ".weight.quant_state.bitsandbytes__" + name
	return Format{
		Name: "bitsandbytes-" + name, marks: []string{state},
		parts: []string{
			".weight", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
		},
		open: func(w *stored, _ Scheme) (*Matrix, error) {
			s, err := readState(w, state)
			if err != nil {
				return nil, err
			}
			weight, err := w.part(".weight")
			if err != nil {
				return nil, err
			}

			m := &Matrix{Rows: s.rows, Cols: s.cols, DType: s.dtype}
			elements := s.rows * s.cols
			if len(weight.data) != ceil(elements, 2) {
				return nil, weight.misfit("%d bytes for %d×%d elements", ceil(elements, 2), s.rows, s.cols)
			}

			absmax, err := s.openScales(w, ceil(elements, s.block))
			if err != nil {
				return nil, err
			}
			m.eachRow(func(dst []float32, r int) error {
				return decodeNibbles(dst, weight.data, r*s.cols, s, absmax, values)
			})
			return m, nil
		},
	}
}

// state is what quant_state says.
type state struct {
	rows, cols int
	block      int
	dtype      safetensors.DType
	nested     bool
	nestedSize int
	offset     float32
}

// maxState bounds the text of a quant_state, which takes about 200 bytes.
const maxState = 1 << 16

func readState(w *stored, ending string) (state, error) {
	p, err := w.part(ending, safetensors.U8)
	if err != nil {
		return state{}, err
	}

	var text struct {
		Blocksize       int     `json:"blocksize"`
		DType           string  `json:"dtype"`
		Shape           []int64 `json:"shape"`
		NestedBlocksize int     `json:"nested_blocksize"`
		NestedDType     string  `json:"nested_dtype"`
		NestedOffset    float64 `json:"nested_offset"`
	}
	if len(p.data) > maxState {
		return state{}, fmt.Errorf("%w: %d bytes", ErrState, len(p.data))
	}
	if err := failure.Unmarshal(p.data, &text); err != nil {
		return state{}, fmt.Errorf("%w: %w", ErrState, err)
	}

	s := state{
		block: text.Blocksize, dtype: dtype.ParseTorch(text.DType), nested: w.has(".weight.nested_absmax"),
		nestedSize: text.NestedBlocksize, offset: float32(text.NestedOffset),
	}
	switch {
	case len(text.Shape) != 2 || text.Shape[0] < 1 || text.Shape[1] < 1 || !fits(text.Shape):
		return s, fmt.Errorf("%w: shape %v", ErrState, text.Shape)
	case s.block < 2 || s.block&(s.block-1) != 0 || s.block > 1<<16:
		return s, fmt.Errorf("%w: blocksize %d", ErrState, s.block)
	case s.dtype == 0 || s.dtype == safetensors.F64:
		return s, fmt.Errorf("%w: dtype %q", ErrState, text.DType)
	case s.nested && (s.nestedSize < 1 || s.offset-s.offset != 0 ||
		text.NestedDType != "" && text.NestedDType != "float32"):
		return s, fmt.Errorf("%w: nested_blocksize %d, nested_dtype %q, nested_offset %v", ErrState, s.nestedSize,
			text.NestedDType, text.NestedOffset)
	}

	s.rows = int(text.Shape[0])
	s.cols = int(text.Shape[1])
	return s, nil
}

// fits reports whether two dimensions multiply to an int.
func fits(shape []int64) bool {
	hi, lo := mathbits.Mul64(uint64(shape[0]), uint64(shape[1]))
	return hi == 0 && lo <= math.MaxInt-1
}

// openScales returns the scale of each of n blocks.
func (s *state) openScales(w *stored, n int) (func(block int) float32, error) {
	if !s.nested {
		p, err := w.part(".weight.absmax", safetensors.F32)
		if err != nil {
			return nil, err
		}
		read := number(p.DType)
		return func(i int) float32 { return read(p.data, i) }, p.expect(int64(n))
	}

	codes, err := w.part(".weight.absmax", safetensors.U8)
	if err != nil {
		return nil, err
	}
	if err := codes.expect(int64(n)); err != nil {
		return nil, err
	}

	scale, err := w.part(".weight.nested_absmax", safetensors.F32)
	if err != nil {
		return nil, err
	}
	if err := scale.expect(int64(ceil(n, s.nestedSize))); err != nil {
		return nil, err
	}

	table, err := w.part(".weight.nested_quant_map", safetensors.F32)
	if err != nil {
		return nil, err
	}

	read := number(safetensors.F32)
	return func(i int) float32 {
		return float32(read(table.data, int(codes.data[i]))*read(scale.data, i/s.nestedSize)) + s.offset
	}, table.expect(256)
}

// decodeNibbles writes elements from a first one on, block by block.
func decodeNibbles(dst []float32, data []byte, first int, s state, absmax func(int) float32,
	values *[16]float32,
) error {
	whole := dst
	for len(dst) > 0 {
		block := first / s.block
		scale := absmax(block)
		if scale-scale != 0 {
			return fmt.Errorf("%w: block %d", ErrNotFinite, block)
		}

		n := min(len(dst), (block+1)*s.block-first)
		highFirst(dst[:n], data, first, values, scale)
		dst = dst[n:]
		first += n
	}

	round(whole, s.dtype)
	return nil
}

// highFirst looks up nibbles from a first one on, the high one of each byte first, and scales what they stand for.
func highFirst(dst []float32, data []byte, first int, table *[16]float32, scale float32) {
	if first%2 == 1 && len(dst) > 0 {
		dst[0] = table[data[first/2]&15] * scale
		dst = dst[1:]
		first++
	}

	b := data[first/2:]
	for i, v := range b[:len(dst)/2] {
		pair := (*[2]float32)(dst[2*i:])
		pair[0] = table[v>>4] * scale
		pair[1] = table[v&15] * scale
	}
	if n := len(dst); n%2 == 1 {
		dst[n-1] = table[b[n/2]>>4] * scale
	}
}

// llmInt8 is bitsandbytes' format of 8 bits with a scale for each row. The value is (q·SCB)·(1/127) in F32, each
// product rounded.
var llmInt8 = Format{
	Name: "bitsandbytes-int8", marks: []string{".SCB"}, parts: []string{".weight"},
	open: func(w *stored, _ Scheme) (*Matrix, error) {
		weight, err := w.matrix(".weight", safetensors.I8)
		if err != nil {
			return nil, err
		}
		scb, err := w.part(".SCB", safetensors.F32)
		if err != nil {
			return nil, err
		}
		if scb.Elements() != int64(weight.rows()) {
			return nil, scb.misfit("%d scales", weight.rows())
		}

		read := number(safetensors.F32)
		m := &Matrix{Rows: weight.rows(), Cols: weight.cols(), DType: safetensors.F32}
		m.eachRow(func(dst []float32, r int) error {
			s := read(scb.data, r)
			if s-s != 0 {
				return fmt.Errorf("%w: row %d", ErrNotFinite, r)
			}
			for i, v := range weight.data[r*m.Cols:][:m.Cols] {
				dst[i] = float32(float32(int8(v))*s) * float32(7.874015718698502e-3)
			}
			return nil
		})
		return m, nil
	},
}

// isBitsAndBytes reports whether a format is one of this file.
func isBitsAndBytes(f *Format) bool { return strings.HasPrefix(f.Name, "bitsandbytes-") }
