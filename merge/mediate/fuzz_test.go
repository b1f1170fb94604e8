package mediate

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/safetensors"
)

// FuzzReadPrompts: the prompts that a router is trained on.
func FuzzReadPrompts(f *testing.F) {
	for _, s := range []string{
		"\"a\"\n{\"text\":\"b\"}\n{\"prompt\":\"c\"}\n\n", "{\"text\":1}\n", "[]", "\"\"\n",
		"{\"text\":\"a\"", "\xff\"\n",
	} {
		f.Add([]byte(s))
	}

	path := filepath.Join(f.TempDir(), "p.jsonl")
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
		list, err := ReadPrompts(path)
		if err == nil && (len(list) == 0 || len(list) > promptLimit) {
			t.Errorf("%d prompts", len(list))
		}
	})
}

// FuzzReadFeatures: features from outside are of length 1.
func FuzzReadFeatures(f *testing.F) {
	path := filepath.Join(f.TempDir(), "f.safetensors")
	for _, rows := range []int64{1, 3} {
		w, err := safetensors.Create(path,
			[]safetensors.Info{{Name: "features", DType: safetensors.F32, Shape: []int64{rows, 2}, Size: 8 * rows}},
			nil, safetensors.Options{Overwrite: true})
		if err != nil {
			f.Fatal(err)
		}

		data := make([]byte, 8*rows)
		for i := range data {
			data[i] = byte(i)
		}
		if err := w.WriteTensor("features", data); err != nil {
			f.Fatal(err)
		}
		if err := w.Finish(); err != nil {
			f.Fatal(err)
		}

		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}

		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()

		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}

		list, err := ReadFeatures(path)
		if err != nil {
			return
		}

		for _, x := range list {
			s := 0.0
			for _, v := range x {
				s += v * v
			}
			if math.Abs(s-1) > 1e-9 {
				t.Errorf("length² %g", s)
			}
		}
	})
}

// FuzzReadManifest: no text is more than an error.
func FuzzReadManifest(f *testing.F) {
	f.Add(
		[]byte(
			`{"format_version":1,"complete":true,"experts":[{"name":"a","file":"expert-a.safetensors","tensors":{"w":{"encoding":"bitmap","kept":3}}}]}`))
	f.Add(
		[]byte(
			`{"format_version":1,"complete":true,"experts":[{"name":"a","file":"../x"}],"files":[{"name":"/etc/passwd"}]}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, sideFolder), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, sideFolder, manifestName), text, 0o666); err != nil {
			t.Fatal(err)
		}

		m, err := readManifest(dir)
		if err != nil {
			return
		}

		for _, e := range m.Experts {
			if e.File != "" && filepath.Dir(filepath.Join(dir, e.File)) != dir {
				t.Errorf("%q leaves the folder", e.File)
			}
		}
	})
}
