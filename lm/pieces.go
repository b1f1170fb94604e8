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

// writeMat writes a matrix of a device to a folder's tensor from an element on, converted to a type.
func writeMat(f *stage.Folder, dev kernels.Device, name string, first int64, x kernels.Mat, t kernels.DType) error {
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
func convert(f *stage.Folder, dev kernels.Device, src parts, r placed, from, to kernels.DType) error {
	n := int(r.Info.Elements())
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

	// One buffer for both sides: the input is uploaded before the output arrives, and without a conversion they are
	// one.
	raw := make([]byte, a.Len*max(from.Size(), to.Size()))
	for lo := 0; lo < n; lo += pieceLen {
		k := min(pieceLen, n-lo)
		in, out := raw[:k*from.Size()], raw[:k*to.Size()]
		if _, err := src.ReadAt(r.Info.Name, in, int64(lo*from.Size())); err != nil {
			return err
		}

		if from != to {
			if err := dev.Upload(a, 0, in); err != nil {
				return err
			}

			dev.Ops().Convert(kernels.MatOf(b, 1, k), kernels.MatOf(a, 1, k))
			if err := dev.Download(out, b, 0); err != nil {
				return err
			}
		}

		if err := f.Writer().WriteAt(r.To, out, (r.First+int64(lo))*int64(to.Size())); err != nil {
			return err
		}
	}

	return nil
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
