package ggufmodel

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzOpen gives any bytes to the reader. What it accepts must be readable throughout: every tensor as it is described,
// every file well-formed. Errors are one line.
func FuzzOpen(f *testing.F) {
	for _, name := range []string{"llama", "qwen3_moe", "gpt2", "deepseek_v3", "gpt_oss", "falcon", "phi3-long"} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".gguf"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, vocabulary := range []func(d *draft){(*draft).byteVocabulary, (*draft).pieceVocabulary} {
		f.Add(written(f, vocabulary))
	}

	f.Fuzz(func(t *testing.T, b []byte) {
		defer fuzzlimit.Watch(t, len(b))()

		src, err := gguf.OpenBytes(b)
		if err != nil {
			return
		}
		m, err := open(src, "x.gguf")
		if err != nil {
			oneLine(t, err)
			return
		}

		for _, name := range m.Names() {
			readTensor(t, m, name)
		}
		files, err := m.Files()
		if err != nil {
			oneLine(t, err)
			return
		}
		for name, text := range files {
			if filepath.Ext(name) == ".json" && !json.Valid(text) {
				t.Errorf("%s is not JSON: %.200q", name, text)
			}
		}
	})
}

func oneLine(t *testing.T, err error) {
	if err.Error() == "" || bytes.ContainsRune([]byte(err.Error()), '\n') {
		t.Errorf("not one line: %q", err)
	}
}

// readTensor decodes a tensor in any case in which it is described. Scales that are no numbers are errors.
func readTensor(t *testing.T, m *Model, name string) {
	info, ok := m.Info(name)
	size, err := info.DType.ByteSize(info.Shape)
	if !ok || err != nil {
		t.Fatalf("%s: %v, %v", name, info, err)
	}

	matrix := m.Matrix(name)
	if int64(matrix.Rows)*int64(matrix.Cols) != info.Elements() {
		t.Fatalf("%s: %d rows of %d values for %v", name, matrix.Rows, matrix.Cols, info.Shape)
	}
	if _, err := matrix.Whole(); err != nil {
		oneLine(t, err)
	}
	if data, plain, err := m.Bytes(name); err != nil || plain && int64(len(data)) != size {
		t.Fatalf("%s: %d bytes of %d, %v", name, len(data), size, err)
	}
}

// written is the bytes of a file of testdata with a vocabulary.
func written(f *testing.F, vocabulary func(d *draft)) []byte {
	d := load(f, "llama")
	vocabulary(d)
	path := d.write(f)
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	return b
}
