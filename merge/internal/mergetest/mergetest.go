// Package mergetest makes the small models that the tests of merging work on, and compares what comes out.
package mergetest

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// Files reads every file of a folder.
func Files(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return files
}

// Same compares two folders file by file.
func Same(t testing.TB, got, want string) {
	t.Helper()
	a, b := Files(t, got), Files(t, want)
	for name, data := range b {
		if a[name] != data {
			t.Errorf("%s differs", name)
		}
	}

	if len(a) != len(b) {
		t.Errorf("%d files, want %d", len(a), len(b))
	}
}

// Tensors reads all tensors of a folder.
func Tensors(t testing.TB, dir string) map[string]string {
	t.Helper()
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	out := map[string]string{}
	for _, n := range d.Names() {
		data, err := d.Bytes(n)
		if err != nil {
			t.Fatal(err)
		}
		out[n] = string(data)
	}

	return out
}

// Differing lists the tensors that are not equal.
func Differing(a, b map[string]string) (list []string) {
	for n := range a {
		if a[n] != b[n] {
			list = append(list, n)
		}
	}
	return list
}

// Values are the values of all tensors of a folder.
func Values(t testing.TB, dir string) map[string][]float32 {
	t.Helper()
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	out := map[string][]float32{}
	for _, name := range d.Names() {
		info, _ := d.Info(name)
		err := d.View(name, func(raw []byte) error {
			x := make([]float32, info.Size*8/int64(info.DType.Bits()))
			for i := range x {
				switch info.DType {
				case safetensors.BF16:
					x[i] = kernels.FromBF16(uint16(raw[2*i]) | uint16(raw[2*i+1])<<8)
				case safetensors.F16:
					x[i] = kernels.FromF16(uint16(raw[2*i]) | uint16(raw[2*i+1])<<8)
				default:
					x[i] = math.Float32frombits(
						uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24)
				}
			}

			out[name] = x
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// WriteModel writes a folder of F32 tensors of shape [2, n/2].
func WriteModel(t testing.TB, dir string, tensors map[string][]float32) {
	t.Helper()
	var infos []safetensors.Info
	for name, x := range tensors {
		infos = append(infos,
			safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int64{2, int64(len(x) / 2)}})
	}

	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{Order: safetensors.OrderHF})
	if err != nil {
		t.Fatal(err)
	}

	for name, x := range tensors {
		data := make([]byte, 0, 4*len(x))
		for _, v := range x {
			b := math.Float32bits(v)
			data = append(data, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		}

		if err := w.WriteTensor(name, data); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

// MixtureTensors gives random experts, routers and a norm for each of two blocks, by the names of the
// architecture's table.
func MixtureTensors(t testing.TB, a *arch.Arch, seed uint64) map[string][]float32 {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))

	list := map[string][]float32{"model.embed_tokens.weight": make([]float32, 12)}
	for l := range 2 {
		list[fmt.Sprintf("model.layers.%d.input_layernorm.weight", l)] = make([]float32, 4)

		for _, x := range a.Tensors {
			switch {
			case x.PerExpert():
				for e := range 3 {
					list[arch.Expand(x.Name, l, e)] = make([]float32, 20)
				}
			case x.Role == arch.Router:
				list[arch.Expand(x.Name, l, 0)] = make([]float32, 12)
			}
		}
	}

	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range list {
			if !yield(n) {
				return
			}
		}
	}) {
		for i := range list[name] {
			list[name][i] = float32(rng.NormFloat64())
		}
	}

	return list
}

// mixtureShape is the shape of one of those tensors.
func mixtureShape(name string, n int) []int64 {
	switch {
	case n == 4:
		return []int64{4}
	case n == 20 && (strings.Contains(name, "down_proj") || strings.Contains(name, "w2")):
		return []int64{4, 5}
	}
	return []int64{int64(n) / 4, 4}
}

// WriteMixture writes a checkpoint, with the experts of a block in two tensors if fused is set.
func WriteMixture(t testing.TB, a *arch.Arch, list map[string][]float32, fused bool, d safetensors.DType) string {
	t.Helper()
	dir := t.TempDir()
	values, shapes := map[string][]float32{}, map[string][]int64{}
	for name, x := range list {
		values[name], shapes[name] = x, mixtureShape(name, len(x))
	}

	for l := 0; fused && l < 2; l++ {
		joints, ok := a.Fuse(l, func(n string) ([]int64, bool) { s, ok := shapes[n]; return s, ok })
		if !ok {
			t.Fatal("cannot be fused")
		}

		for _, j := range joints {
			var all []float32
			for _, p := range j.Parts {
				all = append(all, list[p.Name]...)
				delete(values, p.Name)
			}
			values[j.Name], shapes[j.Name] = all, j.Shape
		}
	}

	var infos []safetensors.Info
	for name := range values {
		infos = append(infos, safetensors.Info{Name: name, DType: d, Shape: shapes[name]})
	}

	slices.SortFunc(infos, func(x, y safetensors.Info) int { return strings.Compare(x.Name, y.Name) })
	w, err := safetensors.CreateDir(dir, infos, map[string]string{"format": "pt"}, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range infos {
		var data []byte
		for _, v := range values[info.Name] {
			bits := math.Float32bits(v)
			if d == safetensors.F32 {
				data = binary.LittleEndian.AppendUint32(data, bits)
			} else {
				data = binary.LittleEndian.AppendUint16(data, uint16(bits>>16))
			}
		}

		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"model_type":%q}`, a.ModelType),
		0o600); err != nil {
		t.Fatal(err)
	}

	return dir
}

// Apart gives a checkpoint's bytes by the names of the table, whatever its layout, and whether that is the fused one.
func Apart(t testing.TB, a *arch.Arch, dir string) (list map[string]string, fused bool) {
	t.Helper()
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	list = map[string]string{}
	for _, name := range d.Names() {
		info, _ := d.Info(name)
		data, err := d.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		parts := a.Split(name, info.Shape)
		for _, p := range parts {
			fused = true
			width := int64(info.DType.Bits() / 8)
			n := width
			for _, d := range p.Shape {
				n *= d
			}
			list[p.Name] = fmt.Sprint(p.Shape) + string(data[p.First*width:p.First*width+n])
		}

		if parts == nil {
			list[name] = fmt.Sprint(info.Shape) + string(data)
		}
	}

	return list, fused
}
