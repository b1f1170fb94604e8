package layer

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// Pool is memory for the keys and values of many sequences, in pages of as many positions each. What a page holds, and
// whose it is, is the caller's business.
type Pool struct {
	Page int // positions of a page

	s            *Setup
	keys, values []kernels.Mat // of each block, F32 [pages·Page, kv_heads·head_dim]
	bytes        [][2]kvBytes  // keys and values of each block instead, of a setup with KVBytes
	together     *kernels.Buffer
}

// PageBytes is what a page of so many positions takes, over all blocks.
func (s *Setup) PageBytes(positions int) int64 {
	head := 4 * int64(s.Config.HeadDim)
	if s.KVBytes {
		head = int64(s.Config.HeadDim) + 4
	}
	return 2 * int64(len(s.blocks)) * int64(positions) * int64(s.Config.KVHeads) * head
}

// NewPool makes room for a number of pages.
func (s *Setup) NewPool(pages, positions int) (*Pool, error) {
	p := &Pool{Page: positions, s: s}
	rows, cols := pages*positions, s.Config.KVHeads*s.Config.HeadDim
	for range s.blocks {
		if s.KVBytes {
			var both [2]kvBytes
			for i := range both {
				var err error
				if both[i], err = s.newBytes(rows, s.poolBytes); err != nil {
					for _, w := range both {
						w.free()
					}
					p.Free()
					return nil, err
				}
			}
			p.bytes = append(p.bytes, both)
			continue
		}
		for _, list := range []*[]kernels.Mat{&p.keys, &p.values} {
			b, err := s.poolBuffer(kernels.F32, rows*cols)
			if err != nil {
				p.Free()
				return nil, fmt.Errorf("keys and values of %d positions: %w", rows, err)
			}
			*list = append(*list, kernels.MatOf(b, rows, cols))
		}
	}
	return p, nil
}

// apart is a device that gives memory which the collector does not manage.
type apart interface {
	AllocApart(t kernels.DType, n int) (*kernels.Buffer, error)
}

// poolBuffer makes room for a part of a pool, which is large, lives long, and is let go of in one place: on a heap, the
// collector would let as much garbage pile up as the pool is large.
func (s *Setup) poolBuffer(t kernels.DType, n int) (*kernels.Buffer, error) {
	if d, ok := s.Device.(apart); ok {
		return d.AllocApart(t, n)
	}
	return s.Device.Alloc(t, n)
}

// poolBytes is poolBuffer in host memory, whatever the device.
func (s *Setup) poolBytes(t kernels.DType, n int) (*kernels.Buffer, error) {
	if _, ok := s.Device.(apart); ok {
		return s.poolBuffer(t, n)
	}
	return heapBytes(t, n)
}

// Free gives the memory back.
func (p *Pool) Free() {
	for _, both := range p.bytes {
		for _, w := range both {
			w.free()
		}
	}
	for _, m := range append(p.keys, p.values...) {
		m.Buf.Free()
	}
	if p.together != nil {
		p.together.Free()
	}
	*p = Pool{Page: p.Page, s: p.s}
}

// Copy copies the first rows of a page to another, in all blocks.
func (p *Pool) Copy(dst, src int32, rows int) {
	for _, both := range p.bytes {
		for _, w := range both {
			w.copy(int(dst)*p.Page, w, int(src)*p.Page, int(src)*p.Page+rows)
		}
	}
	for l := range p.keys {
		for _, m := range []kernels.Mat{p.keys[l], p.values[l]} {
			to, from := int(dst)*p.Page, int(src)*p.Page
			p.s.ops.Convert(m.RowRange(to, to+rows), m.RowRange(from, from+rows))
		}
	}
}

// run is rows of a sequence, from first on, that lie one after another in the pool, from at on.
type run struct{ first, at, rows int }

// runs lists where positions [lo, hi) of a sequence lie.
func (p *Pool) runs(table []int32, lo, hi int) []run {
	var list []run
	for lo < hi {
		at := int(table[lo/p.Page])*p.Page + lo%p.Page
		n := min(p.Page-lo%p.Page, hi-lo)
		if k := len(list) - 1; k >= 0 && list[k].at+list[k].rows == at {
			list[k].rows += n
		} else {
			list = append(list, run{lo, at, n})
		}
		lo += n
	}
	return list
}

