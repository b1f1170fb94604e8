package mosfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/safetensors"
)

// FuzzRead: the two files of a native adapter from a stranger. What is taken makes its two factors with finite values.
func FuzzRead(f *testing.F) {
	mos := adapter.Config{Kind: adapter.MoS, Rank: 3, Alpha: 8, Base: "base", Targets: adapter.Match{All: true}}
	mos.MoS = adapter.MoSConfig{
		EquivalentRank: 2, Shards: 2, Private: 1, PairDissociation: true,
		Sampling: adapter.Official,
	}

	vera := adapter.Config{Kind: adapter.VeRA, Rank: 2, Alpha: 2, Targets: adapter.Match{Names: []string{"q_proj"}}}
	for _, c := range []adapter.Config{mos, vera} {
		a, err := kinds.New(c, base{8}, 5)
		if err != nil {
			f.Fatal(err)
		}

		dir := filepath.Join(f.TempDir(), "a")
		if err := Write(dir, a, safetensors.F32, nil); err != nil {
			f.Fatal(err)
		}

		config, err := os.ReadFile(filepath.Join(dir, ConfigName))
		if err != nil {
			f.Fatal(err)
		}

		file, err := os.ReadFile(filepath.Join(dir, ModelName))
		if err != nil {
			f.Fatal(err)
		}

		header, data := fuzzlimit.Parts(file)
		f.Add(config, header, data)
	}

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config []byte, header string, data []byte) {
		defer fuzzlimit.Watch(t, len(config)+len(header)+len(data))()

		for name, text := range map[string][]byte{ConfigName: config, ModelName: fuzzlimit.File(header, data)} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}

		a, err := Read(dir, base{8})
		if err != nil {
			return
		}

		for i := range a.Low {
			l := a.Low[i]
			x, y := l.Pair()
			if x.Rows != l.Rank || x.Cols != l.Module.In || y.Rows != l.Module.Out || y.Cols != l.Rank {
				t.Errorf("%s: [%d, %d] and [%d, %d]", l.Module.Path, x.Rows, x.Cols, y.Rows, y.Cols)
			}
		}
	})
}
