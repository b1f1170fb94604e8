package quantized

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// tensor is one of memory.
type tensor struct {
	dtype safetensors.DType
	shape []int64
	data  []byte
}

// memory is Tensors in memory.
type memory map[string]tensor

func (m memory) Names() []string { return slices.Sorted(maps.Keys(m)) }

func (m memory) Info(name string) (safetensors.Info, bool) {
	t, ok := m[name]
	return safetensors.Info{Name: name, DType: t.dtype, Shape: t.shape, Size: int64(len(t.data))}, ok
}

func (m memory) Bytes(name string) ([]byte, error) { return m[name].data, nil }

// loaded is a case of the oracle in memory, so that it can be broken.
func loaded(t testing.TB, f *safetensors.File, name string) memory {
	t.Helper()
	m := memory{}
	c := caseOf{f, name + "."}
	for _, n := range c.Names() {
		info, _ := c.Info(n)
		data, err := c.Bytes(n)
		if err != nil {
			t.Fatal(err)
		}
		m[n] = tensor{info.DType, info.Shape, slices.Clone(data)}
	}
	return m
}

// with returns a change of one tensor.
func with(name string, change func(t *tensor)) func(m memory) {
	return func(m memory) {
		t, ok := m["m."+name]
		if !ok {
			panic("no tensor " + name)
		}
		change(&t)
		m["m."+name] = t
	}
}

func without(name string) func(m memory) { return func(m memory) { delete(m, "m."+name) } }

func shape(dims ...int64) func(t *tensor) { return func(t *tensor) { t.shape = dims } }

func kind(d safetensors.DType) func(t *tensor) { return func(t *tensor) { t.dtype = d } }

func at(i int, b ...byte) func(t *tensor) { return func(t *tensor) { copy(t.data[i:], b) } }

// state replaces the text of a quant_state.
func text(s string) func(t *tensor) {
	return func(t *tensor) { t.data, t.shape = []byte(s), []int64{int64(len(s))} }
}

