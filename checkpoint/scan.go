package checkpoint

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// scanner reads tensors piece by piece into host buffers.
type scanner struct {
	ctx context.Context
	ops *kernels.Ops
	buf *kernels.Buffer
	raw []byte
}

func newScanner(ctx context.Context, dev kernels.Device) (*scanner, error) {
	c, err := newCaster(dev)
	if err != nil {
		return nil, err
	}
	return &scanner{ctx: ctx, ops: c.ops}, nil
}

// scanned is what the values of a tensor look like.
type scanned struct {
	zeros int64 // -1: of a type whose zeros cannot be told
	bad   int64 // first element that is NaN or infinite, -1: none
}

// scan counts zeros and looks for the first value that is not finite.
func (s *scanner) scan(src safetensors.Source, info safetensors.Info) (scanned, error) {
	r := scanned{bad: -1}
	d := dtype.Of(info.DType)
	if d == 0 {
		return s.scanOther(src, info)
	}

	err := s.pieces(src, info, d, func(x kernels.Mat, at int64) {
		if d == kernels.F64 {
			s.scan64(x.Buf.F64()[:x.Cols], at, &r)
			return
		}

		r.zeros += int64(s.ops.CountZero(x))

		if r.bad < 0 {
			if i := s.ops.NonFinite(x); i >= 0 {
				r.bad = at + int64(i)
			}
		}
	})

	return r, err
}

// scanOther scans types that no device computes with.
func (s *scanner) scanOther(src safetensors.Source, info safetensors.Info) (scanned, error) {
	look := lookAt(info.DType)
	if look == nil {
		return scanned{zeros: -1, bad: -1}, nil
	}

	r := scanned{bad: -1}
	s.raw = slices.Grow(s.raw[:0], int(min(pieceBytes, info.Size)))
	for off := int64(0); off < info.Size; off += pieceBytes {
		if err := s.ctx.Err(); err != nil {
			return r, err
		}

		p := s.raw[:min(pieceBytes, info.Size-off)]
		if _, err := src.ReadAt(info.Name, p, off); err != nil {
			return r, err
		}

		zeros, bad := look(p)
		r.zeros += zeros
		if r.bad < 0 && bad >= 0 {
			r.bad = off*8/int64(info.DType.Bits()) + int64(bad)
		}
	}

	return r, nil
}

// scan64 does in plain Go what the operations do for the types that models are computed in.
func (s *scanner) scan64(x []float64, at int64, r *scanned) {
	for i, v := range x {
		if v == 0 {
			r.zeros++
		}
		if r.bad < 0 && (math.IsNaN(v) || math.IsInf(v, 0)) {
			r.bad = at + int64(i)
		}
	}
}

// pieces calls use with consecutive parts of a tensor and the place of their first element.
func (s *scanner) pieces(src safetensors.Source, info safetensors.Info, d kernels.DType,
	use func(x kernels.Mat, at int64),
) error {
	size := int64(d.Size())
	for off := int64(0); off < info.Size; off += pieceBytes {
		if err := s.ctx.Err(); err != nil {
			return err
		}

		n := min(pieceBytes, info.Size-off)
		x := hostMat(&s.buf, d, int(n/size))
		if _, err := src.ReadAt(info.Name, x.Buf.Bytes()[:n], off); err != nil {
			return err
		}

		use(x, off/size)
	}

	return nil
}

// index turns the place of an element into its coordinates.
func index(at int64, shape []int64) string {
	out := make([]int64, len(shape))
	for i, n := range slices.Backward(shape) {
		out[i], at = at%max(n, 1), at/max(n, 1)
	}
	return fmt.Sprint(out)
}
