package weightstest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/safetensors"
)

// small is 4-bit integers of a row-major matrix, with a power of two as the scale of each group of a row: the codes,
// with 8 added, the scales row by row, and the values.
func small(rows, cols, group int, w []float32) (codes []uint32, scales, values []float32) {
	for at := 0; at < rows*cols; at += group {
		scale := power(w[at:at+group], 7)
		scales = append(scales, scale)
		for _, v := range w[at : at+group] {
			q := nearest(v, scale, -8, 7)
			codes = append(codes, uint32(q+8))
			values = append(values, float32(q)*scale)
		}
	}
	return codes, scales, values
}

// words is numbers of 32 bits as bytes.
func words(list []uint32) (data []byte) {
	for _, v := range list {
		data = binary.LittleEndian.AppendUint32(data, v)
	}
	return data
}

// awq is 4 bits in groups of 32 inputs. The matrix lies transposed: a word has eight outputs of an input, the even ones
// before the odd ones.
func awq(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	const group = 32
	codes, scales, values := small(rows, cols, group, w)
	order := [8]int{0, 2, 4, 6, 1, 3, 5, 7}
	var qweight, qzeros []uint32
	for i := range cols {
		for c := 0; c < rows; c += 8 {
			word := uint32(0)
			for k, at := range order {
				word |= codes[(c+at)*cols+i] << (4 * k)
			}
			qweight = append(qweight, word)
		}
	}
	for range cols / group * rows / 8 {
		qzeros = append(qzeros, 0x88888888)
	}

	turned := make([]float32, 0, len(scales))
	for g := range cols / group {
		for r := range rows {
			turned = append(turned, scales[r*cols/group+g])
		}
	}
	halves := make([]byte, 2*len(turned))
	_ = dtype.Encode(halves, turned, safetensors.F16)

	return []tensor{
		raw(module+".qweight", safetensors.I32, words(qweight), cols, rows/8),
		raw(module+".qzeros", safetensors.I32, words(qzeros), cols/group, rows/8),
		raw(module+".scales", safetensors.F16, halves, cols/group, rows),
	}, values
}

// packed is 4 bits in groups of 32 inputs, eight inputs in a word.
func packed(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	const group = 32
	codes, scales, values := small(rows, cols, group, w)
	list := make([]uint32, len(codes)/8)
	for i, q := range codes {
		list[i/8] |= q << (i % 8 * 4)
	}

	halves := make([]byte, 2*len(scales))
	_ = dtype.Encode(halves, scales, safetensors.BF16)
	shape := binary.LittleEndian.AppendUint64(nil, uint64(rows))
	shape = binary.LittleEndian.AppendUint64(shape, uint64(cols))
	return []tensor{
		raw(module+".weight_packed", safetensors.I32, words(list), rows, cols/8),
		raw(module+".weight_scale", safetensors.BF16, halves, rows, cols/group),
		raw(module+".weight_shape", safetensors.I64, shape, 2),
	}, values
}

// quantiles are what the codes of bitsandbytes' NF4 stand for.
var quantiles = [16]float32{
	-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
	-0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
	0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
}

// nf4 is 4 bits that stand for quantiles of a normal distribution, in blocks of 64 with the largest magnitude as their
// scale. The first of two elements is the high half of a byte.
func nf4(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	const block = 64
	codes := make([]byte, len(w)/2)
	var scales []uint32
	for at := 0; at < len(w); at += block {
		largest := float32(0)
		for _, v := range w[at : at+block] {
			largest = max(largest, float32(math.Abs(float64(v))))
		}
		scales = append(scales, math.Float32bits(largest))

		for i := at; i < at+block; i++ {
			best := 0
			for q, x := range quantiles {
				if math.Abs(float64(w[i]-x*largest)) < math.Abs(float64(w[i]-quantiles[best]*largest)) {
					best = q
				}
			}
			codes[i/2] |= byte(best) << (4 - i%2*4)
			values = append(values, quantiles[best]*largest)
		}
	}

	var table []uint32
	for _, x := range quantiles {
		table = append(table, math.Float32bits(x))
	}
	state := fmt.Appendf(nil, `{"quant_type": "nf4", "blocksize": %d, "dtype": "float32", "shape": [%d, %d]}`, block,
		rows, cols)
	return []tensor{
		raw(module+".weight", safetensors.U8, codes, len(codes), 1),
		raw(module+".weight.absmax", safetensors.F32, words(scales), len(scales)),
		raw(module+".weight.quant_map", safetensors.F32, words(table), len(table)),
		raw(module+".weight.quant_state.bitsandbytes__nf4", safetensors.U8, state, len(state)),
	}, values
}

// int8s is bitsandbytes' integers of 8 bits, with the largest magnitude of a row as its scale.
func int8s(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	codes := make([]byte, len(w))
	var scales []uint32
	for r := range rows {
		row := w[r*cols:][:cols]
		largest := float32(1e-9)
		for _, v := range row {
			largest = max(largest, float32(math.Abs(float64(v))))
		}
		scales = append(scales, math.Float32bits(largest))

		for i, v := range row {
			q := nearest(v, largest/127, -127, 127)
			codes[r*cols+i] = byte(int8(q))
			// both products are rounded, and the second factor is the library's 1/127
			values = append(values, float32(float32(q)*largest)*float32(7.874015718698502e-3))
		}
	}
	return []tensor{
		raw(module+".weight", safetensors.I8, codes, rows, cols),
		raw(module+".SCB", safetensors.F32, words(scales), rows),
	}, values
}
