package checkpoint

import (
	"context"
	"errors"
	"fmt"

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
// of their elements are zero, and which are not finite.
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
	src, note, err := openShown(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()

	read := readConfig
	if note != "" {
		read = readStoredConfig
	}

	raw, err := read(path)
	if err != nil {
		return nil, err
	}

	var config *arch.Config
	var parts map[string]*packed
	if raw != nil {
		config, err = parseConfig(weights.Place(path, "config.json"), raw)
		if errors.Is(err, arch.ErrUnknown) {
			note = joinNotes(note, err.Error())
		} else if err != nil {
			return nil, err
		}

		if isPacked(raw) {
			if parts, err = packedParts(src); err != nil {
				return nil, err
			}
		}
	}

	var table *arch.Arch
	if config != nil {
		table = config.Arch
	}

	each := separate(src, table)
	r := newInspection(path, each, config, parts)
	r.Note = note

	if values || verify {
		if err := r.readValues(ctx, each, e); err != nil {
			return nil, err
		}
	}

	if verify {
		if err := r.verifyPacked(ctx, src, parts, structureOf(raw)); err != nil {
			return nil, err
		}
		return r, r.verify(ctx, path, config != nil, e)
	}

	return r, nil
}

// openShown opens a checkpoint to be looked at. One that is quantised in a way that is not known is opened as it is
// stored; note says so.
func openShown(path string) (src *weights.Source, note string, err error) {
	src, err = weights.Open(path)
	if c, unknown := errors.AsType[*arch.ConfigError](err); unknown {
		src, err = weights.OpenStored(path)
		return src, "tensors are those that are stored: " + c.Error(), err
	}
	return src, "", err
}

func joinNotes(a, b string) string {
	if a == "" {
		return b
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

	m, err := lm.Load(ctx, path, dev, lm.Options{Stream: true})
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
