package lm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/safetensors"
)

// smallPages let sequences of tests have several.
const smallPages = 4

func batch(t *testing.T, m *Model, pages int, o BatchOptions) *Batch {
	t.Helper()
	o.page = smallPages
	o.Memory = int64(pages) * m.setup.PageBytes(o.page)
	b, err := m.NewBatch(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// step runs work, and gives the wanted logits of each.
func step(t *testing.T, b *Batch, work ...Work) [][][]float32 {
	t.Helper()
	got := make([][][]float32, len(work))
	err := b.Step(ctx, work, func(i, at int, logits []float32) error {
		if want := len(work[i].IDs) - 1; work[i].Logits == LastLogits && at != want {
			t.Errorf("logits of token %d, not of %d", at, want)
		}
		got[i] = append(got[i], slices.Clone(logits))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// trueLogits are those of all tokens of a sequence in one pass.
func trueLogits(t *testing.T, m *Model, ids []int32) []float32 {
	return values(forward(t, m, [][]int32{ids}, ForwardOptions{Logits: true, NoLoss: true}).Logits)
}

// Sequences that begin, grow, fork, are cut off and end in any order give what each gives alone, and the pages that
// nobody uses are all there in the end. The tolerance is float32 rounding: products of other numbers of rows add in
// another order.
func TestBatchEqualsWhole(t *testing.T) {
	eachTiny(t, recipe{}, Options{}, func(t *testing.T, m *Model) {
		if r := m.Config().Rope; r != nil && !r.Static() {
			t.Skip("frequencies depend on the length, so that tokens are not computed as they are in the whole")
		}

		r := rand.New(rand.NewPCG(3, 5))
		b := batch(t, m, 60, BatchOptions{})
		start := tokens(7, 37, 30)[0] // some sequences have parts of it in common
		var open []*Sequence
		for range 40 {
			var work []Work
			for _, s := range open {
				n := 1 + r.IntN(6)
				if s.Len()+n > 30 || r.IntN(4) == 0 {
					continue
				}
				ids := start[s.Len():][:n]
				if r.IntN(3) == 0 {
					ids = tokens(r.Uint64(), 37, n)[0]
				}
				work = append(work, Work{
					Sequence: s, IDs: ids, Prompt: r.IntN(2) == 0, Logits: Wanted(r.IntN(3)),
				})
			}

			if len(work) > 0 {
				for i, logits := range step(t, b, work...) {
					s, v := work[i].Sequence, m.Config().Vocab
					want := trueLogits(t, m, s.IDs())
					rows := map[Wanted]int{LastLogits: 1, AllLogits: len(work[i].IDs)}[work[i].Logits]
					if len(logits) != rows {
						t.Fatalf("%d rows of logits, not %d", len(logits), rows)
					}
					near(t, "logits", slices.Concat(logits...), want[len(want)-v*len(logits):], matmulTolerance)
				}
			}

			open = shuffle(t, r, b, open, start)
		}

		for _, s := range open {
			s.Close()
		}
		if u := b.Use(); u.Sequences != 0 || u.Used != 0 || b.book.spare() != len(b.book.pages) {
			t.Errorf("left: %+v", u)
		}
	})
}

// shuffle begins, forks, cuts off and ends sequences.
func shuffle(t *testing.T, r *rand.Rand, b *Batch, open []*Sequence, start []int32) []*Sequence {
	if len(open) < 6 {
		s := b.Add("")
		open = append(open, s)
		s.Begin(start[:r.IntN(len(start))+1])
	}

	at := r.IntN(len(open))
	s := open[at]
	switch r.IntN(5) {
	case 0:
		open = append(open, s.Fork())
	case 1:
		if err := s.Truncate(r.IntN(s.Len() + 1)); err != nil {
			t.Fatal(err)
		}
	case 2:
		s.Close()
		open = slices.Delete(open, at, at+1)
	}

	return open
}

// schedule runs a prompt to its end and some tokens behind it, alone or in company, and gives the logits.
func schedule(t *testing.T, m *Model, prompt, tail []int32, company int, pieces bool) [][]float32 {
	t.Helper()
	b := batch(t, m, 400, BatchOptions{})
	r := rand.New(rand.NewPCG(uint64(company), 1))
	var others []*Sequence
	for range company {
		others = append(others, b.Add(""))
	}
	if company > 0 { // somebody was there with the same beginning
		step(t, b, Work{Sequence: b.Add(""), IDs: prompt, Prompt: true})
	}

	var all [][]float32
	round := func(w Work) {
		work := []Work{w}
		for _, s := range others {
			n := 1 + r.IntN(3)
			ids := tokens(r.Uint64(), 37, n)[0]
			work = append(work, Work{Sequence: s, IDs: ids, Prompt: n > 1, Logits: NoLogits})
		}
		r.Shuffle(len(work), func(i, k int) { work[i], work[k] = work[k], work[i] })
		got := step(t, b, work...)
		for i := range work {
			if work[i].Sequence == w.Sequence {
				all = append(all, got[i]...)
			}
		}
	}

	s := b.Add("")
	left := prompt[s.Begin(prompt):]
	if company > 0 && b.sharing && len(left) == len(prompt) {
		t.Error("nothing was shared")
	}
	for len(left) > 0 {
		n := len(left)
		if pieces {
			n = min(n, smallPages*(1+r.IntN(2)))
		}
		w := Work{Sequence: s, IDs: left[:n], Prompt: true, Logits: NoLogits, Total: len(prompt)}
		if n == len(left) {
			w.Logits = LastLogits
		}
		round(w)
		left = left[n:]
	}
	for _, id := range tail {
		round(Work{Sequence: s, IDs: []int32{id}})
	}
	return all
}

// alone checks that what else is in a batch, what was shared, how a prompt is cut and how many threads there are change
// no bit.
func alone(t *testing.T, dir string, o Options) {
	t.Helper()
	prompt, tail := tokens(3, 37, 18)[0], tokens(4, 37, 5)[0]
	m := load(t, dir, cpuDevice(t, 2), o)
	want := schedule(t, m, prompt, tail, 0, false)
	if len(want) != 1+len(tail) {
		t.Fatalf("%d logits", len(want))
	}

	// Generated tokens that are computed again, as after their memory went to others, come in one piece.
	b := batch(t, m, 40, BatchOptions{})
	again := b.Add("")
	got := step(t, b, Work{Sequence: again, IDs: prompt, Prompt: true})[0]
	if b.sharing { // else a token's frequencies would be those of the piece's end
		got = append(got, step(t, b, Work{Sequence: again, IDs: tail, Logits: AllLogits})[0]...)
	}
	for i := range got {
		if !slices.Equal(got[i], want[i]) {
			t.Fatalf("again: other bits after token %d", len(prompt)-1+i)
		}
	}

	one := load(t, dir, cpuDevice(t, 1), o)
	for _, c := range []struct {
		m       *Model
		company int
		pieces  bool
	}{{m, 1, true}, {m, 4, false}, {m, 21, true}, {one, 2, true}} {
		got = schedule(t, c.m, prompt, tail, c.company, c.pieces)
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Fatalf("with %d others, in pieces %v: other bits after token %d", c.company, c.pieces,
					len(prompt)-1+i)
			}
		}
	}
}

func TestBatchBits(t *testing.T) {
	for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
		for _, dtype := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
			for name, config := range everyTiny() {
				t.Run(fmt.Sprint(name, "-", dtype, "-", p), func(t *testing.T) {
					dir := recipe{config: config, seed: 9, dtype: dtype}.write(t, t.TempDir())
					alone(t, dir, Options{Precision: p})
				})
			}
		}
	}
}

// TestBatchBitsOfForms: quantised and sparse weights have kernels of their own.
func TestBatchBitsOfForms(t *testing.T) {
	for _, f := range forms(t) {
		for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
			t.Run(fmt.Sprint(f.name, "-", p), func(t *testing.T) { alone(t, f.path, Options{Precision: p}) })
		}
	}
	for _, dtype := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
		t.Run(fmt.Sprint("sparse-", dtype), func(t *testing.T) {
			r := recipe{config: tiny()["llama"], dtype: dtype, seed: 9}
			_, packed := pairOf(t, r.write(t, t.TempDir()), inBlocks)
			alone(t, packed, Options{})
		})
	}
}

