package method

// Largest makes the passes that find, for the difference of every input of a group of n elements to the base,
// the window of its k[i] largest magnitudes, equal ones by the lower index; done gets the windows. memory is
// what the passes keep at most, in bytes. The group has a base.
func Largest(n int64, k []int64, done func(w []Window) ([]Pass, error)) (passes []Pass, memory int64) {
	f := &finder{
		n: n, streams: len(k), deltas: true,
		keys: func(b *Block, s int) []float32 {
			if s == 0 {
				b.Deltas()
			}
			return b.X[s]
		},
		want: func(s int, _ int64) []int64 {
			if k[s] <= 0 || k[s] >= n {
				return nil
			}
			return k[s : s+1]
		},
		take: func(_, _ int, c []Cut) int64 { return c[0].K - c[0].Above },
	}

	finish := func() ([]Pass, error) {
		w := make([]Window, len(k))
		for s := range w {
			w[s] = f.window(s, k[s])
		}
		return done(w)
	}

	some := false
	for s := range k {
		some = some || len(f.want(s, n)) > 0
	}
	if !some {
		return []Pass{nothing(finish)}, 0
	}

	return f.passes(finish), f.memory()
}

// window is what the cut of a stream selects.
func (f *finder) window(s int, k int64) Window {
	switch {
	case k <= 0:
		return none
	case k >= f.n:
		return all
	}
	c := f.cuts[s][0]
	return Window{Lo: c.Value, LoEnd: c.End, lo: c.share, Hi: all.Hi, HiEnd: all.HiEnd}
}

// nothing is a pass over no element, for what has to follow passes.
func nothing(end func() ([]Pass, error)) Pass {
	return Pass{
		Stride: 1 << 62, New: func() any { return struct{}{} }, Each: func(any, *Block) {},
		End: func([]any) ([]Pass, error) { return end() },
	}
}

// All is the window that selects everything.
func All() Window { return all }

// Everything reports whether the window selects all elements.
func (w Window) Everything() bool { return w == all }

// Nothing reports whether the window selects no element.
func (w Window) Nothing() bool { return w == none }
