package safetensors

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzOpen gives any bytes to the reader. What it accepts must be readable throughout, and
// writing it again must give a file that says the same.
func FuzzOpen(f *testing.F) {
	for _, rule := range rules {
		f.Add(rule.data)
	}

	golden, err := filepath.Glob("testdata/*.safetensors")
	if err != nil || len(golden) == 0 {
		f.Fatal("no golden files", err)
	}

	for _, path := range golden {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}

	f.Fuzz(func(t *testing.T, b []byte) {
		defer fuzzlimit.Watch(t, len(b))()

		src, err := OpenBytes(b)
		if err != nil {
			if err.Error() == "" || bytes.ContainsRune([]byte(err.Error()), '\n') {
				t.Errorf("not one line: %q", err)
			}
			return
		}

		total := int64(0)
		var tensors []Info
		for _, name := range src.Names() {
			info, ok := src.Info(name)
			data, err := src.Bytes(name)
			if !ok || err != nil || int64(len(data)) != info.Size ||
				info.Elements()*int64(info.DType.Bits()) != info.Size*8 {
				t.Fatalf("%v: %d bytes, %v", info, len(data), err)
			}

			total += info.Size
			tensors = append(tensors, info)
		}

		l, err := plan(tensors, src.Metadata(), OrderGiven)
		if err != nil {
			t.Fatal(err)
		}

		again := append(bytes.Clone(l.head), b[int64(len(b))-total:]...)
		copied, err := OpenBytes(again)
		if err != nil {
			t.Fatalf("written again: %v", err)
		}

		for _, info := range tensors {
			want, _ := src.Bytes(info.Name)
			if got, err := copied.Bytes(info.Name); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v: other bytes, %v", info, err)
			}
		}
	})
}

// FuzzIndex gives any bytes to the reader of indices. No accepted shard leaves the folder.
func FuzzIndex(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"total_size":1},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`,
		`{"weight_map":{"a":"../x"}}`, `{"weight_map":{"a":"/x"}}`, `{"weight_map":{"a":".."}}`,
		`{"weight_map":{"a":"x","a":"y"}}`,
		`{"metadata":{"x":[1,-2e3,{"y":null}]},"weight_map":{"é\u00e9":"\ud83d\ude00"},"z":true}`, `[]`, ``,
		`{"weight_map":{"a":"\u002e./x"}}`,
	} {
		f.Add([]byte(seed))
	}

	f.Fuzz(func(t *testing.T, b []byte) {
		defer fuzzlimit.Watch(t, len(b))()

		x, err := parseIndex(b)
		if err != nil {
			return
		}

		for name, shard := range x.shardOf {
			if filepath.Base(shard) != shard || !filepath.IsLocal(shard) || shard == "." {
				t.Errorf("%q in %q", name, shard)
			}
		}

		text, err := marshalIndex(1, nil, x.shardOf)
		if err != nil {
			t.Fatal(err)
		}

		again, err := parseIndex(text)
		if err != nil || len(again.shardOf) != len(x.shardOf) || len(again.shards) != len(x.shards) {
			t.Errorf("written again: %v", err)
		}
	})
}
