package method

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// bytes counts what a segment has collected, by capacity.
func (t *tallied) bytes() (n int64) {
	for s := range t.keys {
		for i := range t.keys[s] {
			n += 4 * int64(cap(t.keys[s][i]))
		}
	}
	return n
}

// TestTallyMemory: what a threshold collects stays within what is planned, however many models there are and however
// large: the tensors of many small models take counters of their own size, and where many models are large,
// histograms decide.
func TestTallyMemory(t *testing.T) {
	for _, c := range []struct{ n, models int }{{60_000, 200}, {500_000, 200}, {1 << 20, 3}, {1 << 20, 60}} {
		t.Run(fmt.Sprintf("%d of %d", c.models, c.n), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(c.n)))
			x := make([]uint16, c.n)
			for i := range x {
				x[i] = kernels.ToBF16(float32(r.NormFloat64()))
			}

			base := make([]uint16, c.n)
			f := &finder{
				n: int64(c.n), streams: c.models, deltas: true,
				keys: func(b *Block, s int) []float32 { return b.X[s] },
				want: func(int, int64) []int64 { return []int64{int64(c.n) * 3 / 10} },
				take: func(_, _ int, c []Cut) int64 { return c[0].K - c[0].Above },
				draw: func(s, _ int, off int64) vec.Key { return vec.Key{A: uint32(s), B: uint32(off >> drawBits)} },
			}

			todo := f.passes(func() ([]Pass, error) { return nil, nil })
			for len(todo) > 0 {
				p := todo[0]
				stats, collected := runWords(&p, x, base, c.models)
				if plan := f.memory(); collected > plan {
					t.Errorf("a pass holds %d bytes, %d are planned", collected, plan)
				}

				more, err := p.End(stats)
				if err != nil {
					t.Fatal(err)
				}

				todo = append(more, todo[1:]...)
			}

			if f.cuts[c.models-1][0].Equal == 0 {
				t.Error("no cut was found")
			}
			if plan := f.memory(); plan > 512<<20 {
				t.Errorf("%d bytes are planned", plan)
			}
		})
	}
}

// runWords runs a pass over models that are all the same words, as packages do that feed programs, and counts the
// bytes that stay with it.
func runWords(p *Pass, x, base []uint16, models int) (stats []any, bytes int64) {
	n := int64(len(x))
	size, step := int64(WordsSize), int64(WordsSize)
	if p.Stride > 0 {
		size, step = SampleRun, p.Stride
	}

	segment := int64(SegmentSize)
	if p.Shared {
		segment = n
	}

	for at, number := int64(0), 0; at < n; at, number = at+segment, number+1 {
		stat := p.New()
		stats = append(stats, stat)
		if p.Only != nil && *p.Only != number {
			continue
		}

		w := Words{}
		for first := (at + step - 1) / step * step; first < min(at+segment, n); first += step {
			end := min(first+size, n)
			w.Index = first
			w.Off = first
			w.Base = base[first:end]
			w.X = w.X[:0]
			for range models {
				w.X = append(w.X, x[first:end])
			}

			if p.Words == nil {
				eachWords(p, stat, &w)
			} else if !p.Words(stat, &w) {
				panic("not finite")
			}
		}
	}

	for _, stat := range stats {
		switch s := stat.(type) {
		case *tallied:
			bytes += s.bytes()
		case [][]uint32:
			for _, list := range s {
				bytes += 4 * int64(cap(list))
			}
		case []drawn:
			for _, d := range s {
				bytes += int64(cap(d.found)) * 16
			}
		case [][]int64:
			for _, list := range s {
				bytes += 8 * int64(cap(list))
			}
		}
	}

	return stats, bytes
}

// eachWords is a pass over the same elements as float32.
func eachWords(p *Pass, stat any, w *Words) {
	b := Block{Index: w.Index, Off: w.Off, Out: make([]float32, w.Len())}
	for range w.X {
		b.X = append(b.X, make([]float32, w.Len()))
	}

	for i, v := range w.X[0] {
		for _, x := range b.X {
			x[i] = kernels.FromBF16(v) - kernels.FromBF16(w.Base[i])
		}
	}

	p.Each(stat, &b)
}
