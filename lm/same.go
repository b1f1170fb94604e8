package lm

import (
	"bytes"
	"slices"

	"github.com/modelcompress/compress/safetensors"
)

// sameTensor compares two tensors without holding either.
func sameTensor(s safetensors.Source, a, b string) (bool, error) {
	x, _ := s.Info(a)
	y, _ := s.Info(b)
	if x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) {
		return false, nil
	}

	p, q := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < x.Size; off += int64(len(p)) {
		n := min(int64(len(p)), x.Size-off)
		if _, err := s.ReadAt(a, p[:n], off); err != nil {
			return false, err
		}
		if _, err := s.ReadAt(b, q[:n], off); err != nil {
			return false, err
		}
		if !bytes.Equal(p[:n], q[:n]) {
			return false, nil
		}
	}

	return true, nil
}
