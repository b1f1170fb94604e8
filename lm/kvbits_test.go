package lm

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestKVBits: with keys and values in 8 bits every way to run a sequence gives what one pass gives, in chunks, token by
// token, as branches, as clones, in a batch, after a truncation and from an older cache; it differs from what F32
// gives, by little. The tolerance is float32 rounding of other orders of summation, which may move a channel by a step
// of 1/127 of its head's largest; a step is far below the difference to F32 that is asserted.
func TestKVBits(t *testing.T) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			dir := recipe{config: config, seed: 9}.write(t, t.TempDir())
			full := load(t, dir, cpu.New(cpu.Options{}), Options{})
			m := load(t, dir, cpu.New(cpu.Options{}), Options{KVBits: 8})
			if r := m.Config().Rope; r != nil && !r.Static() {
				t.Skip("frequencies depend on the length, so that tokens are not computed as they are in the whole")
			}

			const step = 2e-3
			ids := tokens(3, 37, 40)[0]
			v := m.Config().Vocab
			want := trueLogits(t, m, ids)
			plain := trueLogits(t, full, ids)
			if slices.Equal(want, plain) {
				t.Error("8 bits change nothing")
			}
			near(t, "beside F32", want, plain, 0.1)

			s := session(t, m, SessionOptions{KeepAll: true})
			got := slices.Clone(appendIDs(t, s, ids[:17]))
			near(t, "chunk", got, want[16*v:17*v], step)
			for i := 17; i < 25; i++ {
				near(t, "token", appendIDs(t, s, ids[i:i+1]), want[i*v:(i+1)*v], step)
			}
			if err := s.Truncate(20); err != nil {
				t.Fatal(err)
			}
			c, err := s.Clone(1)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			near(t, "clone", appendIDs(t, c, ids[20:40]), want[39*v:], step)

			rows, err := s.step(ctx, ids[20:30])
			if err != nil {
				t.Fatal(err)
			}
			near(t, "rows", slices.Concat(rows...), want[20*v:30*v], step)
			h, err := s.Branches(ctx, []Branch{{-1, []int32{1, 2}}, {-1, ids[30:33]}, {1, ids[33:36]}, {1, ids[33:35]}})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Free()
			logits, err := m.Logits(h, 7, 9)
			if err != nil {
				t.Fatal(err)
			}
			defer logits.Buf.Free()
			near(t, "branches", values(logits), slices.Concat(want[35*v:36*v], want[34*v:35*v]), step)

			b := batch(t, m, 20, BatchOptions{})
			near(t, "batch", step1(t, b, ids), want[39*v:], step)
		})
	}
}

func appendIDs(t *testing.T, s *Session, ids []int32) []float32 {
	t.Helper()
	logits, err := s.Append(ctx, ids)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// step1 runs a prompt in a batch.
func step1(t *testing.T, b *Batch, ids []int32) []float32 {
	return step(t, b, Work{Sequence: b.Add(""), IDs: ids, Prompt: true})[0][0]
}

// The bytes that a session keeps are those that were documented, and threads change no bit.
func TestKVBitsMemory(t *testing.T) {
	dir := recipe{config: tiny()["llama"], seed: 9}.write(t, t.TempDir())
	ids := tokens(3, 37, 40)[0]
	var first []float32
	for _, threads := range []int{1, 3} {
		m := load(t, dir, cpuDevice(t, threads), Options{KVBits: 8})
		s := session(t, m, SessionOptions{})
		got := slices.Clone(appendIDs(t, s, ids))
		if first == nil {
			first = got
		} else if !slices.Equal(got, first) {
			t.Error("other bits with other threads")
		}

		c := m.Config()
		per := int64(2 * len(m.blocks) * c.KVHeads * (c.HeadDim + 4)) // bytes of a token
		if n := s.KVBytes(); n%per != 0 || n < per*int64(len(ids)) {
			t.Errorf("%d bytes, not a multiple of %d for %d tokens", n, per, len(ids))
		}
		plain := session(t, load(t, dir, cpuDevice(t, 1), Options{}), SessionOptions{})
		appendIDs(t, plain, ids)
		ratio := float64(s.KVBytes()) / float64(plain.KVBytes())
		if want := float64(c.HeadDim+4) / float64(4*c.HeadDim); math.Abs(ratio-want) > 1e-9 {
			t.Errorf("%g of the memory, not %g", ratio, want)
		}
	}
}

func TestKVBitsRefuses(t *testing.T) {
	dir := recipe{config: tiny()["llama"], seed: 9}.write(t, t.TempDir())
	if _, err := Load(ctx, dir, ref.New(), Options{KVBits: 4}); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	m := load(t, dir, cpu.New(cpu.Options{}), Options{KVBits: 8})
	if _, err := m.Backward(ctx, tokens(3, 37, 5), BackwardOptions{}); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
}

// TestKVBitsInBatches: pages in 8 bits hold 3.4 times as many positions or more, and what a sequence gives is the same
// bits alone, in company, behind a shared beginning, and as the fork of another.
func TestKVBitsInBatches(t *testing.T) {
	dir := recipe{config: tiny()["llama"], seed: 9}.write(t, t.TempDir())
	full := load(t, dir, cpu.New(cpu.Options{}), Options{})
	m := load(t, dir, cpu.New(cpu.Options{}), Options{KVBits: 8})
	const memory = 1 << 20
	of := func(m *Model) int {
		b, err := m.NewBatch(BatchOptions{Memory: memory})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		return b.Use().Positions
	}
	d := m.Config().HeadDim
	if few, many := of(full), of(m); float64(many) < 0.95*float64(few)*4*float64(d)/float64(d+4) {
		t.Errorf("%d positions, in 8 bits %d", few, many)
	}

	ids := tokens(3, 37, 40)[0]
	alone := func() (list [][]float32) {
		b := batch(t, m, 20, BatchOptions{})
		s := b.Add("")
		step(t, b, Work{Sequence: s, IDs: ids[:24], Prompt: true})
		for _, id := range ids[24:30] {
			list = append(list, slices.Clone(step(t, b, Work{Sequence: s, IDs: []int32{id}})[0][0]))
		}
		return list
	}()

	b := batch(t, m, 40, BatchOptions{})
	first := b.Add("")
	step(t, b, Work{Sequence: first, IDs: ids[:24], Prompt: true})
	second := b.Add("")
	n := second.Begin(ids[:24])
	if n == 0 {
		t.Fatal("no tokens are shared")
	}
	step(t, b, Work{Sequence: second, IDs: ids[n:24], Prompt: true})
	other := b.Add("")
	step(t, b, Work{Sequence: other, IDs: ids[5:38], Prompt: true})
	for i, id := range ids[24:30] {
		if i == 2 { // in the middle of a page of 4
			first = first.Fork()
		}
		got := step(t, b, Work{Sequence: other, IDs: ids[i : i+1]}, Work{Sequence: first, IDs: []int32{id}},
			Work{Sequence: second, IDs: []int32{id}})
		for k, x := range got[1:] {
			if !slices.Equal(x[0], alone[i]) {
				t.Errorf("token %d of sequence %d differs from that alone", i, k)
			}
		}
	}
}
