package stream

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// apply computes and writes all segments that the output lacks.
func (e *engine) apply(p *method.Program, segments []segment, check bool) error {
	segments = slices.DeleteFunc(slices.Clone(segments), func(s segment) bool { return s.Done })
	if p != nil && p.Whole != nil {
		return e.whole(p, segments)
	}

	return e.each(segments, func(ws *workspace, i int) error {
		s := segments[i]
		if s.Raw != nil {
			return e.copy(ws, s, check)
		}

		// Waits for the writers if they are behind: this is what bounds the memory of finished segments.
		buf := <-e.free
		size := width(s.DType)
		if n := (s.end-s.first)*size + output.Slack; int64(cap(buf)) < n {
			buf = make([]byte, n)
		}

		data := output.Buffer(buf[:cap(buf)], e.sink.Position(s.Tensor.Name)+s.first*size, (s.end-s.first)*size)
		err := e.merge(ws, p, s, data, check)
		if err == nil {
			err = s.zeros(data)
		}
		if err != nil {
			e.free <- buf
			return err
		}

		e.full <- chunk{s.run, s.first * size, data, buf}
		return nil
	})
}

// merge computes a segment.
func (e *engine) merge(ws *workspace, p *method.Program, s segment, data []byte, check bool) error {
	if p.Words != nil && s.plain != nil && s.DType == safetensors.BF16 &&
		uintptr(unsafe.Pointer(unsafe.SliceData(data)))%2 == 0 {
		return e.applyWords(ws, p, s, data, check)
	}
	return ws.blocks(s, 0, check, func(b *method.Block) error {
		p.Apply(b)
		at := (b.Off - s.first) * width(s.DType)
		return e.store(s, data[at:at+int64(b.Len())*width(s.DType)], b.Out, b.Off)
	})
}

// store rounds a block to the output's type.
func (e *engine) store(s segment, dst []byte, x []float32, off int64) error {
	limit := uint32(vec.Infinite)
	if s.DType == safetensors.F16 {
		limit = 0x477ff000 // 65520, which rounds to infinity
	}

	switch peak := vec.Peak(x); {
	case peak < limit:
	case e.o.AllowNonFinite:
		s.lose(x, limit)
	case s.finite(): // else check reports the input
		return fmt.Errorf("tensor %q, elements %d to %d: %w in %s", s.Tensor.Name, off, off+int64(len(x)), ErrOverflow,
			s.DType)
	}

	return Narrow(dst, x, s.DType)
}

// finite reports whether no input was found to hold values that are not finite; those have an error of their own.
func (r *run) finite() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(r.bad, func(n NonFinite) bool { return n.NaN+n.Inf > 0 })
}

// copy writes a segment of raw bytes, and reads the elements if they are to be checked.
func (e *engine) copy(ws *workspace, s segment, check bool) error {
	if check && len(s.X) > 0 {
		if err := ws.blocks(s, 0, true, func(*method.Block) error { return nil }); err != nil {
			return err
		}
	}
	bits := int64(s.DType.Bits())
	lo, hi := s.first*bits/8, s.end*bits/8
	e.full <- chunk{s.run, lo, s.Raw[lo:hi], nil}
	return nil
}

// Narrow writes x in a floating-point type of two, four or eight bytes, rounded to nearest even.
func Narrow(dst []byte, x []float32, d safetensors.DType) error {
	if len(x) == 0 {
		return nil
	}

	switch d {
	case safetensors.BF16:
		vec.NarrowBF16(words(dst), x)
	case safetensors.F16:
		vec.NarrowF16(words(dst), x)
	case safetensors.F32:
		// Bytes of a file's buffer, seen as the type: Wrap also refuses what is not aligned.
		b, err := kernels.Wrap(kernels.F32, dst)
		if err != nil {
			return err
		}
		copy(b.F32(), x)
	case safetensors.F64:
		b, err := kernels.Wrap(kernels.F64, dst)
		if err != nil {
			return err
		}

		for i, v := range x {
			b.F64()[i] = float64(v)
		}
	default:
		return fmt.Errorf("merging to %s: %w", d, errors.ErrUnsupported)
	}

	return nil
}