// view gives the first n keys and values of a sequence as matrices: as they lie where pages follow each other,
// otherwise copied together, which costs about what attention's own reading of them does. Those in 8 bits become
// floats.
func (p *Pool) view(l int, table []int32, n int) (keys, values kernels.Mat, err error) {
	list := p.runs(table, 0, n)
	if len(list) == 1 && p.bytes == nil {
		at := list[0].at
		return p.keys[l].RowRange(at, at+n), p.values[l].RowRange(at, at+n), nil
	}

	cols := p.s.Config.KVHeads * p.s.Config.HeadDim
	if err := Grow(p.s.Device, &p.together, kernels.F32, 2*n*cols); err != nil {
		return keys, values, fmt.Errorf("keys and values of %d positions: %w", n, err)
	}

	both := kernels.MatOf(p.together, 2*n, cols)
	keys, values = both.RowRange(0, n), both.RowRange(n, 2*n)
	for _, r := range list {
		if p.bytes != nil {
			for i, to := range []kernels.Mat{keys, values} {
				p.s.ops.ExpandQuantised(to.RowRange(r.first, r.first+r.rows), p.bytes[l][i].RowRange(r.at, r.at+r.rows))
			}
			continue
		}
		p.s.ops.Convert(keys.RowRange(r.first, r.first+r.rows), p.keys[l].RowRange(r.at, r.at+r.rows))
		p.s.ops.Convert(values.RowRange(r.first, r.first+r.rows), p.values[l].RowRange(r.at, r.at+r.rows))
	}
	return keys, values, nil
}

// Pages is where the keys and values of a sequence lie: page i holds positions i·Page to (i+1)·Page-1.
type Pages struct {
	*Pool
	Table []int32 // with room for the new tokens
}

// parts lists the first n keys and values as they lie.
func (p *Pages) parts(l, n int) (keys, values []kernels.Mat) {
	for _, r := range p.runs(p.Table, 0, n) {
		keys = append(keys, p.keys[l].RowRange(r.at, r.at+r.rows))
		values = append(values, p.values[l].RowRange(r.at, r.at+r.rows))
	}
	return keys, values
}

// gathers reports whether attention of the tokens of sequences in these pages waits for those of the others: that of
// prompts is large enough alone, and keys and values in 8 bits become floats in memory that sequences share.
func (p *Pass) gathers(pages *Pages) bool {
	_, ok := kernels.As[kernels.Attender](p.Device)
	return ok && p.Company == Few && pages.bytes == nil
}

// attendGathered computes the attention that has been put off.
func (p *Pass) attendGathered() {
	list := p.scratch.sequences
	if len(list) == 0 {
		return
	}
	device, _ := kernels.As[kernels.Attender](p.Device)
	device.Attentions(list)
	clear(list)
	p.scratch.sequences = list[:0]
}

// attendPages computes attention of the rows from lo on of a pass: the new tokens of a sequence whose keys and values
// lie in pages.
func (p *Pass) attendPages(b *Block, seq, lo int, out kernels.Mat, q, k, v heads) error {
	pages, start := p.Past[seq].Pages, p.Past[seq].Start
	end, d := start+p.lens[seq], p.Config.HeadDim
	for _, r := range pages.runs(pages.Table, start, end) {
		from, to := lo+r.first-start, lo+r.first-start+r.rows
		if pages.bytes != nil {
			both := pages.bytes[b.Index]
			both[0].put(p.threads, r.at, heads{k.mat.RowRange(from, to), k.stride})
			both[1].put(p.threads, r.at, heads{v.mat.RowRange(from, to), v.stride})
			continue
		}
		p.copyHeads(heads{pages.keys[b.Index].RowRange(r.at, r.at+r.rows), d},
			heads{k.mat.RowRange(from, to), k.stride})
		p.copyHeads(heads{pages.values[b.Index].RowRange(r.at, r.at+r.rows), d},
			heads{v.mat.RowRange(from, to), v.stride})
	}

	// All sequences' tokens take part in one call of a device that has one, behind the last sequence.
	gather := p.gathers(pages)
	var keys, values kernels.Mat
	if !gather {
		var err error
		if keys, values, err = pages.view(b.Index, pages.Table, end); err != nil {
			return err
		}
	}

	// How a kernel cuts queries and keys into blocks depends on how many there are. So that no bit depends on how a
	// prompt is cut into passes, its queries go page by page, and those of generation one by one.
	a := p.shape(b, q.stride, d)
	for at := start; at < end; {
		next := at + 1
		if p.Company != Few {
			next = min(end, (at/pages.Page+1)*pages.Page)
		}

		from, to := lo+at-start, lo+next-start
		a.Pos = at
		if b.Sinks != nil {
			a.LSE = p.mat(sLSE, q.mat.Rows, p.Config.Heads).RowRange(from, to)
		}
		dst, rows := out.RowRange(from, to), q.mat.RowRange(from, to)
		if gather {
			s := kernels.SequenceAttention{Attention: a, Dst: dst, Q: rows}
			s.K, s.V = pages.parts(b.Index, next)
			p.scratch.sequences = append(p.scratch.sequences, s)
		} else {
			p.ops.Attention(dst, rows, keys.RowRange(0, next), values.RowRange(0, next), a)
		}
		at = next
	}
	return nil
}