// A full batch says so, before anything is computed, and goes on when there is room.
func TestBatchFull(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"], seed: 2}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	b := batch(t, m, 3, BatchOptions{})
	ids := tokens(5, 37, 16)[0]
	first, second := b.Add(""), b.Add("")
	step(t, b, Work{Sequence: first, IDs: ids[:9], Prompt: true})

	err := b.Step(ctx, []Work{{Sequence: first, IDs: ids[9:10]}, {Sequence: second, IDs: ids[:1]}}, nil)
	if !errors.Is(err, ErrBatchFull) || first.Len() != 9 || second.Len() != 0 || len(second.table) != 0 {
		t.Fatalf("%v, %d and %d tokens", err, first.Len(), second.Len())
	}
	if n := b.Room(first); n != 3 {
		t.Errorf("room for %d more", n)
	}
	if n := b.Room(second); n != 0 {
		t.Errorf("room for %d more", n)
	}

	if err := first.Truncate(4); err != nil {
		t.Fatal(err)
	}
	got := step(t, b, Work{Sequence: second, IDs: ids[:5], Prompt: true})
	want := trueLogits(t, m, ids[:5])
	near(t, "logits", got[0][0], want[len(want)-37:], tolPaths)

	// Pages that nobody uses go, the oldest first, when somebody needs them.
	first.Close()
	second.Close()
	third := b.Add("")
	if n := third.Begin(ids); n != 4 {
		t.Errorf("began with %d tokens", n)
	}
	step(t, b, Work{Sequence: third, IDs: ids[4:12], Prompt: true})
	if u := b.Use(); u.Used != 12 || u.Kept != 0 || u.Positions != 12 {
		t.Errorf("%+v", u)
	}
}

