//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// assembled and scattered are the operations in plain loops, on matrices without gaps.
func assembled(dst, pool []float32, ids []int32, w int) {
	for s, id := range ids {
		copy(dst[s*w:(s+1)*w], pool[int(id)*w:])
	}
}

func scattered(pool, src []float32, ids []int32, w int) {
	for s, id := range ids {
		for j := range w {
			pool[int(id)*w+j] += src[s*w+j]
		}
	}
}

// TestShards compares joined rows and the sums of their gradients with plain loops, bit by bit: also for rows
// with gaps, for shards that come several times, and for lists without any.
func TestShards(t *testing.T) {
	d := open(t, "")
	dev, ok := kernels.As[kernels.Assembler](d)
	if !ok {
		t.Fatal("no Assembler")
	}

	for _, c := range []struct{ n, w, l, r, gap int }{
		{n: 5, w: 3, l: 2, r: 4},
		{n: 40, w: 600, l: 4, r: 16, gap: 5},
		{n: 1, w: 1, l: 1, r: 9},
		{n: 7, w: 8, l: 3, r: 0},
	} {
		rng, ids := rand.New(rand.NewPCG(3, uint64(c.n))), make([]int32, c.r*c.l)
		for i := range ids {
			ids[i] = rng.Int32N(int32(c.n))
		}

		values, grads := floats(1, c.n*c.w), floats(2, c.r*c.l*c.w)
		pool := alloc(t, d, c.n, c.w, kernelBytes(values))
		wide := alloc(t, d, c.r+1, c.l*c.w+c.gap, nil)
		x := wide.RowRange(0, c.r).ColRange(c.gap, c.l*c.w+c.gap)
		dev.Assemble(x, pool, ids)

		want := make([]float32, len(grads))
		assembled(want, values, ids, c.w)
		var got []float32
		for i := range c.r {
			got = append(got, read(t, d, x.RowRange(i, i+1))...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: rows differ", c)
		}

		for i := range c.r {
			row := grads[i*c.l*c.w : (i+1)*c.l*c.w]
			if err := d.Upload(x.Buf, x.Off+i*x.Stride, kernelBytes(row)); err != nil {
				t.Fatal(err)
			}
		}

		dev.Scatter(pool, x, ids)
		scattered(values, grads, ids, c.w)
		if !slices.Equal(read(t, d, pool), values) {
			t.Errorf("%+v: sums differ", c)
		}
	}
}

// TestShardsRefuse: shapes that do not agree are a caller's bug.
func TestShardsRefuse(t *testing.T) {
	d := open(t, "")
	pool, x := alloc(t, d, 4, 3, nil), alloc(t, d, 2, 6, nil)
	for what, f := range map[string]func(){
		"part of a shard": func() { d.Assemble(x.ColRange(0, 5), pool, []int32{0, 1}) },
		"a short list":    func() { d.Assemble(x, pool, []int32{0, 1, 2}) },
		"another row":     func() { d.Scatter(pool, x, []int32{0, 1, 2, 4}) },
		"below all rows":  func() { d.Scatter(pool, x, []int32{0, 1, 2, -1}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f()
		}()
	}
}
