package ggufmodel

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
)

// asCheckpoint is a file as the checkpoint that it was made of.
type asCheckpoint struct{ m *Model }

func (a asCheckpoint) Names() []string { return a.m.Names() }

func (a asCheckpoint) File(string) string { return a.m.meta.file }

func (a asCheckpoint) Shape(name string) ([]int64, bool) {
	info, ok := a.m.Info(name)
	return info.Shape, ok
}

// reader gives rows of the parameters of a plan.
func reader(e *Export, m *Model) RowReader {
	return func(name string, dst []float32, first, n int) error {
		part := e.Stored(name)
		matrix := m.Matrix(part.From)
		all, err := matrix.Whole()
		if err != nil {
			return err
		}
		at := int(part.First) + first*len(dst)/n
		copy(dst, all[at:][:len(dst)])
		return nil
	}
}

// TestRoundTrip: a file of llama.cpp's converter, read as a checkpoint, is planned as that very file again, tensors and
// metadata, with the configuration that the file gives and with the one that the converter was given.
func TestRoundTrip(t *testing.T) {
	for _, folder := range []string{"testdata", os.Getenv("COMPRESS_GGUF")} {
		if folder == "" {
			continue
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.gguf"))
		if err != nil || len(files) == 0 {
			t.Fatal("no files in", folder, err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".gguf"), func(t *testing.T) { roundTrip(t, file) })
		}
	}
}

func roundTrip(t *testing.T, file string) {
	g, err := gguf.OpenModel(file)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	m, err := New(g)
	if err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(strings.TrimSuffix(file, ".gguf") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var made checkpoint
	if err := json.Unmarshal(text, &made); err != nil {
		t.Fatal(err)
	}

	for _, config := range []string{string(m.text), string(made.Config)} {
		e, err := NewExport(Checkpoint{
			Path: "some/tiny", Tensors: asCheckpoint{m},
			ReadFile: func(name string) ([]byte, error) {
				if name == "config.json" {
					return []byte(config), nil
				}
				return nil, fs.ErrNotExist
			},
		}, ExportOptions{FileType: fileType(g)})
		if err != nil {
			t.Fatal(err)
		}
		compareMetadata(t, e.Metadata, g.Metadata())
		compareTensors(t, e, m, g)
	}
}

func fileType(g *gguf.Model) uint32 {
	v, _ := g.Metadata().Get("general.file_type")
	n, _ := v.Uint()
	return uint32(n)
}

// differences are keys of the converter's files that ours have otherwise, and why.
var differences = map[string]string{
	"tokenizer.ggml.model":         "files of testdata have no tokenizer, and say so",
	"tokenizer.ggml.add_bos_token": "is part of the tokenizer",
	"general.file_type":            "the converter forgets it for gptneox",
}

func compareMetadata(t *testing.T, have, want gguf.Metadata) {
	t.Helper()
	for _, e := range want {
		v, ok := have.Get(e.Key)
		if differences[e.Key] == "" && (!ok || v != e.Value) {
			t.Errorf("%s: %v %v, expected %v %v", e.Key, v.Kind(), v, e.Value.Kind(), e.Value)
		}
	}
	for _, e := range have {
		if _, ok := want.Get(e.Key); !ok && differences[e.Key] == "" {
			t.Errorf("%s: %v, which the converter does not write", e.Key, e.Value)
		}
	}
}

func compareTensors(t *testing.T, e *Export, m *Model, g *gguf.Model) {
	t.Helper()
	seen := map[string]bool{}
	offset := map[string]int{} // what has been compared of a fused tensor
	for _, target := range e.Tensors {
		want, ok := g.Info(target.Name)
		fused := fusedName.ReplaceAllString(target.Name, ".attn_qkv.")
		if !ok {
			want, ok = g.Info(fused)
			want.Shape = target.Shape
		}
		if !ok || !slices.Equal(target.Shape, want.Shape) {
			t.Errorf("%s: %v, expected %v", target.Name, target.Shape, want.Shape)
			continue
		}
		if (want.Type == gguf.F32) == target.Matrix && fileType(g) != 0 {
			t.Errorf("%s is %v, and matrix is %v", target.Name, want.Type, target.Matrix)
		}

		data, err := g.Bytes(want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if want.Name != target.Name {
			size, _ := want.Type.ByteSize(want.Shape)
			data = data[offset[fused]:][:size]
			offset[fused] += int(size)
		}

		seen[want.Name] = true
		for _, step := range []int{target.Rows(), 1, 3} {
			if have := bytesOf(t, e, m, target, want.Type, step); string(have) != string(data) {
				t.Errorf("%s of %v: other bytes, by %d rows", target.Name, target.Sources, step)
				break
			}
		}
	}

	for _, name := range g.Names() {
		if !seen[name] {
			t.Errorf("%s is not planned", name)
		}
	}
}

// fusedName finds the projections that the converter can be asked to write as one.
var fusedName = regexp.MustCompile(`\.attn_[qkv]\.`)

// bytesOf is the bytes of a tensor, made of so many rows at a time.
func bytesOf(t *testing.T, e *Export, m *Model, target *Target, as gguf.Type, step int) []byte {
	t.Helper()
	var data []byte
	for first := 0; first < target.Rows(); first += step {
		n := min(step, target.Rows()-first)
		rows := make([]float32, n*target.Cols())
		if err := target.ReadRows(rows, first, n, reader(e, m)); err != nil {
			t.Fatal(err)
		}
		encode, err := Plain(as)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := as.ByteSize([]int64{int64(len(rows))})
		part := make([]byte, size)
		if err := encode(part, rows, first); err != nil {
			t.Fatal(err)
		}
		data = append(data, part...)
	}
	return data
}
