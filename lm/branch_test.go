package lm

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// Branches give what the whole sequences give, whatever they share.
func TestBranchesEqualWhole(t *testing.T) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			m := load(t, recipe{config: config, seed: 9}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
			if r := m.Config().Rope; r != nil && !r.Static() {
				t.Skip("frequencies depend on the length")
			}

			seq := tokens(3, 37, 40)[0]
			list := []Branch{{-1, seq[12:20]}, {0, seq[20:23]}, {0, seq[30:37]}, {2, seq[37:40]}, {-1, seq[25:26]}}
			whole := [][]int32{
				slices.Concat(seq[:12], seq[12:20]), slices.Concat(seq[:12], seq[12:20], seq[20:23]),
				slices.Concat(seq[:12], seq[12:20], seq[30:37]),
				slices.Concat(seq[:12], seq[12:20], seq[30:37], seq[37:40]), slices.Concat(seq[:12], seq[25:26]),
			}

			s := session(t, m, SessionOptions{KeepAll: true})
			if _, err := s.Append(ctx, seq[:12]); err != nil {
				t.Fatal(err)
			}

			for range 2 { // the session stays as it is
				h, err := s.Branches(ctx, list)
				if err != nil {
					t.Fatal(err)
				}

				row := 0
				for i, ids := range whole {
					row += len(list[i].IDs)
					got, err := m.Logits(h, row-1)
					if err != nil {
						t.Fatal(err)
					}

					want := forward(t, m, [][]int32{ids}, ForwardOptions{Logits: true}).Logits
					near(t, "logits", values(got), values(want.RowRange(want.Rows-1, want.Rows)), tolPaths)
				}

				h.Free()
			}
		})
	}
}

// Sessions that take steps together, from a common beginning, give what each gives alone.
func TestStepEqualsAppend(t *testing.T) {
	eachTiny(t, recipe{}, Options{}, func(t *testing.T, m *Model) {
		if r := m.Config().Rope; r != nil && !r.Static() {
			t.Skip("frequencies depend on the length")
		}

		ids := tokens(4, 37, 30)[0]
		first := session(t, m, SessionOptions{})
		if _, err := first.Append(ctx, ids[:9]); err != nil {
			t.Fatal(err)
		}

		second, err := first.Clone(4)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()

		third := session(t, m, SessionOptions{})
		steps := [][][]int32{{ids[9:14], ids[14:15], ids[:3]}, {ids[15:16], ids[16:17], ids[17:18]}}
		done := [][]int32{ids[:9:9], ids[:9:9], nil}
		for _, step := range steps {
			h, err := m.Step(ctx, []*Session{first, second, third}, step)
			if err != nil {
				t.Fatal(err)
			}

			row := 0
			for i := range step {
				done[i] = append(done[i], step[i]...)
				row += len(step[i])
				got, err := m.Logits(h, row-1)
				if err != nil {
					t.Fatal(err)
				}

				want := forward(t, m, [][]int32{done[i]}, ForwardOptions{Logits: true}).Logits
				near(t, "logits", values(got), values(want.RowRange(want.Rows-1, want.Rows)), tolPaths)
			}

			h.Free()
		}

		if first.Len() != 15 || second.Len() != 11 || third.Len() != 4 {
			t.Errorf("lengths %d, %d, %d", first.Len(), second.Len(), third.Len())
		}
	})
}

func TestScore(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"], seed: 2}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	ids := tokens(5, 37, 12)
	r := forward(t, m, ids, ForwardOptions{Logits: true})
	s := session(t, m, SessionOptions{})
	h, err := s.Branches(ctx, []Branch{{-1, ids[0]}})
	if err != nil {
		t.Fatal(err)
	}

	losses, best, err := m.Score(ctx, h, []int32{0, 5, 10, 11},
		[][]int32{{ids[0][1]}, {3, ids[0][6]}, {ids[0][11]}, nil})
	if err != nil {
		t.Fatal(err)
	}

	for i, row := range []int{0, 5, 10} {
		if got, want := losses[i][len(losses[i])-1], r.LossPerToken[0][row]; math.Abs(got-want) > 1e-5 {
			t.Errorf("row %d: loss %g, want %g", row, got, want)
		}
	}

	for i, row := range []int{0, 5, 10, 11} {
		logits := r.Logits.RowF32(row)
		if want := slices.Index(logits, slices.Max(logits)); best[i] != int32(want) {
			t.Errorf("row %d: best %d, want %d", row, best[i], want)
		}
	}

	if len(losses[3]) != 0 {
		t.Errorf("no token wanted: losses %g", losses[3])
	}

	h.X.RowF32(5)[0] = float32(math.NaN())
	if _, best, err = m.Score(ctx, h, []int32{5}, [][]int32{{1}}); err != nil || best[0] != -1 {
		t.Errorf("a row of NaN: best %d, %v", best[0], err)
	}
}

func TestBranchFaults(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"], seed: 2}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	s := session(t, m, SessionOptions{})
	for name, list := range map[string][]Branch{
		"none": nil, "itself": {{0, []int32{1}}}, "later": {{1, []int32{1}}, {-1, []int32{1}}},
		"below": {{-2, []int32{1}}},
		"done":  {{-1, []int32{1}}, {-1, []int32{2}}, {0, []int32{3}}},
	} {
		if _, err := s.Branches(ctx, list); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := s.Branches(ctx, []Branch{{-1, []int32{1, 1 << 30}}}); !errors.Is(err, ErrVocabulary) {
		t.Error(err)
	}
	if _, err := m.Step(ctx, []*Session{s}, nil); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	if _, _, err := m.Score(ctx, &Hidden{X: kernels.Mat{}}, []int32{1}, nil); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
}

func session(t *testing.T, m *Model, o SessionOptions) *Session {
	t.Helper()
	s, err := m.NewSession(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
