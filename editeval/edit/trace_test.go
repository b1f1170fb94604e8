package edit

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/trace"
	"github.com/modelcompress/compress/internal/linalg"
)

// TestOracleTrace compares the grids of causal tracing with the reference's, with its noise.
func TestOracleTrace(t *testing.T) {
	for _, path := range oracle(t) {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			s := load(t, path)
			for _, c := range s.Cases {
				var name string
				_ = json.Unmarshal(c["name"], &name)
				if !strings.HasPrefix(name, "trace.") || name == "trace.h" {
					continue
				}
				s.trace(t, name, c)
			}
		})
	}
}

func (s *suite) trace(t *testing.T, name string, c map[string]json.RawMessage) {
	var v struct {
		IDs              []int32
		Corrupt          [2]int
		Answer           int32
		Window           int
		Clean, Corrupted float64
	}

	raw, _ := json.Marshal(c)
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}

	noise := s.tensor(t, "trace.noise")
	r, err := trace.Run(context.Background(), s.m, v.IDs, v.Corrupt[0], v.Corrupt[1], v.Answer, trace.Options{
		Window: v.Window, Samples: noise.Rows / (v.Corrupt[1] - v.Corrupt[0]), Draws: noise,
	})
	if err != nil {
		t.Fatal(err)
	}

	near(t, name+" ends", []float64{r.Clean, r.Corrupted}, []float64{v.Clean, v.Corrupted}, tolValue)

	for kind, grid := range map[string][][]float64{"trace.h": r.Hidden, "trace.mlp": r.MLP, "trace.attn": r.Attention} {
		if kind != "trace.h" && kind != name {
			continue
		}

		var got []float64
		for _, row := range grid {
			got = append(got, row...)
		}

		near(t, kind, linalg.Of(got, 1, len(got)).Data, s.tensor(t, kind).Data, tolValue)
	}
}
