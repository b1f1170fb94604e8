package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// comparer reads two tensors side by side, floats as F64; other types are compared bit by bit.
type comparer struct {
	ctx  context.Context
	ops  *kernels.Ops
	a, b side
}

// side is the working memory for one of the two.
type side struct{ stored, wide *kernels.Buffer }

func newComparer(ctx context.Context, dev kernels.Device) (*comparer, error) {
	c, err := newCaster(dev)
	if err != nil {
		return nil, err
	}
	return &comparer{ctx: ctx, ops: c.ops}, nil
}

func (c *comparer) compare(a, b safetensors.Source, x, y safetensors.Info) (TensorDiff, error) {
	t := TensorDiff{Name: x.Name, Elements: product(x.Shape)}
	if x.DType != y.DType {
		t.Form = fmt.Sprintf("%s, %s", x.DType, y.DType)
	}

	if !slices.Equal(x.Shape, y.Shape) {
		t.Form = fmt.Sprintf("%s%v, %s%v", x.DType, x.Shape, y.DType, y.Shape)
		return t, nil
	}

	t.Compared = true
	if !dtype.IsFloat(x.DType) || !dtype.IsFloat(y.DType) {
		return t, c.bits(a, b, x, y, &t)
	}

	var sumA, sumD, largest float64
	for at := int64(0); at < t.Elements; at += diffPiece {
		p, err := c.wide(a, x, at, &c.a)
		if err != nil {
			return t, err
		}

		q, err := c.wide(b, y, at, &c.b)
		if err != nil {
			return t, err
		}

		for i, v := range p {
			if v == q[i] || math.IsNaN(v) && math.IsNaN(q[i]) {
				sumA += v * v
				continue
			}

			d := math.Abs(v - q[i])
			t.Changed++
			largest = max(largest, d)
			sumA, sumD = sumA+v*v, sumD+d*d
		}
	}

	t.MaxAbs, t.Relative = finite(largest), finite(0)
	if sumD != 0 {
		t.Relative = finite(math.Sqrt(sumD / sumA))
	}

	return t, nil
}

// diffPiece is how many elements are compared at a time.
const diffPiece = 1 << 20

// wide reads a piece of a float tensor as F64.
func (c *comparer) wide(src safetensors.Source, info safetensors.Info, at int64, s *side) ([]float64, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}

	n := int(min(diffPiece, product(info.Shape)-at))
	d := dtype.Of(info.DType)
	x, y := hostMat(&s.stored, d, n), hostMat(&s.wide, kernels.F64, n)
	if _, err := src.ReadAt(info.Name, x.Buf.Bytes()[:n*d.Size()], at*int64(d.Size())); err != nil {
		return nil, err
	}

	c.ops.Convert(y, x)
	return y.Buf.F64()[:n], nil
}

// bits compares tensors that are no floats; one difference counts for the whole tensor.
func (c *comparer) bits(a, b safetensors.Source, x, y safetensors.Info, t *TensorDiff) error {
	if x.Size != y.Size {
		t.Changed = t.Elements
		return nil
	}

	p, q := make([]byte, min(x.Size, pieceBytes)), make([]byte, min(x.Size, pieceBytes))
	for at := int64(0); at < x.Size; at += pieceBytes {
		n := min(pieceBytes, x.Size-at)
		if _, err := a.ReadAt(x.Name, p[:n], at); err != nil {
			return err
		}
		if _, err := b.ReadAt(y.Name, q[:n], at); err != nil {
			return err
		}

		if !bytes.Equal(p[:n], q[:n]) {
			t.Changed = t.Elements
			return nil
		}
	}

	return c.ctx.Err()
}

// finite is nil for what JSON cannot hold.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
