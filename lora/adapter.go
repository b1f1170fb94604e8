package lora

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/delta"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/lora/internal/mos"
	"github.com/modelcompress/compress/lora/internal/mosfile"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which adapters can be wrong.
var (
	ErrConfig      = adapter.ErrConfig      // a setting is out of range, unknown, or contradicts another
	ErrTarget      = adapter.ErrTarget      // a target matches nothing, or what cannot be adapted
	ErrBase        = adapter.ErrBase        // the adapter belongs to another base model
	ErrFile        = adapter.ErrFile        // the files are malformed or disagree with their configuration
	ErrUnsupported = adapter.ErrUnsupported // a feature that cannot be computed here
)

// Adapter is a change of a base model: low-rank factors of some of its matrices, and tensors that were trained whole.
type Adapter struct {
	inner  *adapter.Adapter
	report *Report // of its training
}

// Fingerprint is the SHA-256, in hex, over the adapter's settings and its parameters as they are, whatever base it
// names: training changes it.
func (a *Adapter) Fingerprint() (string, error) {
	c := a.inner.Config
	c.Base, c.BaseHash = "", ""
	text, err := json.Marshal(c)
	if err != nil {
		return "", err
	}

	h := sha256.New()
	h.Write(text)
	for _, p := range a.inner.Params() {
		h.Write([]byte(p.Name))
		h.Write(p.Value.Buf.Bytes())
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Open reads an adapter for an open model: PEFT's LoRA in all its variants, MiSS, GraLoRA and SHiRA, a native folder,
// or a GGUF file of llama.cpp's. Everything in the files must fit the model. The errors wrap this package's, or those
// of package safetensors.
func Open(dir string, m *lm.Model) (*Adapter, error) {
	base, err := kinds.Of(m)
	if err != nil {
		return nil, err
	}

	if isFile(dir) {
		params, err := adapter.ParamsOf(m)
		if err != nil {
			return nil, err
		}
		a, err := loadFile(dir, &basis{m.Config(), params, base.Modules()})
		if err != nil {
			return nil, err
		}
		return &Adapter{inner: a}, nil
	}

	kind, err := mosfile.Type(dir)
	if err != nil {
		return nil, err
	}

	var a *adapter.Adapter
	if mosfile.Handles(kind) {
		a, err = mosfile.Read(dir, base)
	} else {
		a, _, err = peft.ReadOn(dir, base.Modules(), base.Values)
	}
	if err != nil {
		return nil, err
	}

	return &Adapter{inner: a}, nil
}

// Save writes the adapter to a folder, which appears under its name once it is complete: LoRA, MiSS, GraLoRA and SHiRA
// as PEFT does, the other kinds in their own form (see [Export] for those). An existing folder that is not empty is
// refused unless overwrite is set, and one that holds no adapter in any case.
func (a *Adapter) Save(dir string, overwrite bool) error {
	if err := Vacant(dir, overwrite); err != nil {
		return err
	}
	if peft.Handles(a.inner.Config.Kind) {
		return peft.Write(dir, a.inner, peft.WriteOptions{Overwrite: overwrite, Own: true})
	}
	return mosfile.Write(dir, a.inner, safetensors.F32, peft.Rule(overwrite))
}

// Native reports whether [Adapter.Save] writes a form of our own, which PEFT does not load and [Export] converts.
func (a *Adapter) Native() bool { return !peft.Handles(a.inner.Config.Kind) }

// Vacant reports, by a nil error, whether an adapter may be saved to dir: there is nothing, an empty folder, or, with
// overwrite, an adapter and nothing else. The error wraps ErrExists.
func Vacant(dir string, overwrite bool) error { return peft.Vacant(dir, overwrite) }

// Attach lets the adapter act on a model until undo is called. No pass may run at either moment.
func (a *Adapter) Attach(m *lm.Model) (undo func(), err error) {
	r, err := delta.Attach(m, a.inner, delta.Options{})
	if err != nil {
		return nil, err
	}
	return r.Detach, nil
}

// Overlay prepares the adapter for single sequences of an [lm.Batch], which name it in their [lm.Work], beside others
// and the model itself. The overlay has its factors as they are multiplied, of a Mixture of Shards too, and does not
// need the adapter any more; free gives them back, once no work names the overlay. The error wraps ErrUnsupported for
// an adapter that changes what all sequences of a pass share: the token table, the head, norms, whole tensors.
func (a *Adapter) Overlay(m *lm.Model) (o *lm.Overlay, free func(), err error) {
	r, err := delta.Attach(m, a.inner, delta.Options{Overlay: true})
	if err != nil {
		return nil, nil, err
	}
	return r.Overlay(), r.Detach, nil
}

// MemorySize is about how many bytes of memory the adapter takes while it is attached to a model: its parameters, and
// the factors and tensors that act, which are made of them. [lm.Overlay.MemorySize] says it of an overlay.
func (a *Adapter) MemorySize() int64 {
	n := int64(0)
	for _, p := range a.inner.Params() {
		n += 4 * int64(p.Value.Len())
	}
	for _, l := range a.inner.Low {
		if s, ok := l.Factors.(adapter.Sparse); ok { // the values were counted
			n += 8 * int64(len(s.Rows))
		} else {
			n += 4 * int64(l.Rank) * int64(l.Module.In+l.Module.Out)
		}
		if !l.Module.Linear() || l.Module.Block < 0 { // a table or the head, which is replaced as a whole
			n += 4 * int64(l.Module.In) * int64(l.Module.Out)
		}
	}
	for _, w := range a.inner.Whole {
		n += 4 * int64(w.Value.Value.Len())
	}
	for _, r := range a.inner.Rows {
		n += 4 * int64(r.Module.In) * int64(r.Module.Out)
	}
	return n
}

// Kind is how the factors are made: one of [Kinds] but full.
func (a *Adapter) Kind() string { return string(a.inner.Config.Kind) }

// Trainable counts the trained parameters.
func (a *Adapter) Trainable() int64 { return a.inner.Count() }

// DeadShards counts the public shards of the pools of a Mixture of Shards that no block uses: they count as
// parameters, but are never trained.
func (a *Adapter) DeadShards() int {
	n := 0
	for _, p := range mos.Pools(a.inner) {
		da, db := p.Dead()
		n += da + db
	}
	return n
}
