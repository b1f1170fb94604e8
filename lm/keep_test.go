package lm

import (
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
)

// TestKeep: texts of a conversation, each of which begins with the one before and a part of its answer, come out as
// from sessions of their own, and only tokens that are new are run.
func TestKeep(t *testing.T) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			m := load(t, recipe{config: config, seed: 9}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
			keeps := m.Config().Rope == nil || m.Config().Rope.Static()
			s, err := m.NewSession(SessionOptions{KeepAll: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()

			prompt := []int32{1, 5, 9, 2, 7}
			had := 0
			for turn := range 4 {
				want := 0
				if keeps && turn > 0 {
					want = min(had, len(prompt)-1)
				}
				if got := s.Keep(prompt); got != want || s.Len() != want {
					t.Errorf("turn %d: %d of %d tokens kept, want %d", turn, got, len(prompt), want)
				}

				o := GenerateOptions{MaxTokens: 6, Stop: []int32{}, RepetitionPenalty: 1.3}
				alone, err := m.Generate(t.Context(), prompt, o)
				if err != nil {
					t.Fatal(err)
				}
				o.Session = s
				got, err := m.Generate(t.Context(), prompt, o)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, alone) {
					t.Errorf("turn %d: %v, alone %v", turn, got, alone)
				}

				// The session has all but the last token, which nobody has asked to continue.
				if want := len(prompt) + len(got) - 1; s.Len() != want {
					t.Errorf("turn %d: the session has %d tokens, want %d", turn, s.Len(), want)
				}

				// The next turn writes the end of the answer in another way, as templates do.
				had = len(prompt) + len(got) - 2
				other := (got[len(got)-2] + 1) % int32(m.Config().Vocab)
				prompt = append(slices.Concat(prompt, got[:len(got)-2]), other, int32(turn), 4)
			}
		})
	}
}

// TestKeepWindow: where keys have left a sliding window, all is run again.
func TestKeepWindow(t *testing.T) {
	dir := recipe{config: everyTiny()["gemma2"], seed: 9}.write(t, t.TempDir())
	m := load(t, dir, cpu.New(cpu.Options{}), Options{})
	window := 0
	for _, w := range m.Config().Windows {
		window = max(window, w)
	}
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	ids := make([]int32, 3*prefillChunk)
	for i := range ids {
		ids[i] = int32(i % 11)
	}
	if _, err := s.Append(t.Context(), ids); err != nil || window == 0 {
		t.Fatal(window, err)
	}
	if n := s.Keep(ids[:window+1]); n != 0 || s.Len() != 0 {
		t.Errorf("%d tokens kept", n)
	}
}
