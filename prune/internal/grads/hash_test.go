package grads

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// TestHash: the hash is that of tensors, in whatever order and in however many files they lie, and sees each bit, name,
// type and shape.
func TestHash(t *testing.T) {
	type tensor struct {
		info safetensors.Info
		data []byte
	}
	base := []tensor{
		{safetensors.Info{Name: "a", DType: safetensors.U8, Shape: []int64{2, 3}}, []byte{1, 2, 3, 4, 5, 6}},
		{safetensors.Info{Name: "b", DType: safetensors.F16, Shape: []int64{2}}, []byte{7, 8, 9, 10}},
	}

	hash := func(list []tensor, shard int64) string {
		t.Helper()
		var infos []safetensors.Info
		for _, x := range list {
			infos = append(infos, x.info)
		}

		dir := t.TempDir()
		w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{MaxShardSize: shard})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			if err := w.WriteTensor(x.info.Name, x.data); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}

		sum, err := Hash(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}

	want := hash(base, 0)
	turned := slices.Clone(base)
	slices.Reverse(turned)
	if hash(turned, 0) != want || hash(base, 6) != want {
		t.Error("order or files decide")
	}

	for name, change := range map[string]func(x *tensor){
		"a bit":   func(x *tensor) { x.data = []byte{1, 2, 3, 4, 5, 7} },
		"a name":  func(x *tensor) { x.info.Name = "A" },
		"a type":  func(x *tensor) { x.info.DType = safetensors.I8 },
		"a shape": func(x *tensor) { x.info.Shape = []int64{3, 2} },
	} {
		other := slices.Clone(base)
		change(&other[0])
		if hash(other, 0) == want {
			t.Errorf("%s makes no difference", name)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := Hash(t.Context(), filepath.Join(dir, "none")); err == nil {
		t.Error("nothing has a hash")
	}
	if _, err := Hash(ctx, "../../../testdata/nano/base"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
