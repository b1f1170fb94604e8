package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// ConvertOptions say how a checkpoint is written again. The zero value writes the same tensors into one file.
type ConvertOptions struct {
	DType safetensors.DType // of float tensors; 0 keeps theirs
	// matrices of blocks that become smaller by it are packed; packed ones are unpacked without it
	Pack      bool
	MaxShard  int64 // bytes of a file; 0 is one file, KeepShards the source's files
	Overwrite bool  // an existing checkpoint is replaced
	// Device converts types and looks at values, if it works on the host's memory; otherwise, and if it is nil, the
	// CPU does.
	Device   kernels.Device
	Progress func(name string, done, total int64) // told how far the work is; nil: nobody wants to know
}

// KeepShards writes the same files as the source has.
const KeepShards = -1

// Conversion is what [Convert] has done.
type Conversion struct {
	Source    string `json:"source"`   // folder or file that was read
	Out       string `json:"out"`      // folder that was written
	Tensors   int    `json:"tensors"`  // of the output
	Cast      int    `json:"cast"`     // tensors with a new element type
	Packed    int    `json:"packed"`   // matrices written as bitmasks
	Unpacked  int    `json:"unpacked"` // matrices read from bitmasks
	Shards    int    `json:"shards"`
	BytesIn   int64  `json:"bytes_in"`
	BytesOut  int64  `json:"bytes_out"`
	Structure string `json:"structure,omitempty"` // of the packed matrices: 2:4 or unstructured

	// NaN and infinite values that were cast: the source has them already
	NonFinite   int64    `json:"non_finite,omitempty"`
	NonFiniteIn []string `json:"non_finite_tensors,omitempty"` // tensors that have such values
}

// rewriter streams the tensors of a checkpoint into a new folder, a bounded piece at a time.
type rewriter struct {
	ConvertOptions
	ctx    context.Context
	env    env
	src    *weights.Source
	items  []item
	report *Conversion
	zeros  int64 // in packed matrices
	params int64
	off24  bool
	buf    []byte      // of a tensor that is copied as it is
	bufs   chan []byte // space of the pieces of a tensor
	cast   *caster
}

// item is one tensor of the model, dense in the mind, whatever its form on either side.
type item struct {
	name       string // dense name
	from, to   safetensors.DType
	shape      []int64
	rows, cols int64   // what is read as a row; scalars and vectors count as columns of one
	packed     *packed // form in the source
	pack       bool    // form in the output
	nonZero    int64
	shard      string
}

// Convert writes the checkpoint at path, a folder, a .safetensors or a GGUF file, to the folder out, which appears when
// it is complete. Of a quantised one the values are written. Memory does not depend on the size of the model. The
// errors wrap ErrExists, ErrTarget, ErrInPlace or ErrBusy, or are those of package safetensors.
func Convert(ctx context.Context, path, out string, o ConvertOptions) (*Conversion, error) {
	var allow stage.Rule
	if o.Overwrite {
		allow = stage.Replaceable(path)
	}
	if err := errors.Join(stage.Apart(path, out), stage.Vacant(out, allow)); err != nil {
		return nil, err
	}

	src, err := weights.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer src.Close()

	r := &rewriter{
		ConvertOptions: o, ctx: ctx, env: env{o.Device, o.Progress}, src: src,
		buf: make([]byte, 1<<20), bufs: make(chan []byte, piecesAhead),
		report: &Conversion{Source: path, Out: out, BytesIn: src.DataSize()},
	}
	for range cap(r.bufs) {
		r.bufs <- nil
	}
	if r.cast, err = newCaster(o.Device); err != nil {
		return nil, err
	}

	config, err := r.plan()
	if err != nil {
		return nil, err
	}

	s, err := stage.Begin(out, allow)
	if err != nil {
		return nil, err
	}

	if err := r.write(s.Dir, config); err != nil {
		return nil, errors.Join(err, s.Abandon())
	}

	return r.report, s.Publish()
}

// write fills the staged folder.
func (r *rewriter) write(dir string, config *orderedjson.Object) error {
	infos, opts := r.layout()
	w, err := safetensors.CreateDir(dir, infos, r.src.Metadata(), opts)
	if err != nil {
		return err
	}
	defer w.Abort()

	for i := range r.items {
		if err := r.tensor(w, &r.items[i]); err != nil {
			return err
		}
		r.env.progress("writing", int64(i+1), int64(len(r.items)))
	}

	r.report.Tensors, r.report.Shards, r.report.BytesOut = len(infos), len(w.Shards()), dataSize(infos)
	if err := w.Finish(); err != nil {
		return err
	}
	if err := r.writeConfig(dir, config); err != nil {
		return err
	}
	// A record of quantising belongs to the form that is left here.
	return stage.CopySides(dir, r.src.Path(), true, "config.json", "quantization.json")
}

func dataSize(infos []safetensors.Info) (n int64) {
	for _, i := range infos {
		size, _ := i.DType.ByteSize(i.Shape) // the writer has accepted it
		n += size
	}
	return n
}

// tensor writes one tensor.
func (r *rewriter) tensor(w *safetensors.DirWriter, t *item) error {
	if t.from == t.to && t.packed == nil && !t.pack && !r.src.Decoded(t.name) {
		return safetensors.Copy(w, t.name, r.src, t.name, r.buf)
	}

	at := int64(0)
	if !t.pack {
		return r.stream(t, func(p []byte) error {
			err := w.WriteAt(t.name, p, at)
			at += int64(len(p))
			return err
		})
	}

	return r.writePacked(w, t)
}

func (r *rewriter) writePacked(w *safetensors.DirWriter, t *item) error {
	k := &packer{size: t.to.Bits() / 8, cols: int(t.cols)}
	var values, mask, offsets int64
	err := r.stream(t, func(p []byte) error {
		k.values = k.values[:0]
		k.mask = k.mask[:0]
		k.offsets = k.offsets[:0]
		k.pack(p)

		for _, part := range []struct {
			name string
			data []byte
			at   *int64
		}{{partValues, k.values, &values}, {partBitmask, k.mask, &mask}, {partRowOffsets, k.offsets, &offsets}} {
			if err := w.WriteAt(module(t.name)+part.name, part.data, *part.at); err != nil {
				return err
			}
			*part.at += int64(len(part.data))
		}

		return nil
	})
	if err != nil {
		return err
	}

	return w.WriteTensor(module(t.name)+partShape, shapeBytes(t.shape))
}

// writeConfig writes config.json as the plan changed it, if the source has one.
func (r *rewriter) writeConfig(dir string, config *orderedjson.Object) error {
	if config == nil {
		return nil
	}

	data, err := config.Indent()
	if err != nil {
		return fmt.Errorf("config.json: %w", err)
	}

	f, err := os.Create(filepath.Join(dir, "config.json"))
	if err != nil {
		return err
	}

	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}
