package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// InspectOptions say how closely a checkpoint is looked at. The zero value looks at every number.
type InspectOptions struct {
	Headers bool // read the headers only: zeros are not counted, and values that are not finite not found
	// Device converts types and looks at values, if it works on the host's memory; otherwise, and if it is nil, the
	// CPU does.
	Device   kernels.Device
	Progress func(name string, done, total int64) // told how far the work is; nil: nobody wants to know
}

// Inspect looks at a folder, a .safetensors or a GGUF file: what its tensors are, what they do in the model, how many
// of their elements are zero, and which are not finite. A GGUF file that is not understood, or not to the end, is shown
// as far as it is: its metadata, its tensors as they are stored, and the reason.
func Inspect(ctx context.Context, path string, o InspectOptions) (*Inspection, error) {
	return inspect(ctx, path, !o.Headers, false, env{o.Device, o.Progress})
}

// Verify is [Inspect] that also checks all that can be checked without another copy: every value is finite, shapes are
// those that the configuration gives, the tokenizer fits the vocabulary, and bitmasks, row offsets and values of packed
// matrices fit together. The first fault is the error. It reads every value, also where only headers are asked for.
func Verify(ctx context.Context, path string, o InspectOptions) (*Inspection, error) {
	return inspect(ctx, path, true, true, env{o.Device, o.Progress})
}

func inspect(ctx context.Context, path string, values, verify bool, e env) (*Inspection, error) {
	src, reason, err := openShown(ctx, path)
	if err != nil {
		return nil, err
	}
	defer src.Close()

	raw, note, err := shownConfig(path, src, reason)
	if err != nil {
		return nil, err
	}
	if verify && note != nil && src.Header() != nil {
		return nil, note
	}

	r, each, parts, err := summarise(path, src, raw)
	if err != nil {
		return nil, err
	}
	r.explain(src, reason, note)

	if values || verify {
		if err := r.readValues(ctx, each, e); err != nil {
			return nil, err
		}
	}

	if verify {
		if err := r.verifyPacked(ctx, src, parts, structureOf(raw)); err != nil {
			return nil, err
		}
		return r, r.verify(ctx, path, r.Architecture != "", e)
	}

	return r, nil
}

// summarise sums up an open checkpoint from its headers.
func summarise(path string, src *weights.Source, raw *orderedjson.Object) (
	r *Inspection, each *apart, parts map[string]*packed, err error,
) {
	var config *arch.Config
	var unknown error
	if raw != nil {
		config, err = parseConfig(weights.Place(path, "config.json"), raw)
		if errors.Is(err, arch.ErrUnknown) {
			unknown = err
		} else if err != nil {
			return nil, nil, nil, err
		}

		if isPacked(raw) {
			if parts, err = packedParts(src); err != nil {
				return nil, nil, nil, err
			}
		}
	}

	var table *arch.Arch
	if config != nil {
		table = config.Arch
	}

	each = separate(src, table)
	r = newInspection(path, each, config, parts)
	if unknown != nil {
		r.Note = unknown.Error()
	}
	return r, each, parts, nil
}

// explain says why a model is not shown as what it is: the reason for which its tensors are those that are stored, if
// there is one, or what else of it is not understood.
func (r *Inspection) explain(src *weights.Source, reason, note error) {
	switch {
	case reason != nil:
		r.Note = joinNotes("tensors are those that are stored: "+reason.Error(), r.Note)
	case note != nil:
		r.Note = joinNotes(note.Error(), r.Note)
	}
	if note != nil {
		r.Metadata = src.Header()
	}
	if reason == nil {
		return
	}
	for i := range r.List {
		r.List[i].Size = src.StoredSize(r.List[i].Name)
	}
}

// openShown opens a checkpoint to be looked at. What is not understood, a quantisation, a GGUF file's architecture, one
// of its types, is opened as it is stored; reason is the error that others have of it.
func openShown(ctx context.Context, path string) (src *weights.Source, reason, err error) {
	src, err = weights.Open(ctx, path)
	if err == nil {
		return src, nil, nil
	}

	if st, failed := os.Stat(path); failed == nil && st.Mode().IsRegular() && filepath.Ext(path) != ".safetensors" &&
		!weights.IsGGUF(path) {
		return nil, nil, failure.Hinted(fmt.Errorf("%s: no model file", path), "folders in Hugging Face's form, "+
			".safetensors files and GGUF files are read")
	}

	_, unknown := errors.AsType[*arch.ConfigError](err)
	stored, failed := weights.OpenStored(path)
	if failed != nil {
		return nil, nil, err // which says more than that of a second attempt
	}
	if !unknown && stored.Header() == nil {
		return nil, nil, errors.Join(err, stored.Close())
	}
	return stored, err, nil
}

// shownConfig reads the configuration as it belongs to the tensors; nil where there is none. What is not understood of
// the model is the note: the reason for which it is shown as it is stored, or that files beside the weights of a GGUF
// file cannot be made, such as its tokenizer.
func shownConfig(path string, src *weights.Source, reason error) (raw *orderedjson.Object, note, err error) {
	gguf := src.Header() != nil
	switch {
	case reason != nil && gguf:
		return nil, reason, nil
	case reason != nil:
		raw, err = readStoredConfig(path)
		return raw, reason, err
	}

	raw, err = readConfig(path)
	if err == nil || !gguf {
		return raw, nil, err
	}
	note = err
	raw, err = orderedjson.Parse(src.MadeConfig())
	return raw, note, err
}

func joinNotes(a, b string) string {
	if b == "" {
		return a
	}
	return a + "; " + b
}

// verify checks what the headers, read already, cannot tell: every value, and the shapes against the configuration.
func (r *Inspection) verify(ctx context.Context, path string, loads bool, e env) error {
	var first *TensorReport
	bad := 0
	for i := range r.List {
		if r.List[i].NonFinite != "" {
			bad++
			if first == nil {
				first = &r.List[i]
			}
		}
	}

	if first != nil {
		return fmt.Errorf("%s: tensor %q: element %s is NaN or infinite (%d of %d tensors have such values)",
			first.file, first.Name, first.NonFinite, bad, len(r.List))
	}

	r.Verified = []string{"headers", "offsets", "values"}
	if !loads {
		return nil
	}

	dev := e.device
	if dev == nil {
		var err error
		if dev, err = hostDevice(nil); err != nil {
			return err
		}
	}

	m, err := lm.Load(ctx, path, dev, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return err
	}
	defer m.Close()

	r.Verified = append(r.Verified, "shapes")
	_, err = m.Tokenizer()
	switch {
	case err == nil:
		r.Verified = append(r.Verified, "tokenizer")
		return nil
	}

	return err
}
