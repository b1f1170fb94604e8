package checkpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/safetensors"
)

// pieceBytes bounds what is held of a tensor at a time (a single longer row is held whole): few enough to be in a cache
// still when they are written.
const pieceBytes = 1 << 20

// piecesAhead is how many pieces may be read and not be used yet.
const piecesAhead = 4

// piece is rows of a tensor as the source has them, or, where that is narrow, as they are written.
type piece struct {
	data   []byte
	row    int64 // the first
	narrow bool
}

// stream gives a tensor's data, densely and in its new type, row after row in pieces; use may not keep a piece. While
// one is cast and used, the next is read.
func (r *rewriter) stream(t *item, use func(p []byte) error) error {
	pieces, ahead, stop := r.ahead(t)
	var err error
	for p := range pieces {
		if err == nil {
			if err = r.use(t, p, use); err != nil {
				stop()
			}
		}
		r.bufs <- p.data
	}

	readErr := ahead.Wait()
	if err != nil {
		return err
	}
	return readErr
}

// ahead reads a tensor in pieces, whose space goes back to bufs, until it is stopped or fails.
func (r *rewriter) ahead(t *item) (pieces chan piece, ahead mmapsafe.Errors, stop func()) {
	width := t.cols * int64(t.from.Bits()/8)
	read := r.denseRows(t, width)
	narrow := r.narrow(t)
	switch {
	case narrow:
		width = t.cols * int64(t.to.Bits()/8)
		read = r.narrowRows(t)
	case t.packed != nil:
		read = r.packedRows(t, width)
	}
	step := max(1, pieceBytes/width)

	ctx, stop := context.WithCancel(r.ctx)
	ahead = mmapsafe.NewErrors()
	pieces = make(chan piece, piecesAhead)
	ahead.Go(func() error {
		defer stop()
		defer close(pieces)
		for row := int64(0); row < t.rows; row += step {
			if err := ctx.Err(); err != nil {
				return err
			}

			n := min(step, t.rows-row)
			buf := slices.Grow((<-r.bufs)[:0], int(n*width))[:n*width]
			if err := mmapsafe.Do(func() error { return read(buf, row) }); err != nil {
				r.bufs <- buf
				return err
			}
			pieces <- piece{buf, row, narrow}
		}
		return nil
	})

	return pieces, ahead, stop
}

// use casts a piece, if that is to be, and passes it on.
func (r *rewriter) use(t *item, p piece, use func(p []byte) error) error {
	if t.to == t.from || p.narrow && !r.cast.overflown(p.data, t.to) {
		return use(p.data)
	}
	if p.narrow {
		// Read again, since what to say of such a value depends on what it was.
		wide := make([]byte, int64(len(p.data))/int64(t.to.Bits()/8)*int64(t.from.Bits()/8))
		if err := r.denseRows(t, t.cols*int64(t.from.Bits()/8))(wide, p.row); err != nil {
			return err
		}
		p.data = wide
	}

	data, lost, bad := r.cast.run(p.data, t.from, t.to)
	r.report.NonFinite += lost
	if lost > 0 && !slices.Contains(r.report.NonFiniteIn, t.name) {
		r.report.NonFiniteIn = append(r.report.NonFiniteIn, t.name)
	}

	if bad >= 0 {
		wider := "bf16 or f32"
		if t.to != safetensors.F16 {
			wider = "f32"
		}
		return fmt.Errorf("%s: tensor %q, element %d: the value does not fit %s (HINT: choose %s)",
			r.src.File(t.name), t.name, p.row*t.cols+int64(bad), t.to, wider)
	}

	return use(data)
}

// narrow reports whether rows of a tensor are decoded to the type that they are written in.
func (r *rewriter) narrow(t *item) bool {
	if t.from != safetensors.F32 || t.to != safetensors.BF16 || t.packed != nil || !r.src.Narrow(t.name) {
		return false
	}
	info, _ := r.src.Info(t.name)
	return len(info.Shape) == 2
}

func (r *rewriter) narrowRows(t *item) func(p []byte, row int64) error {
	return func(p []byte, row int64) error {
		return r.src.ReadBF16(t.name, p, int(row), len(p)/2/int(t.cols))
	}
}

func (r *rewriter) denseRows(t *item, width int64) func(p []byte, row int64) error {
	return func(p []byte, row int64) error {
		_, err := r.src.ReadAt(t.name, p, row*width)
		return err
	}
}

