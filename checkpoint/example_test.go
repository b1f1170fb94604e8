package checkpoint_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/safetensors"
)

const nano = "../testdata/nano/base"

// What a checkpoint holds.
func ExampleInspect() {
	r, err := checkpoint.Inspect(context.Background(), nano, checkpoint.InspectOptions{})
	check(err)
	fmt.Printf("%s: %d tensors, %.0f %% zeros\n", r.Architecture, r.Tensors, 100**r.Sparsity)
	// Output:
	// llama: 38 tensors, 0 % zeros
}

// Whether a download is whole: every value, the shapes, the tokenizer.
func ExampleVerify() {
	r, err := checkpoint.Verify(context.Background(), nano, checkpoint.InspectOptions{})
	check(err)
	fmt.Println(r.Verified)
	// Output:
	// [headers offsets values shapes tokenizer]
}

// A checkpoint is written again in half the bytes, and what rounding has changed is compared.
func ExampleConvert() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "convert")
	check(err)
	defer os.RemoveAll(dir)

	out := filepath.Join(dir, "f16")
	r, err := checkpoint.Convert(ctx, nano, out, checkpoint.ConvertOptions{DType: safetensors.F16})
	check(err)
	fmt.Println(r.Tensors, "tensors,", r.Cast, "of them cast")
	// Output:
	// 38 tensors, 38 of them cast
}

// Two checkpoints, tensor by tensor.
func ExampleDiff() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "diff")
	check(err)
	defer os.RemoveAll(dir)

	out := filepath.Join(dir, "f32")
	_, err = checkpoint.Convert(ctx, nano, out, checkpoint.ConvertOptions{DType: safetensors.F32})
	check(err)

	r, err := checkpoint.Diff(ctx, nano, out, checkpoint.DiffOptions{})
	check(err)
	fmt.Println(len(r.Tensors), "tensors have another type,", r.Tensors[0].Changed, "elements of the first differ")
	// Output:
	// 38 tensors have another type, 0 elements of the first differ
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