func TestFaults(t *testing.T) {
	f, configs := oracle(t)
	nf4State := "weight.quant_state.bitsandbytes__nf4"
	for _, c := range []struct {
		base   string
		change func(m memory)
		want   error
		says   string
	}{
		{"gptq4_gptq", with("g_idx", at(0, 2)), ErrGroups, "column 0 is in group 2 of 2"},
		{"gptq4_gptq", with("g_idx", at(4, 0xfe, 0xff, 0xff, 0xff)), ErrGroups, "column 1 is in group -2"},
		{"gptq4_gptq", with("g_idx", at(4, 0xff, 0xff, 0xff, 0xff)), ErrGroups, "column 1 is in group -1"},
		{"gptq4_gptq", with("g_idx", shape(63)), ErrShape, "g_idx"},
		{"gptq4_gptq", with("scales", at(0, 0, 0x7e)), ErrNotFinite, "row 0, group 0"},
		{"gptq4_gptq", with("scales", at(66, 0, 0x7c)), ErrNotFinite, "row 1, group 1"},
		{"gptq4_gptq", with("scales", kind(safetensors.I16)), ErrDType, "m.scales is I16"},
		{"gptq4_gptq", with("scales", shape(1, 64)), ErrShape, "[1 64], expected 32 columns"},
		{"gptq4_gptq", with("scales", shape(4, 32)), ErrShape, "2 groups of 32"},
		{"gptq4_gptq", with("qzeros", shape(4, 2)), ErrShape, "[4 2], expected [2 4]"},
		{"gptq4_gptq", with("qweight", shape(256)), ErrShape, "two dimensions"},
		{"gptq4_gptq", with("qweight", shape(0, 32)), ErrShape, "two dimensions"},
		{"gptq4_gptq", without("scales"), ErrMissing, "m.scales"},
		{"gptq4_gptq", without("qzeros"), ErrMissing, "m.qzeros"},
		{"gptq8_gptq", with("scales", at(0, 0, 0x7e)), ErrNotFinite, "row 0"},

		{"awq_float16", with("scales", shape(4, 20)), ErrShape, "40 columns"},
		{"awq_float16", with("qzeros", shape(5, 2)), ErrShape, "expected [2 5]"},
		{"awq_float16", with("scales", at(0, 0, 0x7c)), ErrNotFinite, "row 0"},

		{"pack4_f16", with("weight_shape", at(8, 0, 0, 0, 0, 0, 0, 0, 0x40)), ErrShape, "9×4611686018427387904"},
		{"pack4_f16", with("weight_shape", at(8, 0, 0, 0, 0, 0, 0, 0, 0x80)), ErrShape, "9×-9223372036854775808"},
		{"pack4_f16", with("weight_shape", at(0, 8)), ErrShape, "8×256"},
		{"pack4_f16", with("weight_shape", shape(3)), ErrShape, "expected [2]"},
		{"pack4_f16", without("weight_shape"), ErrMissing, "m.weight_shape"},
		{"pack4_f16", with("weight_scale", at(0, 0, 0xfe)), ErrNotFinite, "row 0, group 0"},
		{"pack4_f16", with("weight_scale", shape(6, 3)), ErrShape, "scales for 9 rows of 256 columns"},
		{"pack4_f16", with("weight_scale", shape(9, 0)), ErrShape, "scales for 9 rows"},
		{"pack4_f16_asym", without("weight_zero_point"), ErrMissing, "m.weight_zero_point"},
		{"pack4_f16_asym", with("weight_zero_point", shape(1, 4)), ErrShape, "expected [2 2]"},
		{"pack4_gidx", with("weight_g_idx", at(0, 4)), ErrGroups, "column 0 is in group 4 of 4"},
		{"int8_channel_asym", with("weight_zero_point", shape(4)), ErrShape, "5 zero points"},
		{"int8_channel", with("weight_scale", kind(safetensors.U8)), ErrDType, "m.weight_scale is U8"},
		{"float8_block", with("weight_scale", shape(4, 1)), ErrShape, "expected [2 2]"},

		{"nvfp4_bfloat16", with("weight_global_scale", at(0, 0, 0, 0, 0)), ErrNotFinite, "is 0"},
		{"nvfp4_bfloat16", with("weight_global_scale", at(0, 0, 0, 0xc0, 0x7f)), ErrNotFinite, "NaN"},
		{"nvfp4_bfloat16", with("weight_scale", at(0, 0x7f)), ErrNotFinite, "row 0, group 0"},
		{"mxfp4", with("weight_scale", at(1, 0xff)), ErrNotFinite, "row 0, group 1"},
		{"mxfp4", with("weight_scale", shape(3, 5)), ErrShape, "scales for 5 rows of 96 columns"},

		{"nf4_bfloat16", with(nf4State, text("{")), ErrState, "unexpected end"},
		{"nf4_bfloat16", with(nf4State, text(`{"shape":[9223372036854775807,9223372036854775807]}`)), ErrState, "shape"},
		{"nf4_bfloat16", with(nf4State, text(`{"shape":[9,-40]}`)), ErrState, "shape [9 -40]"},
		{"nf4_bfloat16", with(nf4State, text(`{"shape":[9,40],"blocksize":63}`)), ErrState, "blocksize 63"},
		{
			"nf4_bfloat16", with(nf4State, text(`{"shape":[9,40],"blocksize":64,"dtype":"int8"}`)), ErrState,
			`dtype "int8"`,
		},
		{
			"nf4_bfloat16", with(nf4State, text(`{"shape":[9,42],"blocksize":64,"dtype":"bfloat16"}`)), ErrShape,
			"189 bytes for 9×42 elements",
		},
		{"nf4_bfloat16", with("weight.absmax", shape(5)), ErrShape, "expected [6]"},
		{"nf4_bfloat16", with("weight.absmax", at(0, 0, 0, 0x80, 0x7f)), ErrNotFinite, "block 0"},
		{"nf4_bfloat16_nested", with("weight.nested_quant_map", shape(255)), ErrShape, "expected [256]"},
		{"nf4_bfloat16_nested", with("weight.nested_absmax", shape(2)), ErrShape, "expected [1]"},
		{"nf4_bfloat16_nested", without("weight.nested_quant_map"), ErrMissing, "nested_quant_map"},
		{"int8", with("SCB", shape(4)), ErrShape, "5 scales"},
		{"int8", with("SCB", at(0, 0, 0, 0xc0, 0x7f)), ErrNotFinite, "row 0"},
		{"int8", without("weight"), ErrMissing, "m.weight"},

		{"fp8_block", with("weight_scale_inv", shape(2, 4)), ErrShape, "expected [4 2]"},
		{"fp8_block", with("weight", kind(safetensors.U8)), ErrDType, "m.weight is U8"},
		{"experts", with("weight_blocks", shape(3, 5, 32)), ErrShape, "experts, rows, groups, 16"},
		{"experts", with("weight_blocks", shape(0, 5, 2, 16)), ErrShape, "experts, rows, groups, 16"},
		{"experts", with("weight_scales", shape(3, 5, 3)), ErrShape, "expected [3 5 2]"},
		{"experts", with("weight_scales", at(0, 0xff)), ErrNotFinite, "row 0, group 0"},
		{"fp8_e8m0", with("weight_scale_inv", at(0, 0xff)), ErrNotFinite, "row 0, group 0"},
	} {
		m := loaded(t, f, c.base)
		c.change(m)
		err := decodeAll(m, configs[c.base])
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), `tensor "m.weight"`) {
			t.Errorf("%s: %v; want %v: … %s", c.base, err, c.want, c.says)
		}
	}
}

