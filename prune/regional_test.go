package prune

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// TestRegional: what Wanda++ adds to Wanda's score is 100 times the root mean square, over sequences, of the
// derivative of the norm of the block's output, as differences have it.
func TestRegional(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(2), "gpt2": gpt2()} {
		dir := c.write(t, filepath.Join(t.TempDir(), name), nil)
		m := load(t, dir, 1, lm.Options{})
		calib := windows(3, 9, 61)

		scores := func(metric Metric) map[string][]float32 {
			all := map[string][]float32{}
			err := Scores(ctx, m, calib, Options{Metric: metric}, func(l lm.Linear, s kernels.Mat) error {
				if l.Block == 0 {
					for i := range s.Rows {
						all[l.Name] = append(all[l.Name], s.RowF32(i)...)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		plus, wanda := scores(WandaPlus()), scores(Wanda())

		norms := func() (all []float64) {
			for _, ids := range calib.IDs {
				h, err := m.Embed([][]int32{ids})
				if err == nil {
					err = m.RunBlock(ctx, 0, h, nil)
				}
				if err != nil {
					t.Fatal(err)
				}
				sum := 0.0
				for _, v := range h.X.Buf.F32()[:h.X.Len()] {
					sum += float64(v) * float64(v)
				}
				all = append(all, math.Sqrt(sum))
				h.Free()
			}
			return all
		}

		for _, l := range m.Linears(0) {
			w, err := m.MutableParam(l.Name)
			if err != nil {
				t.Fatal(err)
			}
			i, j := l.Out/2, l.In/3
			row, col := i, j
			if l.Transposed {
				row, col = j, i
			}

			// The values on both sides, as the type of the weight has them.
			raw := w.Buf.Bytes()
			at := w.Off + row*w.Stride + col
			size := len(raw) / w.Buf.Len
			original := append([]byte{}, raw[at*size:(at+1)*size]...)
			value := hostmat.Element(raw, w.DType(), at)
			place := func(v float32) float64 {
				switch w.DType() {
				case kernels.F32:
					binary.LittleEndian.PutUint32(raw[at*size:], math.Float32bits(v))
				case kernels.BF16:
					binary.LittleEndian.PutUint16(raw[at*size:], kernels.ToBF16(v))
				case kernels.F16:
					binary.LittleEndian.PutUint16(raw[at*size:], kernels.ToF16(v))
				default:
					t.Fatalf("%s: type %v", l.Name, w.DType())
				}
				w.Buf.Changed()
				return float64(hostmat.Element(raw, w.DType(), at))
			}
			const step = 1. / 64
			high := place(value + step)
			up := norms()
			low := place(value - step)
			down := norms()
			copy(raw[at*size:], original)
			w.Buf.Changed()

			sum := 0.0
			for k := range up {
				g := (up[k] - down[k]) / (high - low)
				sum += g * g / float64(len(up))
			}
			want := 100 * math.Sqrt(sum)
			score := i*l.In + j
			got := float64(plus[l.Name][score]-wanda[l.Name][score]) / math.Abs(float64(value))
			if math.Abs(got-want) > 1e-2*want+1e-3 {
				t.Errorf("%s: %s [%d, %d]: %g, by differences %g", name, l.Name, i, j, got, want)
			}
		}
	}
}
