package packed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// tensor is a tensor of a file and its bytes.
type tensor struct {
	name  string
	dtype safetensors.DType
	shape []int64
	data  []byte
}

// write makes a folder of tensors and opens it.
func write(t *testing.T, list []tensor) *weights.Source {
	t.Helper()
	dir := t.TempDir()
	var infos []safetensors.Info
	for _, x := range list {
		infos = append(infos, safetensors.Info{Name: x.name, DType: x.dtype, Shape: x.shape})
	}

	w, err := safetensors.Create(filepath.Join(dir, safetensors.SingleName), infos, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if err := w.WriteTensor(x.name, x.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	d, err := weights.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func int64s(x ...int64) (b []byte) {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// pack makes the four tensors of a matrix of BF16 from the definition of the form, element by element.
func pack(module string, rows, cols int, x []uint16, offsets bool) []tensor {
	wide := (cols + 7) / 8
	mask := make([]byte, rows*wide)
	var values []byte
	var starts []int64
	for i := range rows {
		starts = append(starts, int64(len(values)/2))
		for j := range cols {
			if v := x[i*cols+j]; v != 0 {
				mask[i*wide+j/8] |= 1 << (j % 8)
				values = binary.LittleEndian.AppendUint16(values, v)
			}
		}
	}

	list := []tensor{
		{module + ".shape", safetensors.I64, []int64{2}, int64s(int64(rows), int64(cols))},
		{module + ".compressed", safetensors.BF16, []int64{int64(len(values) / 2)}, values},
		{module + ".bitmask", safetensors.U8, []int64{int64(rows), int64(wide)}, mask},
	}
	if offsets {
		list = append(list, tensor{module + ".row_offsets", safetensors.I64, []int64{int64(rows)}, int64s(starts...)})
	}
	return list
}

// llama is a configuration without mixtures.
func llama(t *testing.T) *arch.Config {
	t.Helper()
	return parse(t, `{"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2,
		"num_attention_heads": 2, "intermediate_size": 12, "rms_norm_eps": 1e-5, "hidden_act": "silu"}`)
}

// mixtral is one with three experts of a block, 4 channels wide.
func mixtral(t *testing.T) *arch.Config {
	t.Helper()
	return parse(t, `{"model_type": "mixtral", "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 2,
		"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 6, "rms_norm_eps": 1e-5, "hidden_act": "silu",
		"num_local_experts": 3, "num_experts_per_tok": 2}`)
}

func parse(t *testing.T, text string) *arch.Config {
	t.Helper()
	c, err := arch.ParseConfig("config.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMatrix: a packed matrix is listed as the weight that it stands for, in the place of its first tensor, and expands
// to the elements that were packed, with offsets and without, of any width.
func TestMatrix(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dev := ref.New()
	for _, offsets := range []bool{true, false} {
		for _, cols := range []int{1, 7, 8, 9, 33} {
			const rows = 5
			x := make([]uint16, rows*cols)
			for i := range x {
				if random.IntN(2) > 0 {
					x[i] = kernels.ToBF16(random.Float32() + 1)
				}
			}

			list := append([]tensor{{"a.weight", safetensors.F32, []int64{1}, make([]byte, 4)}},
				pack("m", rows, cols, x, offsets)...)
			list = append(list, tensor{"z.shape", safetensors.F32, []int64{1}, make([]byte, 4)}) // by chance
			s, err := Find(write(t, list), llama(t), true)
			if err != nil {
				t.Fatal(err)
			}

			if got := s.Names(); !slices.Equal(got, []string{"a.weight", "m.weight", "z.shape"}) || !s.Any() {
				t.Errorf("names %q", got)
			}
			info, ok := s.Info("m.weight")
			if !ok || info.DType != safetensors.BF16 || !slices.Equal(info.Shape, []int64{rows, int64(cols)}) ||
				info.Size != int64(rows*cols*2) {
				t.Errorf("%+v", info)
			}
			if _, ok := s.Info("m.bitmask"); ok {
				t.Error("a part of the packed form is a tensor of its own")
			}
			if !strings.HasSuffix(s.File("m.weight"), safetensors.SingleName) {
				t.Errorf("it lies in %s", s.File("m.weight"))
			}

			matrix := As(s, "m.weight")
			w, _, err := matrix.Load(s, kernels.BF16, dev)
			if err != nil {
				t.Fatal(err)
			}
			for what, resident := range map[string]kernels.Sparse{"resident": w, "from the file": {}} {
				m, err := matrix.Expand(s, resident, kernels.BF16, dev)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(m.Buf.U16(), x) {
					t.Errorf("%d columns, offsets %v, %s: other elements", cols, offsets, what)
				}
			}
			Changed(w)
			Free(&w)
			if !w.IsZero() {
				t.Error("a matrix that is freed is still there")
			}
		}
	}
}

// TestNotPacked: where the configuration does not say that matrices are packed, tensors are what they are called.
func TestNotPacked(t *testing.T) {
	s, err := Find(write(t, pack("m", 2, 3, make([]uint16, 6), false)), llama(t), false)
	if err != nil || s.Any() || As(s, "m.weight") != nil || len(s.Names()) != 3 {
		t.Errorf("%q, %v", s.Names(), err)
	}
}

// TestFaults: tensors that do not make a matrix, each with the name of what is wrong.
func TestFaults(t *testing.T) {
	x := make([]uint16, 15)
	x[3] = 1
	x[7] = 2
	x[14] = 3
	for what, change := range map[string]func(list []tensor) []tensor{
		".compressed": func(l []tensor) []tensor { return slices.Delete(l, 1, 2) },
		".bitmask":    func(l []tensor) []tensor { l[2].shape = []int64{1, 3}; return l },
		"I64":         func(l []tensor) []tensor { l[0].dtype = safetensors.U64; return l },
		"[0, 5]":      func(l []tensor) []tensor { l[0].data = int64s(0, 5); return l },
		"[-3, 5]":     func(l []tensor) []tensor { l[0].data = int64s(-3, 5); return l },
		"is there": func(l []tensor) []tensor {
			return append(l, tensor{"m.weight", safetensors.U8, []int64{1}, []byte{1}})
		},
		"dimensions":   func(l []tensor) []tensor { l[1].shape = []int64{1, 3}; return l },
		".row_offsets": func(l []tensor) []tensor { l[3].shape = []int64{1, 3}; return l },
		"two I64":      func(l []tensor) []tensor { l[0].shape, l[0].data = []int64{1}, int64s(3); return l },
	} {
		list := change(pack("m", 3, 5, x, true))
		_, err := Find(write(t, list), llama(t), true)
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}

	// What is in the tensors is looked at when they are loaded.
	for what, change := range map[string]func(list []tensor) []tensor{
		"too many elements": func(l []tensor) []tensor { l[2].data[0] ^= 1; return l },
		"wrong offsets":     func(l []tensor) []tensor { copy(l[3].data[8:], int64s(3)); return l },
		"beyond the width":  func(l []tensor) []tensor { l[2].data[0] ^= 1<<3 | 1<<7; return l },
	} {
		s, err := Find(write(t, change(pack("m", 3, 5, x, true))), llama(t), true)
		if err != nil {
			t.Fatal(what, err)
		}
		if _, _, err := As(s, "m.weight").Load(s, kernels.BF16, ref.New()); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFused: parameters that lie in one stored tensor are read as tensors of their own: bytes, ranges and ends.
func TestFused(t *testing.T) {
	const name = "model.layers.1.mlp.experts.gate_up_proj"
	var data []byte
	for i := range 3 * 2 * 6 * 4 {
		data = binary.LittleEndian.AppendUint32(data, uint32(i))
	}

	c := mixtral(t)
	shape, ok := c.FusedShape(name)
	if !ok || !slices.Equal(shape, []int64{3, 12, 4}) {
		t.Skipf("the table of mixtral names %v %v", shape, ok)
	}

	dir := write(t, []tensor{
		{"model.norm.weight", safetensors.F32, []int64{4}, make([]byte, 16)}, {name, safetensors.F32, shape, data},
	})
	s, err := Find(dir, c, false)
	if err != nil {
		t.Fatal(err)
	}

	parts := s.Parts(name)
	if len(parts) != 6 || len(s.Names()) != 7 || s.Parts("model.norm.weight") != nil {
		t.Fatalf("%d parts, names %q", len(parts), s.Names())
	}
	if _, ok := s.Info(name); ok {
		t.Error("the stored tensor is still a tensor")
	}

	var joined []byte
	for i, p := range parts {
		info, ok := s.Info(p.Name)
		if !ok || !slices.Equal(info.Shape, []int64{6, 4}) || info.Size != 96 {
			t.Errorf("%s: %+v", p.Name, info)
		}
		if from, first := s.Place(p.Name); from != name || first != int64(24*i) {
			t.Errorf("%s lies in %s from %d", p.Name, from, first)
		}

		own, err := s.Bytes(p.Name)
		if err != nil || cap(own) != len(own) {
			t.Fatalf("%s: %d bytes with room for %d, %v", p.Name, len(own), cap(own), err)
		}
		joined = append(joined, own...)

		// A read that goes over the end stops there, and does not go on into the next parameter.
		buf := make([]byte, 50)
		n, err := s.ReadAt(p.Name, buf, 60)
		if n != 36 || !errors.Is(err, io.EOF) || !bytes.Equal(buf[:n], own[60:]) {
			t.Errorf("%s: %d bytes, %v", p.Name, n, err)
		}
		if n, err := s.ReadAt(p.Name, buf[:8], 8); n != 8 || err != nil || !bytes.Equal(buf[:8], own[8:16]) {
			t.Errorf("%s: %d bytes, %v", p.Name, n, err)
		}
		for _, off := range []int64{-1, 97} {
			if _, err := s.ReadAt(p.Name, buf, off); !errors.Is(err, safetensors.ErrRange) {
				t.Errorf("%s from %d: %v", p.Name, off, err)
			}
		}
		if err := s.Drop(p.Name); err != nil {
			t.Error(err)
		}
	}
	if !bytes.Equal(joined, data) {
		t.Error("the parts are not the whole")
	}
}

// TestFusedFaults: a stored tensor of another shape, and one beside its own parts.
func TestFusedFaults(t *testing.T) {
	const name = "model.layers.0.mlp.experts.gate_up_proj"
	c := mixtral(t)
	shape, ok := c.FusedShape(name)
	if !ok {
		t.Skip("the table of mixtral has no fused experts")
	}

	other := slices.Clone(shape)
	other[1] += 2
	for want, list := range map[error][]tensor{
		arch.ErrShape: {{name, safetensors.U8, other, make([]byte, 3*14*4)}},
		arch.ErrExtraTensor: {
			{name, safetensors.U8, shape, make([]byte, 3*12*4)},
			{c.Arch.Split(name, shape)[4].Name, safetensors.U8, []int64{6, 4}, make([]byte, 24)},
		},
	} {
		if _, err := Find(write(t, list), c, false); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}
