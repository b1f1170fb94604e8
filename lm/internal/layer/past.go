package layer

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// KV is the keys and values of one block: Rows of them are in use, and stand for the last Rows positions.
type KV struct {
	Keys, Values kernels.Mat // F32 [capacity, kv_heads·head_dim]
	Rows         int

	mass  *mass      // the attention that rows have had, where some are evicted
	bytes [2]kvBytes // keys and values instead, of a setup with KVBytes
}

// capacity is how many rows there is room for.
func (kv *KV) capacity() int { return max(kv.Keys.Rows, kv.bytes[0].Rows()) }

// inBytes reports whether keys and values are kept in 8 bits.
func (kv *KV) inBytes() bool { return !kv.bytes[0].IsZero() }

// Past is what came before the new tokens of one sequence of a pass, and room for what they add.
type Past struct {
	KV    []KV   // keys and values per block, with free rows behind those in use; sequences may share them
	Pages *Pages // where they lie instead, of all sequences of a pass or of none; Start counts the rows in use
	Extra int    // rows behind KV.Rows that are the sequence's past as well: written by sequences earlier in the pass
	Start int    // position of the first new token
	Total int    // tokens of the whole sequence, if more follow in later passes
	Weigh bool   // count the attention that the rows of KV have, which are watched
}

// Branches lays out sequences that continue one of a given length, or each other: a parent, by its place in the
// list, must be the sequence before or one of that one's ancestors (-1: the given one). deepest is how many
// rows they need at most behind those in use; bad is the first that does not follow its parent, otherwise -1.
func Branches(kv []KV, length int, lens, parents []int) (past []Past, deepest, bad int) {
	past = make([]Past, len(lens))
	for i, n := range lens {
		extra, b := 0, i-1
		for b >= 0 && b > parents[i] {
			b = parents[b]
		}
		if b != parents[i] {
			return nil, 0, i
		}
		if b >= 0 {
			extra = past[b].Extra + lens[b]
		}

		past[i] = Past{KV: kv, Extra: extra, Start: length + extra}
		deepest = max(deepest, extra+n)
	}

	return past, deepest, -1
}

// at gives the keys and values of a block and the first free row.
func (s *Past) at(b *Block) (kv *KV, row int) {
	kv = &s.KV[b.Index]
	return kv, kv.Rows + s.Extra
}

// span gives the position where a sequence starts and its tokens in the end, 0 if these are all.
func (p *Pass) span(seq int) (start, total int) {
	if p.Past == nil {
		return 0, 0
	}
	return p.Past[seq].Start, p.Past[seq].Total
}

// attendPast computes attention with earlier keys and values. New ones are written behind them, sequence by
// sequence, so that a sequence may overwrite what an earlier one of the pass has left in rows that it does not
// count as its past.
func (p *Pass) attendPast(b *Block, out kernels.Mat, q, k, v heads) error {
	a := p.shape(b, q.stride, p.Config.HeadDim)
	d := p.Config.HeadDim
	p.scratch.sequences = p.scratch.sequences[:0] // of a pass that an error has ended
	lo, longest := 0, 0
	for i := range p.Past {
		if p.Past[i].Pages == nil {
			_, at := p.Past[i].at(b)
			longest = max(longest, at+p.lens[i])
		}
	}

	var last *KV // whose keys and values are there as floats
	for i := range p.Past {
		hi := lo + p.lens[i]
		if p.Past[i].Pages != nil {
			if err := p.attendPages(b, i, lo, out, q, k, v); err != nil {
				return err
			}
			lo = hi
			continue
		}

		kv, at := p.Past[i].at(b)
		end := at + hi - lo
		if hi > lo {
			newK, newV := heads{k.mat.RowRange(lo, hi), k.stride}, heads{v.mat.RowRange(lo, hi), v.stride}
			keys, values := kv.Keys, kv.Values
			switch {
			case kv.inBytes():
				kv.bytes[0].put(p.threads, at, newK)
				kv.bytes[1].put(p.threads, at, newV)
				known := 0
				if last == kv {
					known = at // a sequence continues the one before, or goes on where that has branched off
				}
				last = kv
				var err error
				if keys, values, err = p.floats(kv, known, end, longest); err != nil {
					return err
				}
			case !p.cached(): // which has written them already
				p.copyHeads(heads{keys.RowRange(at, end), d}, newK)
				p.copyHeads(heads{values.RowRange(at, end), d}, newV)
			}

			a.Pos = at
			if p.t.full || b.Sinks != nil {
				a.LSE = p.mat(sLSE, q.mat.Rows, p.Config.Heads).RowRange(lo, hi)
			}

			from := 0
			if p.Company == Few && a.Window > 0 {
				// How many keys outside of the window are still there depends on when rows were last moved, and how
				// a kernel cuts keys into blocks on how many there are.
				from = max(0, at+1-a.Window)
				a.Pos = at - from
			}

			p.ops.Attention(out.RowRange(lo, hi), q.mat.RowRange(lo, hi), keys.RowRange(from, end),
				values.RowRange(from, end), a)
			if p.Past[i].Weigh {
				newQ := heads{q.mat.RowRange(lo, hi), q.stride}
				if err := p.weigh(b, kv, newQ, keys.RowRange(0, end), at); err != nil {
					return err
				}
			}
		}

		lo = hi
	}

	p.attendGathered()
	return nil
}

