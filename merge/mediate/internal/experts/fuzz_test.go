package experts

import (
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/safetensors"
)

// FuzzIndices: whatever the bytes of bitmaps, columns and rows are, a part that is accepted lists as many
// ascending elements within the tensor as it says.
func FuzzIndices(f *testing.F) {
	f.Add([]byte{0b101, 0}, []byte{0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0}, []byte{0, 0, 3, 0}, int64(2))
	f.Add([]byte{0xff, 0xff}, []byte{0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0}, []byte{9, 9}, int64(16))
	f.Fuzz(func(t *testing.T, bitmap, pointers, columns []byte, kept int64) {
		defer fuzzlimit.Watch(t, len(bitmap)+len(pointers)+len(columns))()

		const rows, cols = 2, 6
		if kept < 0 || kept > rows*cols || len(bitmap) != 2 || len(pointers) != 4*(rows+1) ||
			int64(len(columns)) != 2*kept {
			return // sizes are those of the tensors, which are checked before
		}

		for _, encoding := range []string{Bitmap, Rows} {
			s := &Stored{n: rows * cols, rows: rows, cols: cols, bitmap: bitmap, pointers: pointers, columns: columns}
			s.Encoding = encoding
			s.Kept = kept
			s.DType = safetensors.BF16
			check := s.soundBitmap
			if encoding == Rows {
				check = s.soundRows
			}
			if check() != nil {
				continue
			}

			last, count := int64(-1), int64(0)
			s.each(0, rows*cols, func(i, k int64) {
				if i <= last || i >= rows*cols || k != count {
					t.Fatalf("%s: element %d after %d, number %d of %d", encoding, i, last, k, count)
				}
				last = i
				count++
			})

			if count != kept {
				t.Fatalf("%s: %d elements of %d", encoding, count, kept)
			}
		}
	})
}
