package experts

import (
	"encoding/binary"
	"errors"
	"math"
	"sync"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// Create lays out the file of an expert.
func Create(path string, parts []*Part, metadata map[string]string) (*safetensors.Writer, error) {
	var infos []safetensors.Info
	for _, p := range parts {
		list, err := p.stored()
		if err != nil {
			return nil, err
		}
		infos = append(infos, list...)
	}
	return safetensors.Create(path, infos, metadata, safetensors.Options{Order: safetensors.OrderAligned})
}

// Write makes the passes that write what the experts keep of a tensor to their files.
func (k Keep) Write(t *method.Tensor, parts []*Part, keys []*method.Tensor,
	files []*safetensors.Writer,
) *method.Program {
	p := &method.Program{}
	var sparse []int
	for i, part := range parts {
		switch part.Encoding {
		case Bitmap, Rows, Full:
			sparse = append(sparse, i)
		case Signs:
			p.Passes = append(p.Passes, signs(t, part, i, files[i])...)
		case Codes:
			p.Passes = append(p.Passes, codes(t, part, i, files[i]))
		case LowRank:
			p.Passes = append(p.Passes, factors(t, part, i, files[i]))
			p.Memory = 40 * t.N // the difference in float64 and what a decomposition of it takes
		}
	}

	if len(sparse) > 0 {
		p.Passes = append(p.Passes, k.values(t, parts, keys, files, sparse))
	}

	return p
}

// encoder is what a segment collects of one part: what is not written yet, and where that goes.
type encoder struct {
	bits, cols, values []byte
	bitAt, at, valueAt int64    // of their first bytes, in the stored tensors; at is of cols
	counts             []uint32 // elements per row from firstRow on
	firstRow           int64
}

// flushBytes is how much an encoder collects before it writes.
const flushBytes = 1 << 18

// segmentOf is a segment's encoders, by part.
type segmentOf struct {
	e    []*encoder
	err  error
	temp []byte
}

// values is the pass that writes kept elements.
func (k Keep) values(t *method.Tensor, parts []*Part, keys []*method.Tensor, files []*safetensors.Writer,
	sparse []int,
) method.Pass {
	starts := make([][]int64, len(parts)) // of segments, in kept elements
	for _, i := range sparse {
		at := int64(0)
		for _, n := range parts[i].counts {
			starts[i] = append(starts[i], at)
			at += n
		}

		if parts[i].Encoding == Full { // counts are those of another rule where factors would be larger than the tensor
			for j := range starts[i] {
				starts[i][j] = int64(j) * method.SegmentSize
			}
		}
	}

	return method.Pass{
		New: func() any { return &segmentOf{e: make([]*encoder, len(parts))} },
		Each: func(stat any, b *method.Block) {
			s := stat.(*segmentOf)
			for _, i := range sparse {
				if s.err != nil {
					return
				}

				p := parts[i]
				if s.e[i] == nil {
					s.e[i] = p.encoder(t, b.Off, starts[i][b.Off/method.SegmentSize])
				}

				r, m := b.Temp(0), b.Temp(1)
				vec.Sub(r, b.X[i], b.Base)

				if p.Encoding == Full {
					for j := range m {
						m[j] = 1
					}
				} else {
					k.of(p).mask(m, p, keys[i], b, r)
				}

				v := b.X[i]
				if p.Delta {
					vec.Scale(r, r, float32(1/k.of(p).Value))
					v = r
				}

				s.err = s.take(s.e[i], p, t, b.Off, m, v)
				if last := b.Off + int64(b.Len()); s.err == nil &&
					(last == t.N || last%method.SegmentSize == 0 || len(s.e[i].values) > flushBytes) {
					s.err = s.e[i].flush(p, files[i])
				}
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			for _, s := range stats {
				if err := s.(*segmentOf).err; err != nil {
					return nil, err
				}
			}

			for _, i := range sparse {
				if parts[i].Encoding == Rows {
					if err := pointers(t, parts[i], i, stats, files[i]); err != nil {
						return nil, err
					}
				}
			}

			return nil, nil
		},
	}
}

// encoder starts a segment.
func (p *Part) encoder(t *method.Tensor, off, start int64) *encoder {
	width := int64(p.DType.Bits() / 8)
	return &encoder{bitAt: off / 8, at: 2 * start, valueAt: width * start, firstRow: off / t.Cols()}
}

// take encodes the elements of a block where m is not 0.
func (s *segmentOf) take(e *encoder, p *Part, t *method.Tensor, off int64, m, v []float32) error {
	width := p.DType.Bits() / 8
	if cap(s.temp) < width*len(v) {
		s.temp = make([]byte, width*len(v))
	}

	narrow := s.temp[:width*len(v)]
	if err := stream.Narrow(narrow, v, p.DType); err != nil {
		return err
	}

	switch p.Encoding {
	case Full:
		e.values = append(e.values, narrow...)
		return nil
	case Bitmap:
		// Blocks begin at multiples of eight elements, so no byte is shared by two.
		for j := 0; j < len(m); j += 8 {
			var b byte
			for i, x := range m[j:min(j+8, len(m))] {
				if x != 0 {
					b |= 1 << i
					e.values = append(e.values, narrow[(j+i)*width:(j+i+1)*width]...)
				}
			}

			e.bits = append(e.bits, b)
		}

		return nil
	}

	row := off / t.Cols()
	col := off % t.Cols()
	cols := t.Cols()
	for j, x := range m {
		// The counts of rows that keep nothing are needed too: the next row's pointer is their sum.
		if x != 0 {
			for int64(len(e.counts)) <= row-e.firstRow {
				e.counts = append(e.counts, 0)
			}
			e.counts[row-e.firstRow]++
			e.cols = binary.LittleEndian.AppendUint16(e.cols, uint16(col))
			e.values = append(e.values, narrow[j*width:(j+1)*width]...)
		}

		col++
		if col == cols {
			row, col = row+1, 0
		}
	}

	return nil
}

// flush writes what was collected.
func (e *encoder) flush(p *Part, f *safetensors.Writer) error {
	for _, x := range []struct {
		suffix string
		data   *[]byte
		at     *int64
	}{{".bitmap", &e.bits, &e.bitAt}, {".cols", &e.cols, &e.at}, {".values", &e.values, &e.valueAt}} {
		if len(*x.data) == 0 {
			continue
		}
		if err := f.WriteAt(p.Tensor+x.suffix, *x.data, *x.at); err != nil {
			return err
		}

		*x.at += int64(len(*x.data))
		*x.data = (*x.data)[:0]
	}

	return nil
}

// pointers writes where the rows begin.
func pointers(t *method.Tensor, p *Part, i int, stats []any, f *safetensors.Writer) error {
	counts := make([]uint32, t.Rows())
	for _, s := range stats {
		if e := s.(*segmentOf).e[i]; e != nil {
			for j, n := range e.counts {
				counts[e.firstRow+int64(j)] += n
			}
		}
	}

	data := binary.LittleEndian.AppendUint32(nil, 0)
	sum := uint32(0)
	for _, n := range counts {
		sum += n
		data = binary.LittleEndian.AppendUint32(data, sum)
	}

	return f.WriteTensor(p.Tensor+".rowptr", data)
}

// rowSums are sums of magnitudes per row from a first row on.
type rowSums struct {
	first int64
	sums  []float64
	err   error
}

// signs makes the passes that write the signs of a part, and the mean magnitude of every row.
func signs(t *method.Tensor, p *Part, i int, f *safetensors.Writer) []method.Pass {
	cols := t.Cols()
	return []method.Pass{{
		New: func() any { return &rowSums{first: -1} },
		Each: func(stat any, b *method.Block) {
			s := stat.(*rowSums)
			if s.first < 0 {
				s.first = b.Off / cols
			}

			r := b.Temp(0)
			vec.Sub(r, b.X[i], b.Base)

			bits := make([]byte, (len(r)+7)/8)
			for j, v := range r {
				row := (b.Off+int64(j))/cols - s.first
				for int64(len(s.sums)) <= row {
					s.sums = append(s.sums, 0)
				}

				s.sums[row] += math.Abs(float64(v))
				if v >= 0 {
					bits[j/8] |= 1 << (j % 8)
				}
			}

			if err := f.WriteAt(p.Tensor+".signs", bits, b.Off/8); err != nil && s.err == nil {
				s.err = err
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			sums, l1 := make([]float64, t.Rows()), 0.0
			for _, stat := range stats {
				s := stat.(*rowSums)
				if s.err != nil {
					return nil, s.err
				}

				for j, v := range s.sums {
					sums[s.first+int64(j)] += v
				}
			}

			var data []byte
			for _, v := range sums {
				l1 += v / float64(cols) * v // what the scale takes of the squares
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v/float64(cols))))
			}

			p.Lost = max(0, p.Energy-l1)
			return nil, f.WriteTensor(p.Tensor+".scale", data)
		},
	}}
}

