package quantized

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// sheet is numbers of a matrix that is stored by input, then by output, with what they are worth.
type sheet struct {
	bits, in, out, groups int
	q                     [][]int // [in][out]
	zero                  [][]int // [groups][out]
	scale                 [][]float32
	group                 []int // of every input
}

// drawn is a sheet of random numbers, of groups that follow each other or that inputs are dealt to.
func drawn(rng *rand.Rand, bits, in, out, size int, dealt bool) *sheet {
	s := &sheet{bits: bits, in: in, out: out, groups: (in + size - 1) / size}
	for i := range in {
		row := make([]int, out)
		for j := range row {
			row[j] = rng.IntN(1 << bits)
		}
		s.q = append(s.q, row)
		s.group = append(s.group, i/size)
	}

	if dealt {
		rng.Shuffle(in, func(i, j int) { s.group[i], s.group[j] = s.group[j], s.group[i] })
	}

	for range s.groups {
		zero, scale := make([]int, out), make([]float32, out)
		for j := range out {
			zero[j], scale[j] = rng.IntN(1<<bits), float32(rng.NormFloat64())
		}
		s.zero = append(s.zero, zero)
		s.scale = append(s.scale, scale)
	}

	return s
}

// value is the element of an output and an input.
func (s *sheet) value(o, i int) float32 {
	g := s.group[i]
	return float32(s.q[i][o]-s.zero[g][o]) * s.scale[g][o]
}

// words writes a string of numbers of so many bits, the first in the lowest bits of the first word.
func words(numbers []int, bits int) []uint32 {
	out := make([]uint32, (len(numbers)*bits+31)/32)
	for i, v := range numbers {
		for b := range bits {
			at := i*bits + b
			out[at/32] |= uint32(v>>b&1) << (at % 32)
		}
	}
	return out
}

func tensorOf[T uint32 | int32 | float32](d safetensors.DType, rows [][]T) tensor {
	var data []byte
	for _, row := range rows {
		for _, v := range row {
			switch v := any(v).(type) {
			case float32:
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
			case uint32:
				data = binary.LittleEndian.AppendUint32(data, v)
			case int32:
				data = binary.LittleEndian.AppendUint32(data, uint32(v))
			}
		}
	}
	return tensor{d, []int64{int64(len(rows)), int64(len(rows[0]))}, data}
}

// gptq stores a sheet as GPTQ's tools do: columns of numbers as strings of bits, rows of zero points too.
func (s *sheet) gptq(lessOne, index bool) memory {
	columns := (s.in*s.bits + 31) / 32
	qweight := make([][]uint32, columns)
	for k := range qweight {
		qweight[k] = make([]uint32, s.out)
	}

	for o := range s.out {
		column := make([]int, s.in)
		for i := range column {
			column[i] = s.q[i][o]
		}
		for k, w := range words(column, s.bits) {
			qweight[k][o] = w
		}
	}

	var zeros [][]uint32
	for _, row := range s.zero {
		row = slices.Clone(row)
		for j := range row {
			if lessOne {
				row[j] = (row[j] - 1) & (1<<s.bits - 1)
			}
		}
		zeros = append(zeros, words(row, s.bits))
	}

	m := memory{
		"m.qweight": tensorOf(safetensors.I32, qweight), "m.qzeros": tensorOf(safetensors.I32, zeros),
		"m.scales": tensorOf(safetensors.F32, s.scale),
	}
	if index {
		list := make([]int32, s.in)
		for i, g := range s.group {
			list[i] = int32(g)
		}
		t := tensorOf(safetensors.I32, [][]int32{list})
		t.shape = t.shape[1:]
		m["m.g_idx"] = t
	}

	return m
}

// awq stores a sheet as AutoAWQ does: eight outputs in a word, the even ones before the odd ones.
func (s *sheet) awq() memory {
	pack := func(rows [][]int) (out [][]uint32) {
		for _, row := range rows {
			var packed []uint32
			for at := 0; at < len(row); at += 8 {
				w := uint32(0)
				for place, column := range []int{0, 2, 4, 6, 1, 3, 5, 7} {
					w |= uint32(row[at+column]) << (4 * place)
				}
				packed = append(packed, w)
			}
			out = append(out, packed)
		}
		return out
	}

	return memory{
		"m.qweight": tensorOf(safetensors.I32, pack(s.q)), "m.qzeros": tensorOf(safetensors.I32, pack(s.zero)),
		"m.scales": tensorOf(safetensors.F32, s.scale),
	}
}

// same opens a stored sheet and compares it with its values, as a whole and by runs of rows that begin anywhere.
func (s *sheet) same(t *testing.T, rng *rand.Rand, m memory, config string) {
	t.Helper()
	c, err := ParseConfig([]byte(config))
	if err != nil {
		t.Fatalf("%s: %v", config, err)
	}
	model, err := Open(m, c)
	if err != nil {
		t.Fatalf("%s: %v", config, err)
	}

	w := model.Matrix("m.weight")
	if w == nil || w.Rows != s.out || w.Cols != s.in {
		t.Fatalf("%s: %+v, want %d rows of %d", config, w, s.out, s.in)
	}

	all, err := w.Whole()
	if err != nil {
		t.Fatal(err)
	}

	for o := range s.out {
		for i := range s.in {
			if got := all[o*s.in+i]; got != s.value(o, i) {
				t.Errorf("%s: [%d, %d] is %v, want (%d - %d)·%v", config, o, i, got, s.q[i][o], s.zero[s.group[i]][o],
					s.scale[s.group[i]][o])
				return
			}
		}
	}

	compareCodes(t, config, w, all)
	for range 5 {
		first := rng.IntN(s.out)
		n := rng.IntN(s.out-first) + 1
		part := make([]float32, n*s.in)
		if err := w.Decode(part, first, n); err != nil || !slices.Equal(part, all[first*s.in:(first+n)*s.in]) {
			t.Errorf("%s: rows [%d, %d) are others than in the whole, %v", config, first, first+n, err)
		}
	}
}

// TestStringsOfBits: numbers of all widths that GPTQ has, across the ends of words, in groups of any size and order, by
// both of its conventions for zero points.
func TestStringsOfBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 1))
	for _, bits := range []int{2, 3, 4, 8} {
		for _, c := range []struct{ in, out, size int }{
			{64, 32, 32}, {96, 64, 24}, {32, 32, 8}, {160, 96, 160}, {64, 33, 16},
		} {
			for form := range 4 {
				lessOne, dealt := form&1 == 0, form&2 != 0
				format := "gptq_v2"
				if lessOne {
					format = "gptq"
				}
				s := drawn(rng, bits, c.in, c.out, c.size, dealt)
				s.same(t, rng, s.gptq(lessOne, dealt), fmt.Sprintf(
					`{"quant_method":"gptq","bits":%d,"group_size":%d,"checkpoint_format":%q}`, bits, c.size, format))
			}
		}
	}
}

// TestEightsInAWord: AutoAWQ's order of outputs, for groups that are no eights too.
func TestEightsInAWord(t *testing.T) {
	rng := rand.New(rand.NewPCG(22, 1))
	for _, c := range []struct{ in, out, size int }{
		{64, 32, 32}, {48, 8, 12}, {17, 40, 17}, {128, 24, 64}, {8, 16, 1},
	} {
		s := drawn(rng, 4, c.in, c.out, c.size, false)
		config := fmt.Sprintf(`{"quant_method":"awq","bits":4,"group_size":%d,"version":"gemm"}`, c.size)
		s.same(t, rng, s.awq(), config)
	}
}