// attendPastBackward computes the gradients of attendPast for the new queries, keys and values; those of
// earlier keys and values are dropped. The caches must be as the recorded run left them.
func (p *Pass) attendPastBackward(b *Block, d [3]heads, dout, out kernels.Mat) error {
	q, k, _ := p.recordedHeads(b, out.Rows)
	longest := 0
	for i := range p.Past {
		_, at := p.Past[i].at(b)
		longest = max(longest, at+p.lens[i])
	}

	a := p.shape(b, q.stride, p.Config.HeadDim)
	cols := p.Config.KVHeads * p.Config.HeadDim
	if err := Grow(p.Device, &p.scratch.past, kernels.F32, 2*longest*cols); err != nil {
		return fmt.Errorf("gradients of %d keys and values: %w", longest, err)
	}

	both := kernels.MatOf(p.scratch.past, 2*longest, cols)
	lse := p.mat(sLSE, out.Rows, p.Config.Heads)
	lo := 0
	for i := range p.Past {
		kv, at := p.Past[i].at(b)
		hi := lo + p.lens[i]
		end := at + hi - lo
		if hi > lo {
			// The kernel computes the gradients of all keys; those of earlier tokens are dropped.
			dk, dv := both.RowRange(0, end), both.RowRange(longest, longest+end)
			a.Pos, a.LSE = at, lse.RowRange(lo, hi)
			p.ops.AttentionBackward(d[0].mat.RowRange(lo, hi), dk, dv, dout.RowRange(lo, hi), q.mat.RowRange(lo, hi),
				kv.Keys.RowRange(0, end), kv.Values.RowRange(0, end), out.RowRange(lo, hi), a)
			p.copyHeads(heads{d[1].mat.RowRange(lo, hi), k.stride}, heads{dk.RowRange(at, end), p.Config.HeadDim})
			p.copyHeads(heads{d[2].mat.RowRange(lo, hi), k.stride}, heads{dv.RowRange(at, end), p.Config.HeadDim})
		}

		lo = hi
	}

	return nil
}

// cacheChunk is the number of rows by which a cache grows at least.
const cacheChunk = 256

// Room makes space for n more rows in a block's cache: rows that have left the window (0: there is none) go
// first, then the cache grows.
func (s *Setup) Room(kv *KV, n, window int) error {
	if kv.Rows+n <= kv.capacity() {
		return nil
	}

	keep := kv.Rows
	if window > 0 {
		keep = min(keep, window-1)
	}

	// Moving is worth it only where it makes as much room as it copies, or every token would move a whole window.
	if drop := kv.Rows - keep; drop >= keep && drop >= n && kv.capacity() > 0 {
		for _, w := range kv.bytes {
			if !w.IsZero() {
				w.copy(0, w, kv.Rows-keep, kv.Rows)
			}
		}
		for _, x := range []kernels.Mat{kv.Keys, kv.Values} { // the rows do not overlap with where they go
			if x.Buf == nil {
				continue
			}
			s.ops.Convert(x.RowRange(0, keep), x.RowRange(kv.Rows-keep, kv.Rows))
		}
		kv.Rows = keep
		return nil
	}

	rows := max(keep+n, keep+keep/2, 2*min(keep, window)+n)
	fresh, err := s.CopyKV(kv, kv.Rows-keep, kv.Rows, (rows+cacheChunk-1)/cacheChunk*cacheChunk)
	if err != nil {
		return err
	}

	kv.Free()
	*kv = fresh
	return nil
}

// CopyKV makes a cache of a number of rows from rows [lo, hi) of another.
func (s *Setup) CopyKV(kv *KV, lo, hi, rows int) (KV, error) {
	cols := s.Config.KVHeads * s.Config.HeadDim
	fresh := KV{Rows: hi - lo}
	if kv.mass != nil {
		fresh.mass = &mass{heads: kv.mass.heads, sums: slices.Clone(kv.mass.sums[lo*kv.mass.heads:])}
	}
	if s.KVBytes {
		for i := range fresh.bytes {
			var err error
			if fresh.bytes[i], err = s.newBytes(rows, heapBytes); err != nil {
				return KV{}, err
			}
			if hi > lo {
				fresh.bytes[i].copy(0, kv.bytes[i], lo, hi)
			}
		}
		return fresh, nil
	}

	for _, x := range []struct{ dst, src *kernels.Mat }{{&fresh.Keys, &kv.Keys}, {&fresh.Values, &kv.Values}} {
		b, err := s.Device.Alloc(kernels.F32, rows*cols)
		if err != nil {
			fresh.Free()
			return KV{}, fmt.Errorf("keys and values of %d tokens: %w", rows, err)
		}

		*x.dst = kernels.MatOf(b, rows, cols)
		if hi > lo {
			s.ops.Convert(x.dst.RowRange(0, hi-lo), x.src.RowRange(lo, hi))
		}
	}

	return fresh, nil
}

// Free gives the memory back.
func (kv *KV) Free() {
	for _, x := range []kernels.Mat{kv.Keys, kv.Values} {
		if x.Buf != nil {
			x.Buf.Free()
		}
	}
	*kv = KV{}
}
