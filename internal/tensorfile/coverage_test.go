package tensorfile

import (
	"flag"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil { // the same draws in every run; 0 draws anew
		panic(err)
	}
	os.Exit(m.Run())
}

// TestPropertyCoverage compares the joined spans with a list of bytes.
func TestPropertyCoverage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const size = 40
		s := &slot{Region: Region{Size: size}}
		var have [size]bool
		for range rapid.IntRange(0, 12).Draw(rt, "writes") {
			begin := rapid.Int64Range(0, size).Draw(rt, "begin")
			end := rapid.Int64Range(begin, size).Draw(rt, "end")
			s.add(begin, end)
			for i := begin; i < end; i++ {
				have[i] = true
			}

			var spans [size]bool
			for i, part := range s.have {
				if i > 0 && part.begin <= s.have[i-1].end {
					rt.Fatalf("%v are not joined", s.have)
				}
				for at := part.begin; at < part.end; at++ {
					spans[at] = true
				}
			}

			if spans != have || s.done() != !slices.Contains(have[:], false) {
				rt.Fatalf("%v after [%d,%d), done %v; want %v", s.have, begin, end, s.done(), have)
			}
		}
	})
}
