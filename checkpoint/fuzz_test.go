package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/safetensors"
)

// FuzzConfig: what a rewrite makes of a configuration is JSON again, and says nothing of packing where nothing
// is packed.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"dtype":"float32","quantization_config":{"sparsity_config":{"format":"sparse-bitmask"}}}`,
		`{"torch_dtype":1,"quantization_config":{"config_groups":{"a":1}}}`, `{"quantization_config":null}`,
		`{"quantization_config":[]}`,
		`{"a":{"b":[1e999]},"a":2}`, `[]`, `{"\u0000":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666); err != nil {
			t.Fatal(err)
		}

		config, err := readConfig(dir)
		if err != nil {
			return
		}

		_ = structureOf(config)
		r := &rewriter{ConvertOptions: ConvertOptions{DType: safetensors.BF16}, report: &Conversion{}}
		changed, err := r.newConfig(config)
		if err != nil {
			t.Fatal(err)
		}

		if isPacked(changed) {
			t.Error("nothing is packed")
		}

		for key, value := range changed.All() {
			if !json.Valid(value) {
				t.Errorf("%q: %s", key, value)
			}
		}
	})
}

// FuzzPacked: the tensors of a packed matrix, as inspect --verify looks at them.
func FuzzPacked(f *testing.F) {
	const header = `{"m.bitmask":{"dtype":"U8","shape":[2,1],"data_offsets":[0,2]},"m.compressed":{"dtype":"F32","shape":[2],"data_offsets":[2,10]},"m.row_offsets":{"dtype":"I64","shape":[2],"data_offsets":[10,26]},"m.shape":{"dtype":"I64","shape":[2],"data_offsets":[26,42]}}`
	data := []byte{
		1, 2, 0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0,
		0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
	}
	f.Add(header, data)
	path := filepath.Join(f.TempDir(), "model.safetensors")
	f.Fuzz(func(t *testing.T, header string, data []byte) {
		defer fuzzlimit.Watch(t, len(header)+len(data))()

		if err := os.WriteFile(path, fuzzlimit.File(header, data), 0o666); err != nil {
			t.Fatal(err)
		}

		src, err := weights.Open(t.Context(), path)
		if err != nil {
			return
		}
		defer src.Close()

		list, err := findPacked(src)
		if err != nil {
			return
		}

		for i := range list {
			_ = list[i].check(t.Context(), src)
			_ = list[i].checkPattern(t.Context(), src)
		}
	})
}