// Only sequences of one kind share.
func TestBatchKinds(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"], seed: 2}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	b := batch(t, m, 20, BatchOptions{})
	ids := tokens(5, 37, 16)[0]
	step(t, b, Work{Sequence: b.Add("a"), IDs: ids, Prompt: true})
	for kind, want := range map[string]int{"a": 12, "": 0, "b": 0} {
		if n := b.Add(kind).Begin(ids); n != want {
			t.Errorf("%q began with %d tokens, not %d", kind, n, want)
		}
	}
	if n := b.Add("a").Begin(ids[1:]); n != 0 {
		t.Errorf("another text began with %d tokens", n)
	}
}

func TestBatchRefuses(t *testing.T) {
	m := load(t, recipe{config: tiny()["gpt2"], seed: 2}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	b, other := batch(t, m, 40, BatchOptions{}), batch(t, m, 4, BatchOptions{})
	s, closed := b.Add(""), b.Add("")
	closed.Close()
	long := tokens(5, 37, m.Config().MaxPositions+1)[0]
	for name, c := range map[string]struct {
		work []Work
		want error
	}{
		"nothing":    {nil, ErrInput},
		"no tokens":  {[]Work{{Sequence: s}}, ErrInput},
		"closed":     {[]Work{{Sequence: closed, IDs: long[:1]}}, ErrInput},
		"not its":    {[]Work{{Sequence: other.Add(""), IDs: long[:1]}}, ErrInput},
		"twice":      {[]Work{{Sequence: s, IDs: long[:1]}, {Sequence: s, IDs: long[:1]}}, ErrInput},
		"vocabulary": {[]Work{{Sequence: s, IDs: []int32{37}}}, ErrVocabulary},
		"too long":   {[]Work{{Sequence: s, IDs: long}}, ErrTooLong},
	} {
		if err := b.Step(ctx, c.work, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := m.NewBatch(BatchOptions{Memory: 1}); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	if err := s.Truncate(1); !errors.Is(err, ErrInput) {
		t.Error(err)
	}

	failed := errors.New("failed")
	err := b.Step(ctx, []Work{{Sequence: s, IDs: long[:5]}}, func(int, int, []float32) error { return failed })
	if !errors.Is(err, failed) || s.Len() != 0 || b.Use().Used != 0 {
		t.Errorf("%v: %d tokens", err, s.Len())
	}
}
