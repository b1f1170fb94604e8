package imatrix_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/quantize/imatrix"
)

// What flowed into a matrix over 100 tokens is written as llama.cpp has it, and read again.
func ExampleRead() {
	dir, err := os.MkdirTemp("", "imatrix")
	check(err)
	defer os.RemoveAll(dir)

	const name = "blk.0.attn_q.weight"
	f := &imatrix.File{Chunks: 1, ChunkSize: 100, Entries: []imatrix.Entry{
		{Name: name, Inputs: 3, Sums: []float32{50, 0, 200}, Counts: []int64{100}},
	}}
	path := filepath.Join(dir, "imatrix.gguf")
	check(f.Write(path, false))

	f, err = imatrix.Read(path)
	check(err)

	e, found := f.Entry(name)
	fmt.Println(found, e.Importance(0)) // the mean of x² for every input
	// Output: true [0.5 0 2]
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
