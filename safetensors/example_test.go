package safetensors_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/safetensors"
)

func ExampleCreate() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	path := filepath.Join(dir, "model.safetensors")

	w, err := safetensors.Create(path, []safetensors.Info{
		{Name: "weight", DType: safetensors.F32, Shape: []int64{2, 2}},
		{Name: "step", DType: safetensors.I64, Shape: []int64{}},
	}, map[string]string{"format": "pt"}, safetensors.Options{Order: safetensors.OrderAligned})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Abort() // does nothing after Finish

	weight := []byte{}
	for _, v := range []float32{1, 2, 3, 4} {
		weight = binary.LittleEndian.AppendUint32(weight, math.Float32bits(v))
	}
	if err := w.WriteTensor("weight", weight); err != nil {
		log.Fatal(err)
	}

	fmt.Println(errors.Is(w.Finish(), safetensors.ErrIncomplete), w.Remaining())
	if err := w.WriteAt("step", []byte{7, 0, 0, 0, 0, 0, 0, 0}, 0); err != nil {
		log.Fatal(err)
	}
	if err := w.Finish(); err != nil {
		log.Fatal(err)
	}

	stat, err := os.Stat(path)
	fmt.Println(stat.Size() == w.Size(), err)
	// Output:
	// true [step]
	// true <nil>
}

func ExampleOpen() {
	f, err := safetensors.Open("testdata/scalar-and-empty.safetensors")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()

	for _, name := range f.Names() {
		info, _ := f.Info(name)
		data, err := f.Bytes(name)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name, info.DType, info.Shape, info.Elements(), data)
	}
	// Output:
	// empty F32 [3 0] 0 []
	// scalar I16 [] 1 [7 0]
}
