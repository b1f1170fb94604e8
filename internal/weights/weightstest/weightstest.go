// Package weightstest makes quantised copies of small models, and the same values as floating-point numbers, so that
// tests can do the same to both. It writes the formats by their own formulas, without what decodes them.
package weightstest

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/safetensors"
)

// tensor is one to write.
type tensor struct {
	safetensors.Info
	data []byte
}

// format is a way to quantise matrices.
type format struct {
	config   map[string]any
	dtype    safetensors.DType // of the values
	stacks   bool              // it is of experts in one tensor, not of matrices
	quantise func(name string, rows, cols int, w []float32) (parts []tensor, values []float32)
}

// Formats lists what [Quantise] can write of models without experts: values that are F16, BF16 and F32, matrices as
// they are and transposed, in whole bytes and packed.
func Formats() []string {
	return []string{"gptq", "int-quantized", "fp8", "awq", "pack-quantized", "nf4", "int8"}
}

var formats = map[string]format{
	"gptq": {
		config: map[string]any{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true, "sym": true},
		dtype:  safetensors.F16, quantise: gptq,
	},
	"int-quantized": {
		config: map[string]any{
			"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": map[string]any{
				"group_0": map[string]any{
					"targets": []string{"Linear"},
					"weights": map[string]any{"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"},
				},
			},
		},
		dtype: safetensors.BF16, quantise: channels,
	},
	"fp8": {
		config: map[string]any{"quant_method": "fp8", "weight_block_size": []int{32, 32}},
		dtype:  safetensors.F32, quantise: blocks,
	},
	"awq": {
		config: map[string]any{
			"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm",
		},
		dtype: safetensors.F16, quantise: awq,
	},
	"pack-quantized": {
		config: map[string]any{
			"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": map[string]any{
				"group_0": map[string]any{
					"targets": []string{"Linear"},
					"weights": map[string]any{
						"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32,
					},
				},
			},
		},
		dtype: safetensors.BF16, quantise: packed,
	},
	"nf4": {
		config: map[string]any{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"},
		dtype:  safetensors.F32, quantise: nf4,
	},
	"int8": {
		config: map[string]any{"quant_method": "bitsandbytes", "load_in_8bit": true},
		dtype:  safetensors.F32, quantise: int8s,
	},
	"mxfp4": {
		config: map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": []string{"lm_head"}},
		dtype:  safetensors.BF16, stacks: true, quantise: experts,
	},
}

// Quantised is [Quantise], and for "GGUF" [GGUF].
func Quantised(t testing.TB, dir, name string) (quantised, plain string) {
	t.Helper()
	if name == "GGUF" {
		return GGUF(t, dir)
	}
	return Quantise(t, dir, name)
}

// Quantise writes a copy of a small model whose matrices of blocks are quantised in a format of [Formats], or whose
// experts, if those of a block lie in one tensor, are in "mxfp4", and one with the same values as floating-point
// numbers. Everything else is as in dir.
func Quantise(t testing.TB, dir, name string) (quantised, plain string) {
	t.Helper()
	f := formats[name]
	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()

	var coded, floats []tensor
	for _, name := range src.Names() {
		info, _ := src.Info(name)
		data, err := src.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		w := make([]float32, info.Elements())
		if err := dtype.Decode(w, data, info.DType); err != nil {
			t.Fatal(err)
		}

		want := 2
		if f.stacks {
			want = 3
		}
		if len(info.Shape) != want || !strings.Contains(name, ".layers.") {
			coded = append(coded, tensor{info, data})
			floats = append(floats, tensor{info, data})
			continue
		}

		module := strings.TrimSuffix(name, ".weight")
		rows := int(info.Shape[want-2])
		parts, values := f.quantise(module, rows, int(info.Shape[want-1]), w)
		coded = append(coded, parts...)
		floats = append(floats, encoded(t, name, f.dtype, info.Shape, values))
	}

	quantised, plain = t.TempDir(), t.TempDir()
	write(t, quantised, dir, coded, func(o *orderedjson.Object) error { return o.Put("quantization_config", f.config) })
	write(t, plain, dir, floats, func(o *orderedjson.Object) error { return torch(o, f.dtype) })

	// what tools of the format leave behind, which belongs to the quantised model alone
	if err := os.WriteFile(filepath.Join(quantised, "quantize_config.json"), []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}

	return quantised, plain
}

// torch makes a configuration name a type that holds the values of the matrices and those of the type that it names.
func torch(o *orderedjson.Object, d safetensors.DType) error {
	key := "torch_dtype"
	if o.Has("dtype") {
		key = "dtype"
	}
	var was string
	if o.Decode(key, &was) && was != dtype.Torch(d) {
		d = safetensors.F32
	}
	return o.Put(key, dtype.Torch(d))
}

// write makes the folder of a model.
func write(t testing.TB, dst, src string, tensors []tensor, change func(o *orderedjson.Object) error) {
	t.Helper()
	var infos []safetensors.Info
	for _, x := range tensors {
		infos = append(infos, x.Info)
	}

	w, err := safetensors.Create(filepath.Join(dst, "model.safetensors"), infos, map[string]string{"format": "pt"},
		safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tensors {
		if err := w.WriteTensor(x.Name, x.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{
		"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
	} {
		text, err := os.ReadFile(filepath.Join(src, name))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}

		if name == "config.json" {
			text = changed(t, text, change)
		}
		if err := os.WriteFile(filepath.Join(dst, name), text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func changed(t testing.TB, text []byte, change func(o *orderedjson.Object) error) []byte {
	t.Helper()
	o, err := orderedjson.Parse(text)
	if err == nil {
		err = change(o)
	}
	if err == nil {
		text, err = o.Indent()
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func encoded(t testing.TB, name string, d safetensors.DType, shape []int64, values []float32) tensor {
	t.Helper()
	data := make([]byte, len(values)*dtype.Size(d))
	if err := dtype.Encode(data, values, d); err != nil {
		t.Fatal(err)
	}
	return tensor{safetensors.Info{Name: name, DType: d, Shape: slices.Clone(shape)}, data}
}

func raw(name string, d safetensors.DType, data []byte, shape ...int) tensor {
	info := safetensors.Info{Name: name, DType: d}
	for _, n := range shape {
		info.Shape = append(info.Shape, int64(n))
	}
	return tensor{info, data}
}

// power is the power of two at which the largest of some numbers is at most most: with such scales every product of a
// scale and a small integer is a number of the scale's type, so that nothing is rounded.
func power(w []float32, most float64) float32 {
	largest := 1e-9
	for _, v := range w {
		largest = max(largest, math.Abs(float64(v)))
	}
	return float32(math.Exp2(math.Ceil(math.Log2(largest / most))))
}

// nearest is the integer that stands for a number at a scale.
func nearest(v, scale float32, lo, hi int) int {
	return min(max(int(math.RoundToEven(float64(v/scale))), lo), hi)
}

// gptq is 4 bits in groups of 32 inputs, taken in an order of their own: inputs i and i+1 are of different groups.
func gptq(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	const group = 32
	n := cols / group
	qweight := make([]byte, cols/8*rows*4)
	qzeros := make([]byte, n*rows/8*4)
	scales := make([]byte, n*rows*2)
	index := make([]byte, cols*4)
	values = make([]float32, len(w))

	for i := range cols {
		binary.LittleEndian.PutUint32(index[4*i:], uint32(i%n))
	}
	for i := range qzeros {
		qzeros[i] = 0x77 // 8, less 1
	}

	for r := range rows {
		for g := range n {
			var members []float32
			for i := g; i < cols; i += n {
				members = append(members, w[r*cols+i])
			}
			scale := power(members, 7)
			_ = dtype.Encode(scales[2*(g*rows+r):][:2], []float32{scale}, safetensors.F16)

			for i := g; i < cols; i += n {
				q := nearest(w[r*cols+i], scale, -8, 7)
				values[r*cols+i] = float32(q) * scale
				word := qweight[4*(i/8*rows+r):]
				was := binary.LittleEndian.Uint32(word)
				binary.LittleEndian.PutUint32(word, was|uint32(q+8)<<(i%8*4))
			}
		}
	}

	return []tensor{
		raw(module+".qweight", safetensors.I32, qweight, cols/8, rows),
		raw(module+".qzeros", safetensors.I32, qzeros, n, rows/8),
		raw(module+".scales", safetensors.F16, scales, n, rows),
		raw(module+".g_idx", safetensors.I32, index, cols),
	}, values
}

// channels is 8-bit integers with a scale for each row.
func channels(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	codes := make([]byte, len(w))
	scales := make([]byte, 2*rows)
	values = make([]float32, len(w))
	for r := range rows {
		scale := power(w[r*cols:][:cols], 127)
		_ = dtype.Encode(scales[2*r:][:2], []float32{scale}, safetensors.BF16)
		for i := r * cols; i < (r+1)*cols; i++ {
			q := nearest(w[i], scale, -127, 127)
			codes[i] = byte(int8(q))
			values[i] = float32(q) * scale
		}
	}
	return []tensor{
		raw(module+".weight", safetensors.I8, codes, rows, cols),
		raw(module+".weight_scale", safetensors.BF16, scales, rows, 1),
	}, values
}

// blocks is 8-bit floats E4M3 with a scale for each 32 × 32 elements. Of these floats only integers up to 16 are used.
func blocks(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	const side = 32
	codes := make([]byte, len(w))
	down, across := (rows+side-1)/side, (cols+side-1)/side
	scales := make([]byte, 4*down*across)
	values = make([]float32, len(w))
	scale := power(w, 16)
	for i := range down * across {
		_ = dtype.Encode(scales[4*i:][:4], []float32{scale}, safetensors.F32)
	}
	for i, v := range w {
		q := nearest(v, scale, -16, 16)
		codes[i] = e4m3(q)
		values[i] = float32(q) * scale
	}
	return []tensor{
		raw(module+".weight", safetensors.F8_E4M3, codes, rows, cols),
		raw(module+".weight_scale_inv", safetensors.F32, scales, down, across),
	}, values
}

// e4m3 is a small integer as an 8-bit float: a sign, an exponent with a bias of 7, three bits behind the point.
func e4m3(q int) byte {
	if q == 0 {
		return 0
	}
	sign := byte(0)
	if q < 0 {
		sign = 0x80
		q = -q
	}
	exp := 0
	for q>>exp > 1 {
		exp++
	}
	return sign | byte(exp+7)<<3 | byte(q<<3>>exp&7)
}

// experts is 4-bit floats E2M1 with a power of two for 32 inputs, each expert the other way round: outputs are rows.
func experts(module string, rows, cols int, w []float32) (parts []tensor, values []float32) {
	const group = 32
	codes, scales := make([]byte, 0, len(w)/2), make([]byte, 0, len(w)/group)
	values = make([]float32, len(w))
	for expert := 0; expert < len(w); expert += rows * cols {
		for c := range cols {
			for r0 := 0; r0 < rows; r0 += group {
				at := func(i int) int { return expert + (r0+i)*cols + c }
				var members []float32
				for i := range group {
					members = append(members, w[at(i)])
				}
				scale := power(members, 6)
				scales = append(scales, byte(math.Log2(float64(scale))+127))
				for i := 0; i < group; i += 2 {
					low, a := e2m1(w[at(i)] / scale)
					high, b := e2m1(w[at(i+1)] / scale)
					codes = append(codes, low|high<<4)
					values[at(i)], values[at(i+1)] = a*scale, b*scale
				}
			}
		}
	}

	n := len(w) / (rows * cols)
	return []tensor{
		raw(module+"_blocks", safetensors.U8, codes, n, cols, rows/group, group/2),
		raw(module+"_scales", safetensors.U8, scales, n, cols, rows/group),
	}, values
}

// e2m1 is the code of the nearest 4-bit float, and its value. There is no zero with a sign, whose bits would differ.
func e2m1(v float32) (code byte, value float32) {
	best := float32(math.Inf(1))
	for i, x := range []float32{0, .5, 1, 1.5, 2, 3, 4, 6} {
		for _, sign := range []float32{1, -1} {
			d := float32(math.Abs(float64(v - sign*x)))
			if d < best && (x > 0 || sign > 0) {
				best = d
				value = sign * x
				code = byte(i)
				if sign < 0 {
					code |= 8
				}
			}
		}
	}
	return code, value
}

// Values compares two models tensor by tensor, to the last bit.
func Values(t testing.TB, got, want safetensors.Source) {
	t.Helper()
	names := slices.Sorted(slices.Values(got.Names()))
	if all := slices.Sorted(slices.Values(want.Names())); !slices.Equal(names, all) {
		t.Fatalf("tensors %q, want %q", names, all)
	}

	for _, name := range names {
		a, _ := got.Info(name)
		b, _ := want.Info(name)
		if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) || a.Size != b.Size {
			t.Errorf("%s: %s %v of %d bytes, want %s %v of %d", name, a.DType, a.Shape, a.Size, b.DType, b.Shape,
				b.Size)
		}

		x, err := got.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		y, err := want.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x, y) {
			t.Errorf("%s: the values differ", name)
		}
	}
}

// Config reads an object of a JSON file.
func Config(t testing.TB, text []byte) map[string]any {
	t.Helper()
	var c map[string]any
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}
