// Package modeltest makes checkpoints for tests, and measures the memory that they take.
package modeltest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// FuseExperts writes a mixture of two decoder layers anew, with the experts of every layer in two tensors, and returns
// the folder.
func FuseExperts(t testing.TB, dir string) string {
	t.Helper()
	out := t.TempDir()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}

	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()

	bytesOf := func(name string) []byte {
		b, err := src.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}

	var infos []safetensors.Info
	data := map[string][]byte{}
	inside := map[string]bool{}
	shape := func(name string) ([]int64, bool) { info, ok := src.Info(name); return info.Shape, ok }
	for l := range 2 {
		joints, ok := arch.OfText(text).Fuse(l, shape)
		if !ok || joints == nil {
			t.Fatalf("layer %d cannot be fused", l)
		}

		for _, j := range joints {
			first, _ := src.Info(j.Parts[0].Name)
			infos = append(infos, safetensors.Info{Name: j.Name, DType: first.DType, Shape: j.Shape})
			for _, p := range j.Parts {
				data[j.Name] = append(data[j.Name], bytesOf(p.Name)...)
				inside[p.Name] = true
			}
		}
	}

	for _, name := range src.Names() {
		if !inside[name] {
			info, _ := src.Info(name)
			infos = append(infos, info)
			data[name] = bytesOf(name)
		}
	}

	write(t, out, infos, data)
	return out
}

// write makes the weights of a checkpoint.
func write(t testing.TB, dir string, infos []safetensors.Info, data map[string][]byte) {
	t.Helper()
	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if err := w.WriteTensor(info.Name, data[info.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}
