package distil

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lora/internal/batches"
)

// FuzzCache: the file of a teacher. One that opens and fits gives rows with tokens of the vocabulary and probabilities
// that add up to 1, or says which row is wrong.
func FuzzCache(f *testing.F) {
	m := openModel(f, "base-llama", 1)
	data := batches.Data{IDs: [][]int32{{5, 9, 3, 30, 7}, {8, 1, 2}, {4}}}
	path := filepath.Join(f.TempDir(), "teacher")
	r := &Resident{Model: m, Vocab: 31, Temperature: 1, Top: 3}
	if err := WriteCache(f.Context(), r, data, path, WriteOptions{}); err != nil {
		f.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}

	header, body := fuzzlimit.Parts(file)
	f.Add(header, body)
	f.Add(`{"__metadata__":{"teacher":"{}"}}`, []byte{})
	f.Add(`{"__metadata__":{"teacher":"{\"form\":1,\"top\":1,\"vocabulary\":9,\"temperature\":1}"},"crc32c":{"dtype":"U32",`+
		`"shape":[0],"data_offsets":[0,0]}}`, []byte{})
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		defer fuzzlimit.Watch(t, len(header)+len(body))()

		if err := os.WriteFile(path, fuzzlimit.File(header, body), 0o666); err != nil {
			t.Fatal(err)
		}
		c, err := OpenCache(path)
		if err != nil {
			return
		}
		defer c.Close()
		if c.Fit(data, 31) != nil {
			return
		}

		b := batches.Batch{IDs: data.IDs[:2], Labels: data.IDs[:2], Seqs: []int32{0, 1}}
		if err := c.Begin(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		targets, err := c.Targets(t.Context(), 0, 6)
		if err != nil {
			return
		}
		for i, rest := range targets.Rest {
			sum := rest
			for j := range targets.Top {
				sum += math.Exp(targets.LogP[i*targets.Top+j])
				if id := targets.IDs[i*targets.Top+j]; id < 0 || id >= 31 {
					t.Errorf("token %d", id)
				}
			}
			if !(sum > 1-1e-6 && sum < 1+1e-6) {
				t.Errorf("probabilities of row %d add up to %g", i, sum)
			}
		}
	})
}
