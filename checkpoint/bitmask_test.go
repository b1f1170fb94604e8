package checkpoint

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"pgregory.net/rapid"
)

func float32s(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// TestPackGolden is the worked example of the format: the published Wanda 2:4 mask of a 2x8 matrix.
func TestPackGolden(t *testing.T) {
	negZero := float32(math.Copysign(0, -1))
	k := &packer{size: 4, cols: 8}
	k.pack(float32s(0, -1, 0, 2, negZero, 0.75, -1.5, 0, 1, 0, 0, 0.4, 0, negZero, -0.7, 0.8))
	if want := []byte{0x6a, 0xc9}; !bytes.Equal(k.mask, want) {
		t.Errorf("bitmask % x, want % x", k.mask, want)
	}
	if want := shapeBytes([]int64{0, 4}); !bytes.Equal(k.offsets, want) {
		t.Errorf("row offsets % x, want % x", k.offsets, want)
	}
	if want := float32s(-1, 2, 0.75, -1.5, 1, 0.4, -0.7, 0.8); !bytes.Equal(k.values, want) {
		t.Errorf("values % x, want % x", k.values, want)
	}
	if k.total != 8 || k.off24 {
		t.Errorf("%d values, off 2:4 %v", k.total, k.off24)
	}
}

// TestPackRoundTrip: what is packed comes back, but for negative zeros, for every width of element and of row.
func TestPackRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{2, 4, 8}).Draw(rt, "size")
		cols := rapid.IntRange(1, 40).Draw(rt, "cols")
		rows := rapid.IntRange(1, 6).Draw(rt, "rows")

		dense := make([]byte, rows*cols*size)
		for i := 0; i < len(dense); i += size {
			if rapid.Bool().Draw(rt, "kept") {
				copy(dense[i:], rapid.SliceOfN(rapid.Byte(), size, size).Draw(rt, "value"))
			}
			if isZero(dense[i:][:size]) {
				clear(dense[i:][:size])
			}
		}

		k := &packer{size: size, cols: cols}
		k.pack(dense)

		if n := packedSize(int64(rows), int64(cols), k.total,
			size); n != int64(len(k.values)+len(k.mask)+len(k.offsets)+16) {
			rt.Fatalf("packed size %d, planned %d", len(k.values)+len(k.mask)+len(k.offsets)+16, n)
		}

		got, values, width := make([]byte, len(dense)), k.values, (cols+7)/8
		for r := range rows {
			var ok bool
			if values, ok = unpackRow(got[r*cols*size:][:cols*size], k.mask[r*width:][:width], values, cols,
				size); !ok {
				rt.Fatalf("row %d does not unpack", r)
			}
		}

		if !bytes.Equal(got, dense) || len(values) != 0 {
			rt.Fatalf("got % x, want % x, %d bytes left", got, dense, len(values))
		}
	})
}

func FuzzUnpackRow(f *testing.F) {
	f.Add([]byte{0x6a}, float32s(-1, 2, 0.75, -1.5), 8)
	f.Add([]byte{0xff, 0xff}, float32s(1), 9)
	f.Fuzz(func(t *testing.T, mask, values []byte, cols int) {
		defer fuzzlimit.Watch(t, len(mask)+len(values))()
		if cols < 1 || cols > 1<<12 || len(mask) != (cols+7)/8 {
			t.Skip()
		}
		dst := make([]byte, 4*cols)
		rest, ok := unpackRow(dst, mask, values, cols, 4)
		if ok && len(rest) > len(values) {
			t.Error("values out of nothing")
		}
	})
}

func TestUnpackRefusesWhatDoesNotFit(t *testing.T) {
	dst := make([]byte, 4*4)
	if _, ok := unpackRow(dst, []byte{0x0f}, float32s(1, 2, 3), 4, 4); ok {
		t.Error("four bits and three values were accepted")
	}
	if _, ok := unpackRow(dst, []byte{0x10}, float32s(1), 4, 4); ok {
		t.Error("a bit beyond the last column was accepted")
	}
}
