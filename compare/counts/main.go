// Command counts runs one operation of the processor's kernels, for counts.py to count its instructions, and prints how
// many multiplications and additions that are of use there are in it.
package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// work is an operation: run does it, and multiplies and adds so often.
type work struct {
	run    func(o *kernels.Ops)
	useful int
}

var works = map[string]work{
	"tile-f32":       product(kernels.F32, 128, 256, 512, kernels.Exact),
	"tile-bf16-fast": product(kernels.BF16, 128, 256, 512, kernels.Fast),
	"tile-q8_0-fast": quantised(kernels.Q8_0, 128, 256, 512),
	"tile-q4_0-fast": quantised(kernels.Q4_0, 128, 256, 512),
	"tile-q4_k-fast": quantised(kernels.Q4_K, 128, 256, 512),
	"row-f32":        product(kernels.F32, 1, 512, 1024, kernels.Exact),
	"row-bf16":       product(kernels.BF16, 1, 512, 1024, kernels.Exact),
	"row-q8_0-fast":  quantised(kernels.Q8_0, 1, 512, 1024),
	"row-q4_0-fast":  quantised(kernels.Q4_0, 1, 512, 1024),
	"attention":      attention(96, 4, 64),
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "list" {
		fmt.Println(strings.Join(slices.Sorted(maps.Keys(works)), "\n"))
		return
	}
	w, ok := work{}, len(os.Args) == 2
	if ok {
		w, ok = works[os.Args[1]]
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: counts list | counts WORK")
		os.Exit(2)
	}

	d := cpu.New(cpu.Options{Threads: 1})
	w.run(d.Ops())
	fmt.Println(w.useful, strings.Join(d.Info().Features, ","))
}

// matrix has values between -1 and 1.
func matrix(t kernels.DType, rows, cols int) kernels.Mat {
	m := kernels.MatOf(kernels.NewHost(t, rows*cols), rows, cols)
	for i := range m.Len() {
		v := float32(i*7919%2048)/1024 - 1
		if t == kernels.F32 {
			m.Buf.F32()[i] = v
		} else {
			m.Buf.U16()[i] = kernels.ToBF16(v)
		}
	}
	return m
}

// product is m rows by a weight of n rows of k elements.
func product(t kernels.DType, m, n, k int, p kernels.Precision) work {
	return work{func(o *kernels.Ops) {
		o.MatMulNT(matrix(kernels.F32, m, n), matrix(kernels.F32, m, k), matrix(t, n, k), kernels.MatMul{Precision: p})
	}, m * n * k}
}

// quantised is the same for a weight in few bits, under Fast.
func quantised(f kernels.QuantFormat, m, n, k int) work {
	return work{func(o *kernels.Ops) {
		width := f.RowBytes(k)
		w := kernels.Quantised{Format: f, Cols: k, Data: kernels.MatOf(kernels.NewHost(kernels.U8, n*width), n, width)}
		data := w.Data.Buf.U8()
		_, size := f.Block()
		for i := range data {
			data[i] = byte(i * 7919)
		}
		for i := 0; i < len(data); i += size {
			binary.LittleEndian.PutUint16(data[i:], 0x2000) // 2⁻⁷; Q4_K's second scale is what it happens to be
		}
		o.MatMulQuantised(matrix(kernels.F32, m, n), matrix(kernels.F32, m, k), w, kernels.MatMul{Precision: kernels.Fast})
	}, m * n * k}
}

// attention is that of n queries and as many keys, which every query sees up to itself.
func attention(n, heads, dim int) work {
	return work{func(o *kernels.Ops) {
		x := func() kernels.Mat { return matrix(kernels.F32, n, heads*dim) }
		a := kernels.Attention{Heads: heads, KVHeads: heads, HeadDim: dim, Scale: 0.125}
		o.Attention(x(), x(), x(), x(), a)
	}, heads * dim * n * (n + 1)} // two products of n·(n+1)/2 pairs
}
