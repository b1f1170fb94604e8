package layer

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Keys and values in 8 bits (Setup.KVBytes): each head of a token has a scale, the largest magnitude of its channels /
// 127, and signed bytes, the channels by the scale, rounded to the nearest with halves to even. Keys are rounded after
// norms and rotation, as attention reads them. Attention sees the rounded keys and values of all tokens, the newest
// included, so that it makes no difference how a sequence is cut into passes, or whether keys and values are kept.
//
// They are kept as bytes, d + 4 for the d channels of a head, and become floats for a block at a time.

// int8Top is the largest code.
const int8Top = 127

// kvBytes are the keys or the values of a block in 8 bits.
type kvBytes struct {
	kernels.Quantised
}

// newBytes makes room for a number of rows, in buffers that alloc makes.
func (s *Setup) newBytes(rows int, alloc func(kernels.DType, int) (*kernels.Buffer, error)) (kvBytes, error) {
	c := s.Config
	cols := c.KVHeads * c.HeadDim
	data, err := alloc(kernels.U8, rows*cols)
	if err != nil {
		return kvBytes{}, fmt.Errorf("keys and values of %d tokens: %w", rows, err)
	}
	scales, err := alloc(kernels.F32, rows*c.KVHeads)
	if err != nil {
		data.Free()
		return kvBytes{}, fmt.Errorf("keys and values of %d tokens: %w", rows, err)
	}

	q, err := kernels.NewQuantised(kernels.Int8, rows, cols, c.HeadDim, data, scales, nil)
	if err != nil {
		data.Free()
		scales.Free()
		return kvBytes{}, fmt.Errorf("keys and values of %d tokens: %w", rows, err)
	}
	return kvBytes{q}, nil
}

// heapBytes makes a buffer of a sequence that grows.
func heapBytes(t kernels.DType, n int) (*kernels.Buffer, error) { return kernels.NewHost(t, n), nil }

// free gives the memory back.
func (w kvBytes) free() {
	for _, b := range []*kernels.Buffer{w.Data.Buf, w.Scales.Buf} {
		if b != nil {
			b.Free()
		}
	}
}

// copy takes rows [lo, hi) of other ones to those from at on; the two may not overlap.
func (w kvBytes) copy(at int, from kvBytes, lo, hi int) {
	for i := lo; i < hi; i++ {
		copy(w.Data.RowU8(at+i-lo), from.Data.RowU8(i))
		copy(w.Scales.RowF32(at+i-lo), from.Scales.RowF32(i))
	}
}

// put rounds heads into rows from at on.
func (w kvBytes) put(threads, at int, x heads) {
	d := w.Group
	mmapsafe.Each(threads, x.mat.Rows, func(i int) {
		row := x.mat.RowF32(i)
		codes, scales := w.Data.RowU8(at+i), w.Scales.RowF32(at+i)
		for h := range scales {
			scales[h] = roundHead(codes[h*d:(h+1)*d], row[h*x.stride:][:d])
		}
	})
}

// roundHead rounds the channels of a head, and gives their scale.
func roundHead(codes []uint8, x []float32) (scale float32) {
	peak := 0.0
	for _, v := range x {
		if a := math.Abs(float64(v)); !(a <= peak) { // a NaN is larger than all
			peak = a
		}
	}
	if peak == 0 || math.IsNaN(peak) || math.IsInf(peak, 0) {
		clear(codes)
		return float32(peak) // what is not finite stays so
	}

	for i, v := range x {
		codes[i] = uint8(int8(math.RoundToEven(float64(v) * (int8Top / peak))))
	}
	return float32(peak / int8Top)
}

// roundHeads writes to heads what they are in 8 bits.
func (s *Setup) roundHeads(x heads) {
	d, count := s.Config.HeadDim, s.Config.KVHeads
	mmapsafe.EachWith(s.threads, x.mat.Rows, func() []uint8 { return make([]uint8, d) }, func(codes []uint8, i int) {
		row := x.mat.RowF32(i)
		for h := range count {
			head := row[h*x.stride:][:d]
			scale := roundHead(codes, head)
			for k, c := range codes {
				head[k] = float32(int8(c)) * scale
			}
		}
	})
	x.mat.Buf.Changed()
}

// floats gives rows [0, end) of keys and values as floats, of which those before from are there from the call before.
func (p *Pass) floats(kv *KV, from, end, room int) (keys, values kernels.Mat, err error) {
	cols := p.Config.KVHeads * p.Config.HeadDim
	if err := Grow(p.Device, &p.scratch.past, kernels.F32, 2*room*cols); err != nil {
		return keys, values, fmt.Errorf("keys and values of %d tokens: %w", room, err)
	}

	both := kernels.MatOf(p.scratch.past, 2*room, cols)
	keys, values = both.RowRange(0, end), both.RowRange(room, room+end)
	p.ops.ExpandQuantised(keys.RowRange(from, end), kv.bytes[0].RowRange(from, end))
	p.ops.ExpandQuantised(values.RowRange(from, end), kv.bytes[1].RowRange(from, end))
	return keys, values, nil
}

// Size is the bytes that keys and values take.
func (kv *KV) Size() int64 {
	n := 4 * int64(kv.Keys.Rows*kv.Keys.Cols+kv.Values.Rows*kv.Values.Cols)
	for _, w := range kv.bytes {
		if !w.IsZero() {
			n += w.SizeBytes()
		}
	}
	return n
}
