package lm

import (
	"encoding/json"
	"maps"

	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// stringsOf keeps the entries of an index's metadata that are strings; total_size is computed anew.
func stringsOf(raw map[string]json.RawMessage) map[string]string {
	all := map[string]string{}
	for key, value := range raw {
		var text string
		if key != "total_size" && json.Unmarshal(value, &text) == nil {
			all[key] = text
		}
	}
	return all
}

// pieceLen is how many elements are converted or downloaded at a time.
const pieceLen = 1 << 20

// carrier brings elements to a folder, a piece at a time. Its buffers serve one tensor after the other: new ones for
// each would be garbage, of which as much may pile up as the model takes.
type carrier struct {
	dev     kernels.Device
	buffers map[kernels.DType]*kernels.Buffer
	raw     []byte // what is read
	out     []byte // the same in another type
}

// buffer gives a buffer of at least n elements of a type, the same at the next call.
func (c *carrier) buffer(t kernels.DType, n int) (*kernels.Buffer, error) {
	if b := c.buffers[t]; b != nil {
		if b.Len >= n {
			return b, nil
		}
		b.Free()
		delete(c.buffers, t)
	}

	b, err := c.dev.Alloc(t, n)
	if err != nil {
		return nil, err
	}
	if c.buffers == nil {
		c.buffers = map[kernels.DType]*kernels.Buffer{}
	}
	c.buffers[t] = b

	return b, nil
}

// atLeast gives the first n bytes of a slice, of a longer one where it is too short.
func atLeast(p *[]byte, n int) []byte {
	if len(*p) < n {
		*p = make([]byte, n)
	}
	return (*p)[:n]
}

// free gives everything back.
func (c *carrier) free() {
	for _, b := range c.buffers {
		b.Free()
	}
	c.buffers = nil
	c.raw, c.out = nil, nil
}

// writeMat writes a matrix of the device to a folder's tensor from an element on, converted to a type.
func (c *carrier) writeMat(f *stage.Folder, name string, first int64, x kernels.Mat, t kernels.DType) error {
	flat, size := x.Reshape(1, x.Len()), t.Size()
	piece, err := c.buffer(t, min(pieceLen, flat.Cols))
	if err != nil {
		return err
	}

	for lo := 0; lo < flat.Cols; lo += pieceLen {
		hi := min(lo+pieceLen, flat.Cols)
		c.dev.Ops().Convert(kernels.MatOf(piece, 1, hi-lo), flat.ColRange(lo, hi))
		part := atLeast(&c.raw, (hi-lo)*size)
		if err := c.dev.Download(part, piece, 0); err != nil {
			return err
		}
		if err := f.Writer().WriteAt(name, part, (first+int64(lo))*int64(size)); err != nil {
			return err
		}
	}

	return nil
}

// placed is a parameter that stays as it is, and where its elements go.
type placed struct {
	Info  safetensors.Info // of the parameter
	To    string           // tensor of the folder
	First int64            // element there
}

// parts reads parts of tensors.
type parts interface {
	ReadAt(name string, p []byte, off int64) (int, error)
}

// convert writes a parameter of other files in another type, piece by piece, or as it is where the types are one.
func (c *carrier) convert(f *stage.Folder, src parts, r placed, from, to kernels.DType) error {
	n := int(r.Info.Elements())
	for lo := 0; lo < n; lo += pieceLen {
		raw := atLeast(&c.raw, min(pieceLen, n-lo)*from.Size())
		if _, err := src.ReadAt(r.Info.Name, raw, int64(lo*from.Size())); err != nil {
			return err
		}
		out, err := c.as(raw, from, to)
		if err != nil {
			return err
		}
		if err := f.Writer().WriteAt(r.To, out, (r.First+int64(lo))*int64(to.Size())); err != nil {
			return err
		}
	}

	return nil
}

// as converts elements to another type; the result is good until the next call.
func (c *carrier) as(raw []byte, from, to kernels.DType) ([]byte, error) {
	if from == to {
		return raw, nil
	}

	n := len(raw) / from.Size()
	a, err := c.buffer(from, n)
	if err != nil {
		return nil, err
	}
	b, err := c.buffer(to, n)
	if err != nil {
		return nil, err
	}

	if err := c.dev.Upload(a, 0, raw); err != nil {
		return nil, err
	}
	c.dev.Ops().Convert(kernels.MatOf(b, 1, n), kernels.MatOf(a, 1, n))
	out := atLeast(&c.out, n*to.Size())

	return out, c.dev.Download(out, b, 0)
}

// planLike plans the tensors of a source in its order and, where maxShard is 0, its files, or of a quantised source
// files of the usual size; floating-point ones
// become type t unless that is 0.
func planLike(src *weights.Source, t safetensors.DType, maxShard int64,
	float func(safetensors.DType) bool,
) stage.Plan {
	p := stage.Plan{Metadata: map[string]string{}}
	maps.Copy(p.Metadata, src.Metadata())

	for _, name := range src.Names() {
		info, _ := src.Info(name)
		if t != 0 && float(info.DType) {
			info.DType = t
			p.Files.Order = safetensors.OrderAligned
		}
		p.Tensors = append(p.Tensors, info)
	}

	if p.Metadata["format"] == "" {
		p.Metadata["format"] = "pt" // what other tools look for
	}

	order := p.Files.Order
	p.Files = src.Layout(maxShard)
	p.Files.Order = order
	if dir := src.Dir(); dir != nil && dir.Indexed() {
		p.Files.IndexMetadata = stringsOf(dir.IndexMetadata())
	}

	return p
}
