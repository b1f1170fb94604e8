package prune

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// The published selection on a matrix of many ties: rows and whole matrices agree, N:M in the values of what goes.
func TestTiesOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		f, err := safetensors.Open(filepath.Join(c.dir, "ties.safetensors"))
		if err != nil {
			t.Skip(err)
		}
		defer f.Close()

		info, _ := f.Info("score")
		rows, cols := int(info.Shape[0]), int(info.Shape[1])
		score := make([]float32, 0, rows*cols)
		for _, v := range floats(f, "score") {
			score = append(score, float32(v))
		}

		for _, name := range f.Names() {
			s, exact, ok := tieSelection(name)
			if !ok {
				continue
			}

			want, err := f.Bytes(name)
			if err != nil {
				t.Fatal(err)
			}

			for backend, dev := range devices(t) {
				mask := strings.ReplaceAll(
					maskString(t, dev, s,
						kernels.Score{X: kernels.MatOf(kernels.WrapF32(score), rows, cols), Raw: true}), " ", "")
				if err := compareTies(score, mask, want, max(s.pattern.M, 1), exact); err != nil {
					t.Errorf("%s on %s: %v", name, backend, err)
				}
			}
		}
	})
}

// tieSelection reads what a mask was made by: keep.rows_u50, keep.matrix_u50, keep.nm24_topk.
func tieSelection(name string) (s selection, exact, ok bool) {
	p := regexp.MustCompile(`^keep\.(rows|matrix|nm)(?:_u(\d+)|(\d)(\d)_topk)$`).FindStringSubmatch(name)
	if p == nil {
		return s, false, false
	}

	percent, _ := strconv.Atoi(p[2])
	n, _ := strconv.Atoi(p[3])
	m, _ := strconv.Atoi(p[4])
	s = selection{group: Row, sparsity: float64(percent) / 100, pattern: Pattern{n, m}}
	if p[1] == "matrix" {
		s.group = Layer
	}

	return s, p[1] != "nm", true
}

// compareTies wants equal masks, or within each group of m equal multisets of what goes.
func compareTies(score []float32, mask string, want []byte, m int, exact bool) error {
	for at := 0; at < len(score); at += m {
		var a, b []float32
		for i := at; i < at+m; i++ {
			if exact && mask[i]-'0' != want[i] {
				return fmt.Errorf("element %d differs", i)
			}
			if mask[i] == '0' {
				a = append(a, score[i])
			}
			if want[i] == 0 {
				b = append(b, score[i])
			}
		}

		slices.Sort(a)
		slices.Sort(b)
		if !slices.Equal(a, b) {
			return fmt.Errorf("group at %d: %v go, want %v", at, a, b)
		}
	}

	return nil
}
