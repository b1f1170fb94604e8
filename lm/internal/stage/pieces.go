package stage

import (
	"encoding/json"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// Strings keeps the entries of an index's metadata that are strings; total_size is computed anew.
func Strings(raw map[string]json.RawMessage) map[string]string {
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

// WriteMat writes a matrix of a device as a tensor of a folder, converted to a type.
func WriteMat(f *Folder, dev kernels.Device, name string, x kernels.Mat, t kernels.DType) error {
	flat, size := x.Reshape(1, x.Len()), t.Size()
	piece, err := dev.Alloc(t, min(pieceLen, flat.Cols))
	if err != nil {
		return err
	}
	defer piece.Free()
	raw := make([]byte, piece.Len*size)
	for lo := 0; lo < flat.Cols; lo += pieceLen {
		hi := min(lo+pieceLen, flat.Cols)
		dev.Ops().Convert(kernels.MatOf(piece, 1, hi-lo), flat.ColRange(lo, hi))
		part := raw[:(hi-lo)*size]
		if err := dev.Download(part, piece, 0); err != nil {
			return err
		}
		if err := f.Writer().WriteAt(name, part, int64(lo*size)); err != nil {
			return err
		}
	}
	return nil
}

// Convert writes a tensor of other files in another type, piece by piece.
func Convert(f *Folder, dev kernels.Device, src *safetensors.Dir, stored safetensors.Info, from, to kernels.DType) error {
	name, n := stored.Name, int(stored.Elements())
	a, err := dev.Alloc(from, min(pieceLen, n))
	if err != nil {
		return err
	}
	defer a.Free()
	b, err := dev.Alloc(to, min(pieceLen, n))
	if err != nil {
		return err
	}
	defer b.Free()
	raw := make([]byte, a.Len*max(from.Size(), to.Size()))
	for lo := 0; lo < n; lo += pieceLen {
		k := min(pieceLen, n-lo)
		in, out := raw[:k*from.Size()], raw[:k*to.Size()]
		if _, err := src.ReadAt(name, in, int64(lo*from.Size())); err != nil {
			return err
		}
		if err := dev.Upload(a, 0, in); err != nil {
			return err
		}
		dev.Ops().Convert(kernels.MatOf(b, 1, k), kernels.MatOf(a, 1, k))
		if err := dev.Download(out, b, 0); err != nil {
			return err
		}
		if err := f.Writer().WriteAt(name, out, int64(lo*to.Size())); err != nil {
			return err
		}
	}
	return nil
}