// differenceOf is the pass that hands over the difference of expert i once it is complete.
func differenceOf(t *method.Tensor, i int, use func(a linalg.Matrix) error) method.Pass {
	var a linalg.Matrix
	var once sync.Once
	return method.Pass{
		New: func() any {
			once.Do(func() { a = linalg.New(int(t.Rows()), int(t.Cols())) }) // not before its turn
			return struct{}{}
		},
		Shared: true,
		Each: func(_ any, b *method.Block) {
			r := b.Temp(0)
			vec.Sub(r, b.X[i], b.Base)
			for j, v := range r {
				a.Data[b.Off+int64(j)] = float64(v)
			}
		},
		End: func([]any) ([]method.Pass, error) {
			err := use(a)
			a = linalg.Matrix{} // large matrices of all parts would otherwise live until the end
			return nil, err
		},
	}
}

// factors is the pass that decomposes the difference of a part: left = U·S, right = Vᵀ.
func factors(t *method.Tensor, p *Part, i int, f *safetensors.Writer) method.Pass {
	return differenceOf(t, i, func(a linalg.Matrix) error {
		u, values, v, err := linalg.Solver{}.TruncatedSVD(a, p.Rank, linalg.Sketch{})
		if err != nil {
			return err
		}

		// ‖A‖² less the squares of the singular values that are kept (Eckart and Young).
		p.Lost = p.Energy
		left, right := make([]float32, 0, u.Rows*p.Rank), make([]float32, 0, v.Rows*p.Rank)
		for row := range u.Rows {
			for c := range p.Rank {
				left = append(left, float32(u.At(row, c)*values[c]))
			}
		}

		for c := range p.Rank {
			p.Lost -= values[c] * values[c]
			for row := range v.Rows {
				right = append(right, float32(v.At(row, c)))
			}
		}

		// Each factor's rounding to eight bits is worth some 2⁻¹⁸ of what is kept.
		if p.Half {
			p.Lost += math.Ldexp(p.Energy-p.Lost, -17)
		}
		p.Lost = max(0, p.Lost) // rounding may take more than there was

		return errors.Join(p.narrow(f, ".left", left), p.narrow(f, ".right", right))
	})
}

// narrow writes a factor in its type.
func (p *Part) narrow(f *safetensors.Writer, suffix string, x []float32) error {
	d := p.factorType()
	data := make([]byte, len(x)*d.Bits()/8)
	if err := stream.Narrow(data, x, d); err != nil {
		return err
	}
	return f.WriteTensor(p.Tensor+suffix, data)
}
