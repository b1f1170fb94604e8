package layer

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// Tail is the last tokens of sequences that run again and again from one block up, and what they need of the
// earlier ones.
type Tail struct {
	first int // block
	past  []Past
	lens  []int       // last tokens of each sequence
	rows  []int32     // of the whole sequences' hidden state: those of the last tokens
	x     kernels.Mat // what enters the first block in them

	ops   *kernels.Ops
	taken []*kernels.Buffer
}

// Outside finds the first sequence that has no token at a position, otherwise -1.
func Outside(lens, at []int) int {
	for i, n := range lens {
		if at[i] < 0 || at[i] >= n {
			return i
		}
	}
	return -1
}

// NewTail makes room for sequences of total tokens, of which those from some position on are the last ones:
// caches of their own in the blocks from first on, and in those below one that they share.
func (s *Setup) NewTail(total, from []int, first int) (*Tail, error) {
	t := &Tail{first: first, past: make([]Past, len(total)), ops: s.ops}
	all, longest := 0, 0
	for i, n := range total {
		t.past[i].KV, t.past[i].Total = make([]KV, len(s.blocks)), n
		t.lens = append(t.lens, n-from[i])
		for j := from[i]; j < n; j++ {
			t.rows = append(t.rows, int32(all+j))
		}
		all, longest = all+n, max(longest, n)
	}

	var err error
	if t.x, err = t.take(s, len(t.rows), s.Config.Hidden); err == nil {
		err = t.caches(s, total, all, longest)
	}
	if err != nil {
		t.Free()
		return nil, err
	}

	return t, nil
}

// caches makes the caches of all blocks.
func (t *Tail) caches(s *Setup, total []int, all, longest int) error {
	// Below first, what a block writes is read by that block of the same pass only, so one cache, as long as the
	// longest sequence, serves all of these blocks and all sequences in turn.
	var own [2]kernels.Mat
	for l := range s.blocks {
		rows := all
		if l < t.first {
			rows = longest
		}

		for j := range own {
			if l > 0 && l < t.first {
				break
			}

			var err error
			if own[j], err = t.take(s, rows, s.Config.KVHeads*s.Config.HeadDim); err != nil {
				return err
			}
		}

		at := 0
		for i, n := range total {
			t.past[i].KV[l] = KV{Keys: own[0].RowRange(at, at+n), Values: own[1].RowRange(at, at+n)}
			if l >= t.first {
				at += n
			}
		}
	}

	return nil
}

func (t *Tail) take(s *Setup, rows, cols int) (kernels.Mat, error) {
	b, err := s.Device.Alloc(kernels.F32, rows*cols)
	if err != nil {
		return kernels.Mat{}, fmt.Errorf("what %d tokens leave behind: %w", rows, err)
	}
	t.taken = append(t.taken, b)
	return kernels.MatOf(b, rows, cols), nil
}

// First is the block from which a tail runs.
func (t *Tail) First() int { return t.first }

// Before is what the last tokens of every sequence find before them.
func (t *Tail) Before() []Past { return t.past }

// Enter keeps what enters a block, x, if that is the first one of a tail.
func (t *Tail) Enter(block int, x kernels.Mat) {
	if block == t.first {
		t.ops.Gather(t.x, x, t.rows, 1)
	}
}

// Filled makes the last tokens of a tail the new ones, once the whole sequences have run.
func (t *Tail) Filled(from []int) {
	for i := range t.past {
		t.past[i].Start = from[i]
		for l := range t.past[i].KV {
			t.past[i].KV[l].Rows = from[i]
		}
	}
}

// Part is the sequences lo … hi-1 of a tail, whose memory it uses: Free of the whole ends it too.
func (t *Tail) Part(lo, hi int) *Tail {
	first, n := 0, 0
	for i, k := range t.lens[:hi] {
		if i < lo {
			first += k
		} else {
			n += k
		}
	}

	return &Tail{
		first: t.first, past: t.past[lo:hi], lens: t.lens[lo:hi], rows: t.rows[first : first+n],
		x: t.x.RowRange(first, first+n), ops: t.ops,
	}
}

// Free gives the memory back.
func (t *Tail) Free() {
	for _, b := range t.taken {
		b.Free()
	}
	t.taken = nil
}

// Join puts tails one after another: their lengths, what was before them, and a copy of what enters the first block.
func (s *Setup) Join(list []*Tail) (x kernels.Mat, lens []int, past []Past, err error) {
	rows := 0
	for _, t := range list {
		lens, past, rows = append(lens, t.lens...), append(past, t.past...), rows+t.x.Rows
	}

	buf, err := s.Device.Alloc(kernels.F32, rows*s.Config.Hidden)
	if err != nil {
		return x, nil, nil, fmt.Errorf("hidden states of %d tokens: %w", rows, err)
	}

	x, rows = kernels.MatOf(buf, rows, s.Config.Hidden), 0
	for _, t := range list {
		s.ops.Convert(x.RowRange(rows, rows+t.x.Rows), t.x)
		rows += t.x.Rows
	}

	return x, lens, past, nil
}