// packedRows reads rows in order from a packed matrix.
func (r *rewriter) packedRows(t *item, width int64) func(p []byte, row int64) error {
	values, _ := r.src.Info(t.packed.module + partValues)
	left := values.Size
	at := int64(0)
	size := t.from.Bits() / 8
	maskWidth := (t.cols + 7) / 8
	var mask, vals []byte

	return func(p []byte, row int64) error {
		n := int64(len(p)) / width
		mask = slices.Grow(mask[:0], int(n*maskWidth))[:n*maskWidth]
		if _, err := r.src.ReadAt(t.packed.module+partBitmask, mask, row*maskWidth); err != nil {
			return err
		}

		vals = slices.Grow(vals[:0], len(p))[:min(left-at, int64(len(p)))]
		if _, err := r.src.ReadAt(t.packed.module+partValues, vals, at); err != nil {
			return err
		}

		rest, ok := vals, true
		for i := int64(0); i < n && ok; i++ {
			rest, ok = unpackRow(p[i*width:][:width], mask[i*maskWidth:][:maskWidth], rest, int(t.cols), size)
		}

		at += int64(len(vals) - len(rest))
		if !ok || row+n == t.rows && at != left {
			return fmt.Errorf("%s: tensor %q: the bitmask and the %d values do not fit together", r.src.Path(),
				t.packed.module+partBitmask, left/int64(size))
		}

		return nil
	}
}

// caster changes element types on a host device, through buffers of one piece.
type caster struct {
	ops  *kernels.Ops
	a, b *kernels.Buffer
}

// newCaster casts on dev, or on the CPU.
func newCaster(dev kernels.Device) (*caster, error) {
	dev, err := hostDevice(dev)
	if err != nil {
		return nil, err
	}
	return &caster{ops: dev.Ops()}, nil
}

// hostDevice is dev where it works on the host's memory, the CPU otherwise: to send every value to a GPU and back costs
// more than to look at it here.
func hostDevice(dev kernels.Device) (kernels.Device, error) {
	if dev != nil && dev.Info().Host {
		return dev, nil
	}
	return device.Open("cpu", device.Options{})
}

// run converts p; nonFinite counts the values that were NaN or infinite before, bad is the first element that
// was finite and no longer is, or -1. The result is good until the next call.
func (c *caster) run(p []byte, from, to safetensors.DType) (out []byte, nonFinite int64, bad int) {
	n := len(p) / (from.Bits() / 8)
	x, y := c.elements(p, dtype.Of(from), n), hostMat(&c.b, dtype.Of(to), n)
	c.ops.Convert(y, x)

	for at := 0; at < n; {
		i := c.ops.NonFinite(y.ColRange(at, n))
		if i < 0 {
			break
		}
		if at += i; c.finite(x.ColRange(at, at+1)) {
			return nil, 0, at
		}

		at++
		nonFinite++
	}

	return y.Buf.Bytes()[:n*y.Buf.DType.Size()], nonFinite, -1
}

// elements views n elements, or copies them where they do not lie as their type needs it.
func (c *caster) elements(p []byte, d kernels.DType, n int) kernels.Mat {
	if buf, err := kernels.Wrap(d, p); err == nil {
		return kernels.MatOf(buf, 1, n)
	}
	x := hostMat(&c.a, d, n)
	copy(x.Buf.Bytes(), p)
	return x
}

// overflown reports whether some element is a NaN or an infinity.
func (c *caster) overflown(p []byte, d safetensors.DType) bool {
	return c.ops.NonFinite(c.elements(p, dtype.Of(d), len(p)/(d.Bits()/8))) >= 0
}

func (c *caster) finite(x kernels.Mat) bool {
	if x.DType() == kernels.F64 {
		v := x.Buf.F64()[x.Off]
		return !math.IsNaN(v) && !math.IsInf(v, 0)
	}
	return c.ops.NonFinite(x) < 0
}

// hostMat views n elements of *b, which is made anew when it is too small or of another type.
func hostMat(b **kernels.Buffer, d kernels.DType, n int) kernels.Mat {
	if *b == nil || (*b).DType != d || (*b).Len < n {
		*b = kernels.NewHost(d, n)
	}
	(*b).Changed()
	return kernels.MatOf(*b, 1, n)
}

func shapeBytes(shape []int64) []byte {
	var b []byte
	for _, n := range shape {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}
