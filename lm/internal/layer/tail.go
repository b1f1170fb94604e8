package layer

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// Tail is the last tokens of sequences that run again and again from one block up, and what they need of the earlier ones.
type Tail struct {
	First int // block
	Past  []Past
	Lens  []int       // last tokens of each sequence
	Rows  []int32     // of the whole sequences' hidden state: those of the last tokens
	X     kernels.Mat // what enters the first block in them

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

// NewTail makes room for sequences of total tokens, of which those from some position on are the last ones: caches of their own in the blocks
// from first on, and in those below one that they share.
func (s *Setup) NewTail(total, from []int, first int) (*Tail, error) {
	t := &Tail{First: first, Past: make([]Past, len(total)), ops: s.ops}
	all, longest := 0, 0
	for i, n := range total {
		t.Past[i].KV, t.Past[i].Total = make([]KV, len(s.blocks)), n
		t.Lens = append(t.Lens, n-from[i])
		for j := from[i]; j < n; j++ {
			t.Rows = append(t.Rows, int32(all+j))
		}
		all, longest = all+n, max(longest, n)
	}
	var err error
	if t.X, err = t.take(s, len(t.Rows), s.Config.Hidden); err == nil {
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
	var own [2]kernels.Mat
	for l := range s.blocks {
		rows := all
		if l < t.First {
			rows = longest
		}
		for j := range own {
			if l > 0 && l < t.First {
				break
			}
			var err error
			if own[j], err = t.take(s, rows, s.Config.KVHeads*s.Config.HeadDim); err != nil {
				return err
			}
		}
		at := 0
		for i, n := range total {
			t.Past[i].KV[l] = KV{Keys: own[0].RowRange(at, at+n), Values: own[1].RowRange(at, at+n)}
			if l >= t.First {
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

// Enter keeps what enters a block, x, if that is the first one.
func (t *Tail) Enter(block int, x kernels.Mat) {
	if block == t.First {
		t.ops.Gather(t.X, x, t.Rows, 1)
	}
}

// Filled makes the last tokens the new ones, once the whole sequences have run.
func (t *Tail) Filled(from []int) {
	for i := range t.Past {
		t.Past[i].Start = from[i]
		for l := range t.Past[i].KV {
			t.Past[i].KV[l].Rows = from[i]
		}
	}
}

// Part is the sequences lo … hi-1 of a tail, whose memory it uses.
func (t *Tail) Part(lo, hi int) *Tail {
	first, n := 0, 0
	for i, k := range t.Lens[:hi] {
		if i < lo {
			first += k
		} else {
			n += k
		}
	}
	return &Tail{First: t.First, Past: t.Past[lo:hi], Lens: t.Lens[lo:hi], Rows: t.Rows[first : first+n], X: t.X.RowRange(first, first+n), ops: t.ops}
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
		lens, past, rows = append(lens, t.Lens...), append(past, t.Past...), rows+t.X.Rows
	}
	buf, err := s.Device.Alloc(kernels.F32, rows*s.Config.Hidden)
	if err != nil {
		return x, nil, nil, fmt.Errorf("hidden states of %d tokens: %w", rows, err)
	}
	x, rows = kernels.MatOf(buf, rows, s.Config.Hidden), 0
	for _, t := range list {
		s.ops.Convert(x.RowRange(rows, rows+t.X.Rows), t.X)
		rows += t.X.Rows
	}
	return x, lens, past, nil
}
