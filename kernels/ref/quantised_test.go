package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestBlocksDecodeAsFilesDo holds the decoders of GGUF's blocks to those that read checkpoints, bit by bit, for random
// codes and scales.
func TestBlocksDecodeAsFilesDo(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	for _, f := range kernels.QuantFormats() {
		if f.Grouped() {
			continue
		}

		block, ok := quantized.BlockNamed(f.String())
		elements, bytes := f.Block()
		if !ok || block.Elements != elements || block.Bytes != bytes {
			t.Fatalf("%s: %d elements in %d bytes, files have %+v", f, elements, bytes, block)
		}

		const n = 300
		data := kernels.NewHost(kernels.U8, n*bytes)
		for i := range data.Len {
			data.U8()[i] = byte(rng.Uint32())
		}
		for i := range n { // scales that are numbers: files with others are refused
			for _, at := range map[kernels.QuantFormat][]int{kernels.Q6_K: {209}}[f] {
				data.U8()[i*bytes+at] &= 0xbf
			}
			if f != kernels.Q6_K {
				data.U8()[i*bytes+1] &= 0xbf
				data.U8()[i*bytes+3] &= 0xbf
			}
		}

		want := make([]float32, n*elements)
		if err := block.Decode(want, data.U8()); err != nil {
			t.Fatal(err)
		}

		w, err := kernels.NewQuantised(f, n, elements, 0, data, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := zeros(n, elements)
		ref.New().Ops().ExpandQuantised(got, w)
		for i, v := range got.Buf.F32() {
			if math.Float32bits(v) != math.Float32bits(want[i]) {
				t.Fatalf("%s: element %d of block %d is %v, files have %v", f, i%elements, i/elements, v, want[i])
			}
		}
	}
}

func TestGroupsByHand(t *testing.T) {
	bytes := func(v ...uint8) *kernels.Buffer {
		b := kernels.NewHost(kernels.U8, len(v))
		copy(b.U8(), v)
		return b
	}
	floats := func(v ...float32) *kernels.Buffer { return kernels.WrapF32(v) }

	for name, c := range map[string]struct {
		format              kernels.QuantFormat
		data, scales, zeros *kernels.Buffer
		want                []float64
	}{
		"int4":        {kernels.Int4, bytes(0x80, 0x0f), floats(0.5, 2), nil, []float64{-4, 0, 14}},
		"int4 zeros":  {kernels.Int4, bytes(0x80, 0x0f), floats(0.5, 2), bytes(1, 16), []float64{-0.5, 3.5, -2}},
		"int4 floats": {kernels.Int4, bytes(0x80, 0x0f), floats(0.5, 2), floats(0.5, 1), []float64{-0.25, 3.75, 28}},
		"int8":        {kernels.Int8, bytes(255, 127, 128), floats(0.5, 2), nil, []float64{-0.5, 63.5, -256}},
		"int8 zeros":  {kernels.Int8, bytes(255, 127, 128), floats(0.5, 2), bytes(254, 1), []float64{0.5, 64.5, -258}},
	} {
		w, err := kernels.NewQuantised(c.format, 1, 3, 2, c.data, c.scales, c.zeros)
		if err != nil {
			t.Fatal(err)
		}

		o, dst := ref.New().Ops(), zeros(1, 3)
		o.ExpandQuantised(dst, w)
		near(t, name, dst, c.want...)
		o.GatherQuantised(dst, w, []int32{0}, 2)
		near(t, name+" gathered", dst, 2*c.want[0], 2*c.want[1], 2*c.want[2])

		one := zeros(1, 1)
		o.MatMulQuantised(one, mat(1, 3, 1, 2, 3), w, kernels.MatMul{Bias: mat(1, 1, 5)})
		near(t, name+" product", one, c.want[0]+2*c.want[1]+3*c.want[2]+5)
	}
}
