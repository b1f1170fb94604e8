package safetensors

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzOpenDir: an index and two shards from a stranger. What opens has every tensor where the index says, and reads.
func FuzzOpenDir(f *testing.F) {
	const a, b = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	tensor := func(name string) string { return `{"` + name + `":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}` }
	for _, index := range []string{
		`{"metadata":{"total_size":4},"weight_map":{"x":"` + a + `","y":"` + b + `"}}`,
		`{"weight_map":{"x":"` + a + `"}}`, `{"weight_map":{"x":"` + a + `","y":"` + a + `"}}`,
		`{"weight_map":{"x":"../` + a + `"}}`,
		`{"weight_map":{"x":"sub/` + a + `"}}`, `{"weight_map":{"x":"` + IndexName + `"}}`, `{"weight_map":{}}`, `[]`,
	} {
		f.Add([]byte(index), tensor("x"), tensor("y"), []byte{1, 2})
	}

	f.Add([]byte(`{"weight_map":{"x":"`+a+`","y":"`+b+`"}}`), tensor("x"), tensor("x"), []byte{1, 2})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, index []byte, first, second string, data []byte) {
		defer fuzzlimit.Watch(t, len(index)+len(first)+len(second)+len(data))()

		for name, text := range map[string][]byte{
			IndexName: index, a: fuzzlimit.File(first, data),
			b: fuzzlimit.File(second, data),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}

		d, err := OpenDir(dir)
		if err != nil {
			return
		}
		defer d.Close()

		for _, name := range d.Names() {
			info, ok := d.Info(name)
			if got, err := d.Bytes(name); !ok || err != nil || int64(len(got)) != info.Size {
				t.Errorf("%v: %d bytes, %v", info, len(got), err)
			}
		}
	})
}
