package lora

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/memlimit"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// A rank that no matrix can have is not written.
func TestExtractBoundsTheRank(t *testing.T) {
	base := filepath.Join("..", "testdata", "nano", "base")
	other := filepath.Join(t.TempDir(), "other")
	tuned(t, base, other, 3)
	r, err := Extract(t.Context(), base, other, filepath.Join(t.TempDir(), "out"), ExtractOptions{Rank: 1000})
	if err != nil {
		t.Fatal(err)
	}

	if r.Rank != 96 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "no matrix has a rank of 1000") {
		t.Errorf("rank %d, notes %q", r.Rank, r.Notes)
	}
}

// What cannot fit into memory is refused before it is allocated.
func TestTrainingThatCannotFitIsRefused(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("free memory is known on Linux only")
	}

	m := openModel(t, filepath.Join("..", "testdata", "nano", "base"), "cpu", lm.Options{})
	data := corpus.Windows{IDs: [][]int32{{1, 2, 3, 4, 5, 6, 7, 8}}}
	const huge = 1 << 45
	for name, o := range map[string]Options{
		"rank":       {Kind: "lora", Rank: 1 << 20, Steps: 1},
		"batch":      {Batch: huge, Steps: 1},
		"steps":      {Steps: huge},
		"pack":       {Pack: huge, Steps: 1},
		"microbatch": {Batch: 1 << 33, MicroBatch: 1 << 32, Steps: 1},
	} {
		_, err := Train(t.Context(), m, data, o)
		if name == "rank" && err == nil {
			continue // a machine with a hundred gigabytes
		}

		if !errors.Is(err, memlimit.ErrMemory) || !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A rank above the sizes of all matrices is taken, with a remark.
func TestRankAboveAllSizesIsRemarked(t *testing.T) {
	m := openModel(t, filepath.Join("..", "testdata", "nano", "base"), "cpu", lm.Options{})
	data := corpus.Windows{IDs: [][]int32{{1, 2, 3, 4, 5, 6, 7, 8}}}
	for rank, want := range map[int]int{96: 0, 97: 1} {
		var said []string
		if _, err := Train(t.Context(), m, data,
			Options{
				Kind: "lora", Rank: rank, Steps: 1, Batch: 1, Targets: []string{"q_proj"},
				Remark: func(s string) { said = append(said, s) },
			}); err != nil {
			t.Fatal(err)
		}

		if len(said) != want {
			t.Errorf("rank %d: %q", rank, said)
		}
	}
}
