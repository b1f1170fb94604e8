package ggufmodel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/gguf"
)

// drawn is a tensor of pieces in drawn types and arrangements, with the values that it must have, worked out one by
// one.
type drawn struct {
	tensor *tensor
	data   map[string][]byte
	want   []float32
}

// draw makes matrices of the file and arranges them.
func draw(t *rapid.T) drawn {
	d := drawn{data: map[string][]byte{}}
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	stack := rapid.IntRange(1, 3).Draw(t, "stack")
	count := rapid.IntRange(1, 2).Draw(t, "pieces")
	x := &tensor{
		name: "w", stack: stack, alternate: count > 1 && rapid.Bool().Draw(t, "alternate"),
		transposed: rapid.Bool().Draw(t, "transposed"), cols: 256,
	}
	d.tensor = x

	rows := 4 * rapid.IntRange(1, 3).Draw(t, "rows")
	values := make([][]float32, count) // of each piece: the matrices as they are after its own transposition
	for i := range count {
		kind := rapid.SampledFrom([]gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0, gguf.Q4_1, gguf.Q6_K}).Draw(t, "type")
		flipped := !x.transposed && rapid.Bool().Draw(t, "piece transposed")
		if x.alternate && i > 0 {
			flipped = x.pieces[0].transposed // pieces that take turns have as many rows
		}
		if flipped {
			rows = 256
		}
		shape := []int64{int64(stack), int64(rows), 256}
		info := gguf.Info{Name: string(rune('a' + i)), Type: kind, Shape: shape}
		p := piece{info: info, stride: rows, cols: 256, stack: stack, rows: rows, transposed: flipped}
		x.pieces = append(x.pieces, p)

		size, err := kind.ByteSize(shape)
		if err != nil {
			t.Fatal(err)
		}
		raw := make([]byte, size)
		for at := range raw {
			raw[at] = byte(random.IntN(60)) // no scale of float16 that is no number
		}
		d.data[info.Name] = raw

		values[i] = make([]float32, stack*rows*256)
		if err := kind.Decode(values[i], raw); err != nil {
			t.Fatal(err)
		}
		if flipped {
			values[i] = transpose(values[i], stack, rows, 256)
		}
		x.rows += rows
	}

	if rapid.Bool().Draw(t, "ordered") && !x.transposed && x.rows%4 == 0 {
		x.order = pairs(4)
	}
	d.arrange(values)

	return d
}

// transpose turns every matrix of a stack.
func transpose(values []float32, stack, rows, cols int) []float32 {
	out := make([]float32, 0, len(values))
	for s := range stack {
		for c := range cols {
			for r := range rows {
				out = append(out, values[(s*rows+r)*cols+c])
			}
		}
	}
	return out
}

// arrange works out the values of the tensor from those of its pieces.
func (d *drawn) arrange(values [][]float32) {
	x := d.tensor
	for s := range x.stack {
		for r := range x.rows {
			from := r
			if x.order != nil {
				from = x.order(r)
			}

			i, at := 0, from
			if x.alternate {
				i, at = from%len(x.pieces), from/len(x.pieces)
			}
			for !x.alternate && at >= x.pieces[i].rows {
				at -= x.pieces[i].rows
				i++
			}

			line := values[i][(s*x.pieces[i].rows+at)*x.cols:][:x.cols]
			d.want = append(d.want, line...)
		}
	}

	x.shape = []int64{int64(x.stack), int64(x.rows), int64(x.cols)}
	if x.transposed {
		d.want = transpose(d.want, x.stack, x.rows, x.cols)
		x.shape = []int64{int64(x.stack), int64(x.cols), int64(x.rows)}
	}
}

// TestArrangements: rows of any arrangement of pieces of any type are those of the definition, however many are asked
// for at once.
func TestArrangements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		m := d.tensor.matrix(func(name string) ([]byte, error) { return d.data[name], nil })
		if m.Rows*m.Cols != len(d.want) {
			t.Fatalf("%d rows of %d, expected %d values", m.Rows, m.Cols, len(d.want))
		}

		for range 4 {
			first := rapid.IntRange(0, m.Rows-1).Draw(t, "first")
			n := rapid.IntRange(1, min(m.Rows-first, 70)).Draw(t, "n")
			dst := make([]float32, n*m.Cols)
			if err := m.Decode(dst, first, n); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(dst, d.want[first*m.Cols:][:len(dst)]) {
				t.Fatalf("rows %d to %d differ", first, first+n)
			}
		}
	})
}