// TestOrderNeverSet: compressed-tensors fills weight_g_idx with -1, and takes columns as they stand where one is left.
func TestOrderNeverSet(t *testing.T) {
	f, configs := oracle(t)
	values := func(change func(m memory)) []float32 {
		t.Helper()
		c, err := ParseConfig(configs["pack4_gidx"])
		if err != nil {
			t.Fatal(err)
		}

		m := loaded(t, f, "pack4_gidx")
		change(m)
		model, err := Open(m, c)
		if err != nil {
			t.Fatal(err)
		}

		list, err := model.Matrix("m.weight").Whole()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}

	want := values(without("weight_g_idx"))
	if slices.Equal(want, values(func(memory) {})) {
		t.Fatal("the order of the columns does not count")
	}
	for name, change := range map[string]func(t *tensor){
		"one": at(4, 0xff, 0xff, 0xff, 0xff),
		"all": func(t *tensor) { t.data = bytes.Repeat([]byte{0xff}, len(t.data)) },
	} {
		if !slices.Equal(values(with("weight_g_idx", change)), want) {
			t.Errorf("%s unset: the columns are not taken as they stand", name)
		}
	}
}

// decodeAll opens a checkpoint and decodes what is small.
func decodeAll(src Tensors, config []byte) error {
	c, err := ParseConfig(config)
	if err != nil {
		return err
	}
	m, err := Open(src, c)
	if err != nil {
		return err
	}
	for _, name := range m.Names() {
		matrix := m.Matrix(name)
		if matrix == nil || matrix.Rows > 1<<12 || matrix.Cols > 1<<12 {
			continue
		}
		_, err := matrix.Whole()
		if matrix.Kernel() != 0 {
			// What is decoded without a fault can be had in its bits, and only that.
			w, _, fault := matrix.Codes(0, matrix.Rows)
			if (fault == nil) != (err == nil) || err == nil && !w.Consistent() {
				return fmt.Errorf("%s: %w, in its bits %w\n%+v", name, err, fault, w)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestConfigFaults(t *testing.T) {
	for text, says := range map[string]string{
		`{`:                      "unexpected end",
		`{}`:                     `quant_method "" (known: awq, bitsandbytes, compressed-tensors, fp8, gptq, mxfp4)`,
		`{"quant_method":"hqq"}`: `quant_method "hqq"`,
		`{"quant_method":"awq","version":"gemv"}`:                                    `version "gemv" (known: gemm)`,
		`{"quant_method":"gptq","checkpoint_format":"marlin"}`:                       `"marlin" (known: gptq, gptq_v2)`,
		`{"quant_method":"gptq","dynamic":{"+:(":{}}}`:                               "missing closing )",
		`{"quant_method":"gptq","dynamic":{"x":1}}`:                                  `gptq: dynamic "x": a number, where an object is expected`,
		`{"quant_method":"gptq","bits":"four"}`:                                      "gptq: bits: a string, where a whole number is expected",
		`{"quant_method":"gptq","bits":4.5}`:                                         "gptq: bits: 4.5, where a whole number is expected",
		`{"quant_method":"gptq","bits":4,"is_marlin_format":true}`:                   `"marlin" (known: gptq, gptq_v2)`,
		`{"quant_method":["gptq"]}`:                                                  "quant_method: a list, where a string is expected",
		`{"load_in_4bit":1}`:                                                         "load_in_4bit: a number, where true or false is expected",
		`{"quant_method":"compressed-tensors","config_groups":{"g":{"targets":{}}}}`: "targets: an object, where a list is expected",
		`{"quant_method":"compressed-tensors","config_groups":[1]}`:                  "config_groups: a list, where an object is expected",
		`[1]`: "a list, where an object is expected",
		`{"quant_method":"fp8","weight_block_size":[128]}`:                                                  "weight_block_size [128]",
		`{"quant_method":"fp8","weight_block_size":[128,0]}`:                                                "weight_block_size [128 0]",
		`{"quant_method":"compressed-tensors"}`:                                                             "quantise no weights",
		`{"quant_method":"compressed-tensors","config_groups":{"g":{"weights":null}}}`:                      "quantise no weights",
		`{"quant_method":"compressed-tensors","format":"x","config_groups":{"g":{}}}`:                       `format "x" (known: mixed-precision`,
		`{"quant_method":"compressed-tensors","config_groups":{"g":{"format":"y"}}}`:                        `format "y"`,
		`{"quant_method":"compressed-tensors","config_groups":{"g":{"targets":["re:(?=x)"],"weights":{}}}}`: "re:(?=x)",
		`{"quant_method":"compressed-tensors","config_groups":{"g":{"weights":{"strategy":"block"}}}}`:      "block_structure []",
	} {
		_, err := ParseConfig([]byte(text))
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), "json:") {
			t.Errorf("%s: %v; want … %s", text, err, says)
		}
	}
}

// TestSchemes: a rule that names a module goes before one that names its class, in whatever order they stand.
func TestSchemes(t *testing.T) {
	c, err := ParseConfig([]byte(`{"quant_method":"compressed-tensors","config_groups":{
		"a":{"targets":["Linear"],"weights":{"num_bits":4}},
		"b":{"targets":["re:.*down_proj","lm_head"],"weights":{"num_bits":8,"symmetric":false}},
		"c":{"targets":["model.x"],"weights":{"num_bits":3,"group_size":64}},
		"d":{"targets":["re:.*x"],"weights":{"num_bits":2}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Scheme{
		"model.q_proj":    {Bits: 4, Symmetric: true},
		"model.down_proj": {Bits: 8},
		"lm_head":         {Bits: 8},
		"model.x":         {Bits: 3, Symmetric: true, Group: 64},
		"other.x":         {Bits: 2, Symmetric: true},
	} {
		if got, err := c.Scheme(name); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}

	c, err = ParseConfig([]byte(`{"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"gptq_v2",
		"dynamic":{"+:.*\\.down_proj":{"bits":8},"-:.*gate":{},".*up_proj":{"group_size":-1}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Scheme{
		"model.q_proj":    {Bits: 4, Group: 128},
		"model.down_proj": {Bits: 8, Group: 128},
		"model.up_proj":   {Bits: 4},
	} {
		if got, err := c.Scheme(name); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}

	c, err = ParseConfig([]byte(`{"quant_method":"compressed-tensors","config_groups":{
		"a":{"targets":["model.x"],"weights":{}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Scheme("model.y"); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), `"model.y"`) {
		t.Error(err)
	}
}

// TestOthers: tensors without quantisation keep their names, those of activations are set aside, and a matrix that is
// stored twice is refused.
func TestOthers(t *testing.T) {
	f, configs := oracle(t)
	m := loaded(t, f, "int8_channel")
	m["norm.weight"] = tensor{safetensors.BF16, []int64{2}, make([]byte, 4)}
	m["ints"] = tensor{safetensors.I8, []int64{2}, make([]byte, 2)}
	m["m.input_scale"] = tensor{safetensors.BF16, []int64{1}, make([]byte, 2)}
	m["attn.k_scale"] = tensor{safetensors.F32, []int64{1}, make([]byte, 4)}

	c, err := ParseConfig(configs["int8_channel"])
	if err != nil {
		t.Fatal(err)
	}
	model, err := Open(m, c)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := model.Names(), []string{"m.weight", "ints", "norm.weight"}; !slices.Equal(got, want) {
		t.Errorf("names %q", got)
	}
	if got, want := model.Unused(), []string{"attn.k_scale", "m.input_scale"}; !slices.Equal(got, want) {
		t.Errorf("unused %q", got)
	}
	if model.Matrix("norm.weight") != nil {
		t.Error("a norm is quantised")
	}

	m["m.weight_packed"] = tensor{safetensors.I32, []int64{5, 12}, make([]byte, 240)}
	if _, err := Open(m, c); !errors.Is(err, ErrConfig) && !errors.Is(err, ErrMissing) {
		t.Error("stored twice:", err)
	}
}

// TestAutoFP8: folders of AutoFP8 have quant_method fp8 too, and one scale for a matrix. One without is refused.
func TestAutoFP8(t *testing.T) {
	m := memory{
		"m.weight":       {safetensors.F8_E4M3, []int64{1, 3}, []byte{0x38, 0x40, 0xc4}}, // 1, 2, -3
		"m.weight_scale": {safetensors.F32, []int64{}, []byte{0, 0, 0, 0x3f}},            // 0.5
		"m.input_scale":  {safetensors.F32, []int64{}, make([]byte, 4)},
	}
	c, err := ParseConfig([]byte(`{"quant_method":"fp8","activation_scheme":"static"}`))
	if err != nil {
		t.Fatal(err)
	}
	model, err := Open(m, c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := model.Matrix("m.weight").Whole()
	if err != nil || !slices.Equal(got, []float32{.5, 1, -1.5}) || !slices.Equal(model.Names(), []string{"m.weight"}) {
		t.Error(got, err, model.Names())
	}

	delete(m, "m.weight_scale")
	_, err = Open(m, c)
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), `"m.weight"`) {
		t.Error(err)
	}
}

// TestHalf: the fast conversion is that of package kernels for every finite number.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		if h&0x7c00 == 0x7c00 {
			continue
		}
		got := half([]byte{byte(h), byte(h >> 8)})
		if want := kernels.FromF16(uint16(h)); math.Float32bits(got) != math.Float32bits(want) {
			t.Fatalf("%04x: %v, want %v", h, got, want)
		}
	}
}

// TestE4M3 compares the table with the format's definition.
func TestE4M3(t *testing.T) {
	for b, want := range map[byte]float32{
		0: 0, 1: 0x1p-9, 7: 7 * 0x1p-9, 8: 0x1p-6, 0x38: 1, 0x39: 1.125, 0x7e: 448, 0x81: -0x1p-9, 0xfe: -448,
	} {
		if e4m3[b] != want {
			t.Errorf("%02x: %v, want %v", b, e4m3[b], want)
		}
	}
	if e4m3[0x7f] == e4m3[0x7f] || e4m3[0xff] == e4m3[0xff] || math.Signbit(float64(e4m3[0])) ||
		!math.Signbit(float64(e4m3[0x80])) {
		t.Error("NaN or zeros")
	}
}

// FuzzMatrices gives any configuration and any tensors to the reader.
func FuzzMatrices(f *testing.F) {
	file, configs := oracle(f)
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		m := loaded(f, file, name)
		f.Add([]byte(configs[name]), asFile(f, m))
	}

	f.Fuzz(func(t *testing.T, config, b []byte) {
		defer fuzzlimit.Watch(t, len(config)+len(b))()

		src, err := safetensors.OpenBytes(b)
		if err != nil {
			return
		}
		if err := decodeAll(src, config); err != nil && (err.Error() == "" || strings.Contains(err.Error(), "\n")) {
			t.Errorf("not one line: %q", err)
		}
	})
}

// asFile is a safetensors file of tensors.
func asFile(f *testing.F, m memory) []byte {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	entries := map[string]entry{}
	var data []byte
	for _, name := range m.Names() {
		t := m[name]
		at := int64(len(data))
		data = append(data, t.data...)
		entries[name] = entry{t.dtype.String(), append([]int64{}, t.shape...), [2]int64{at, int64(len(data))}}
	}
	header, err := json.Marshal(entries)
	if err != nil {
		f.Fatal(err)
	}
	return fuzzlimit.File(string(header), data)
}

// BenchmarkMatrix decodes bands of 16 rows of 4096 columns; the rate is that of the float32 written.
func BenchmarkMatrix(b *testing.B) {
	const rows, cols = 64, 4096
	words := func(d safetensors.DType, size int, dims ...int64) tensor {
		n := size
		for _, dim := range dims {
			n *= int(dim)
		}
		return tensor{d, dims, random(1, n)}
	}
	half := func(dims ...int64) tensor { return words(safetensors.F16, 2, dims...) }
	brain := func(dims ...int64) tensor {
		t := words(safetensors.BF16, 2, dims...)
		for i := 1; i < len(t.data); i += 2 {
			t.data[i] = 0x3c
		}
		return t
	}
	shape := tensor{safetensors.I64, []int64{2}, []byte{rows, 0, 0, 0, 0, 0, 0, 0, 0, cols >> 8, 0, 0, 0, 0, 0, 0}}

	for _, c := range []struct {
		name, config string
		src          memory
	}{
		{"gptq", `{"quant_method":"gptq","bits":4,"group_size":128}`, memory{
			"m.qweight": words(safetensors.I32, 4, cols/8, rows),
			"m.qzeros":  words(safetensors.I32, 4, cols/128, rows/8),
			"m.scales":  half(cols/128, rows),
		}},
		{"awq", `{"quant_method":"awq","bits":4,"group_size":128}`, memory{
			"m.qweight": words(safetensors.I32, 4, cols, rows/8),
			"m.qzeros":  words(safetensors.I32, 4, cols/128, rows/8),
			"m.scales":  half(cols/128, rows),
		}},
		{
			"pack4", `{"quant_method":"compressed-tensors","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4}}}}`,
			memory{
				"m.weight_packed": words(safetensors.I32, 4, rows, cols/8), "m.weight_scale": brain(rows, cols/128),
				"m.weight_shape": shape,
			},
		},
		{
			"int8", `{"quant_method":"compressed-tensors","config_groups":{"g":{"targets":["Linear"],"weights":{}}}}`,
			memory{"m.weight": words(safetensors.I8, 1, rows, cols), "m.weight_scale": brain(rows, 1)},
		},
		{"fp8", `{"quant_method":"fp8","weight_block_size":[128,128]}`, memory{
			"m.weight":           words(safetensors.F8_E4M3, 1, rows, cols),
			"m.weight_scale_inv": brain(1, cols/128),
		}},
		{
			"nvfp4", `{"quant_method":"compressed-tensors","config_groups":{"g":{"targets":["Linear"],"weights":{}}}}`,
			memory{
				"m.weight_packed":       words(safetensors.U8, 1, rows, cols/2),
				"m.weight_scale":        words(safetensors.F8_E4M3, 1, rows, cols/16),
				"m.weight_global_scale": tensor{safetensors.F32, []int64{1}, []byte{0, 0, 0x80, 0x3f}},
			},
		},
		{"nf4", `{"quant_method":"bitsandbytes"}`, memory{
			"m.weight":        words(safetensors.U8, 1, rows*cols/2, 1),
			"m.weight.absmax": tensor{safetensors.F32, []int64{rows * cols / 64}, make([]byte, rows*cols/16)},
			"m.weight.quant_state.bitsandbytes__nf4": tensor{
				safetensors.U8,
				[]int64{55},
				[]byte(`{"shape":[64,4096],"blocksize":64,"dtype":"bfloat16"}  `),
			},
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			config, err := ParseConfig([]byte(c.config))
			if err != nil {
				b.Fatal(err)
			}
			model, err := Open(c.src, config)
			if err != nil {
				b.Fatal(err)
			}
			m := model.Matrix("m.weight")
			dst := make([]float32, 16*cols)
			b.SetBytes(4 * 16 * cols)
			for i := 0; b.Loop(); i++ {
				if err := m.Decode(dst, i%4*16, 16); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
