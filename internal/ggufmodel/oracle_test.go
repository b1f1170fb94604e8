package ggufmodel

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/lm/arch"
)

// checkpoint is what make.py writes about the checkpoint that a file was made of.
type checkpoint struct {
	Config  json.RawMessage
	Tensors map[string]described
}

// described is a tensor: its shape and a hash of its values in float32.
type described struct {
	shape []int64
	hash  string
}

// UnmarshalJSON reads [shape, hash].
func (d *described) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&d.shape, &d.hash})
}

// TestFamilies compares every file of llama.cpp's converter with the checkpoint that it was made of: the same tensors,
// bit for bit, and a configuration that means the same. COMPRESS_GGUF names a folder with more of them.
func TestFamilies(t *testing.T) {
	for _, folder := range []string{"testdata", os.Getenv("COMPRESS_GGUF")} {
		if folder == "" {
			continue
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatal("no checkpoints in", folder, err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) { compareFile(t, file) })
		}
	}
}

func compareFile(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want checkpoint
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}

	g, err := gguf.OpenModel(strings.TrimSuffix(file, ".json") + ".gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	m, err := New(g)
	if err != nil {
		t.Fatal(err)
	}

	compareConfig(t, want.Config, m)
	names := m.Names()
	for name, w := range want.Tensors {
		if !slices.Contains(names, name) {
			t.Errorf("tensor %s is missing", name)
			continue
		}
		compareTensor(t, m, name, w)
	}
	for _, name := range names {
		if _, ok := want.Tensors[name]; !ok {
			t.Errorf("tensor %s is not in the checkpoint", name)
		}
	}
}

// compareConfig compares what two configurations mean, rather than how they say it.
func compareConfig(t *testing.T, text []byte, m *Model) {
	want, err := arch.ParseConfig("config.json", text)
	if err != nil {
		t.Fatal(err)
	}

	w, h := reflect.ValueOf(*want), reflect.ValueOf(*m.Config())
	for i := range w.NumField() {
		field := w.Type().Field(i)
		name := field.Name
		if !field.IsExported() || slices.Contains([]string{"DType", "BOS", "EOS", "Unknown", "Arch"}, name) {
			continue
		}
		a, b := w.Field(i).Interface(), h.Field(i).Interface()
		if a == "mistral" { // without a window it is a Llama, and files call it so
			a = "llama"
		}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %s, expected %s\n%s", name, show(b), show(a), m.text)
		}
	}
	if len(m.Config().Unknown) > 0 {
		t.Errorf("keys without effect: %v", m.Config().Unknown)
	}
}

func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func compareTensor(t *testing.T, m *Model, name string, want described) {
	info, ok := m.Info(name)
	if !ok || !slices.Equal(info.Shape, want.shape) {
		t.Errorf("%s: %v, expected %v", name, info.Shape, want.shape)
		return
	}

	matrix := m.Matrix(name)
	values, err := matrix.Whole()
	if err != nil {
		t.Error(err)
		return
	}

	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	sum := sha256.Sum256(raw)
	if got := hex.EncodeToString(sum[:8]); got != want.hash {
		t.Errorf("%s of %s: other values", name, m.Place(name))
	}

	pieces(t, m, name, values)
	data, plain, err := m.Bytes(name)
	if err != nil {
		t.Error(err)
	}
	if size, _ := info.DType.ByteSize(info.Shape); plain && int64(len(data)) != size {
		t.Errorf("%s: %d bytes, expected %d", name, len(data), size)
	}
	if plain && info.DType.Bits() == 32 && string(data) != string(raw) {
		t.Errorf("%s: the view has other bytes", name)
	}
}

// pieces decodes a matrix some rows at a time, which must give the same.
func pieces(t *testing.T, m *Model, name string, want []float32) {
	matrix := m.Matrix(name)
	for _, step := range []int{1, 3, matrix.Band} {
		for first := 0; first < matrix.Rows; first += step {
			n := min(step, matrix.Rows-first)
			dst := make([]float32, n*matrix.Cols)
			if err := matrix.Decode(dst, first, n); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(dst, want[first*matrix.Cols:][:len(dst)]) {
				t.Fatalf("%s: rows %d to %d differ from those of the whole", name, first, first+n)
			}
		}
	}
}
