package lm

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/internal/layer"
	"github.com/modelcompress/compress/lm/internal/packed"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which a checkpoint, or the input of a model, can be wrong.
var (
	ErrMissingTensor = arch.ErrMissingTensor // the configuration asks for it, the files don't have it
	ErrExtraTensor   = arch.ErrExtraTensor   // the files have it, the architecture doesn't
	ErrShape         = arch.ErrShape         // of a tensor, against the configuration
	ErrDType         = errors.New("element type cannot be computed with")
	ErrUnknownTensor = errors.New("the model has no such tensor")
	ErrVocabulary    = errors.New("token is outside the vocabulary")
	ErrInput         = errors.New("input does not fit the model")
	ErrTooLong       = errors.New("sequence is longer than the model has positions")
	ErrNonFinite     = errors.New("not a finite number")
	ErrPacked        = packed.ErrMismatch // the tensors of a packed matrix do not make one
)

// Options of [Load].
type Options struct {
	// Precision of matrix products; [kernels.Exact] by default. [kernels.Fast] rounds activations to BF16 where
	// weights are BF16, and to 8 bits where they are quantised.
	Precision kernels.Precision
	// Stream gives the weights of a block back once the block has run: memory holds one block, the embeddings and the
	// activations, and every pass reads the files again.
	Stream bool
	// AllowExtra accepts tensors that are no part of the model. They are not loaded, and are saved as they are.
	// Known buffers, such as the causal masks in older files, are accepted without it.
	AllowExtra bool
	// Decode has quantised matrices as floats in memory, those of all formats and on all devices. Without it, they stay
	// in the bits in which they are stored wherever kernels can multiply with these; see [Model.Residence].
	Decode bool
	// Bits keeps the matrices of blocks in 8 or 4 bits an element, unless they are streamed; saving writes what
	// was stored. 0: as they are.
	Bits int
	// KVBits keeps keys and values in 8 bits, with a scale for each head of a token, and computes with what they are
	// then, with or without a cache: [Session] and [Batch] take 0.27 of the memory for heads of 64 channels.
	// There are no gradients then, and devices are host memory. 0: F32.
	KVBits int
	// KVPositions is how many positions a [Session] keeps keys and values of, beside those of the tokens that run: the
	// latest half, and those that have had most attention (H2O); 0: all. Then prompts run a quarter as many tokens at a
	// time, [Session.Truncate] only reaches the whole length and 0, and there are no drafts. [Model.SequenceLosses]
	// measures what it costs. Devices are host memory, and models have no windows of attention.
	KVPositions int
	// TopK experts take a token of a mixture instead of as many as the configuration says, 1 up to all; 0: as it says.
	// What is saved has the configuration of the files.
	TopK int
}

// Model is an open checkpoint on a device.
type Model struct {
	config *Config
	opts   Options
	dir    string
	seen   stage.Seen // beside the weights
	source *weights.Source
	dense  *packed.Source // the same as if nothing were packed, and every parameter a tensor
	dev    kernels.Device
	ops    *kernels.Ops
	host   bool         // the device's buffers are ordinary memory
	info   kernels.Info // of the device when the model was opened; its memory figures are of that time

	names  []string // parameters in checkpoint order
	layout *arch.Layout
	extra  []string // tensors that are no parameters, in checkpoint order
	tied   []string // tensors among extra that repeat the token table
	params map[string]*param
	stop   []int32 // end tokens of generation_config.json, or of the configuration

	embed, positions  *param
	embedIn, embedOut *param // nil where the token table is as wide as the stream
	finalNorm         layer.Norm
	head, headBias    *param // head is embed where tied
	input, output     group  // what the passes before and after the blocks need
	blocks            []*block
	setup             *layer.Setup

	mu      sync.Mutex // guards residency and pool
	pool    []*scratch
	closing sync.Once
	print   onceHex
}

// Linear is one matrix of a block.
type Linear struct {
	Name       string    // tensor name in the checkpoint
	Block      int       // from 0
	Role       arch.Role // what it does
	Expert     int       // -1 outside of mixtures, and for a shared expert
	In, Out    int       // channels
	Transposed bool      // stored [in, out]
}

// Config is the model's configuration.
func (m *Model) Config() *Config { return m.config }

// Device is where the model lives.
func (m *Model) Device() kernels.Device { return m.dev }

// Path is the folder that was loaded.
func (m *Model) Path() string { return m.dir }

// Source is the checkpoint as stored, quantised matrices decoded. It is closed with the model.
func (m *Model) Source() safetensors.Source { return m.source }

// DataSize is the bytes of all tensors together, as stored.
func (m *Model) DataSize() int64 { return m.source.DataSize() }

// MemorySize is about how many bytes of memory the weights take when all of them are used: [Model.DataSize], and the
// floats that quantised matrices become which kernels cannot multiply with as they are.
func (m *Model) MemorySize() int64 {
	n := m.DataSize()
	for _, name := range m.names {
		p := m.params[name]
		stored, _ := m.dense.Place(name)
		if m.source.Matrix(stored) != nil && p.rows > 1 && !p.kept {
			n += int64(p.rows) * int64(p.cols) * int64(p.stored.Bits()) / 8
		}
	}
	return n
}

// TokenSize is how many bytes the keys and values of a token take, in float32 or as [Options].KVBits says.
func (m *Model) TokenSize() int64 { return m.setup.PageBytes(1) }

// Quantised is a model whose values are those of a quantised form, for the records of what was made of it.
type Quantised struct {
	Path string `json:"path"` // of the GGUF file, where a folder holds one
	Form string `json:"form"`
}

// Quantised is the model, with the remark about it, if it is stored in a quantised form; nil for one of floating-point
// numbers.
func (m *Model) Quantised() (list []Quantised, remarks []string) {
	q, quantised := m.source.Quantised()
	if !quantised {
		return nil, nil
	}
	return []Quantised{Quantised(q)}, []string{q.String()}
}

// Quantisation says in which form the values of the checkpoint are stored that are decoded; empty where all are
// floating-point numbers.
func (m *Model) Quantisation() string { return m.source.Quantisation() }

// Info says what a tensor of the checkpoint is; of a packed matrix, what it expands to, and of an expert that
// lies in a tensor with others, what it would be in one of its own. False if there is none of that name.
func (m *Model) Info(name string) (safetensors.Info, bool) { return m.dense.Info(name) }

// File is the path of the file that holds a tensor, of the folder for an unknown one.
func (m *Model) File(name string) string { return m.dense.File(name) }

// Packed reports whether matrices of the checkpoint are packed as bitmasks.
func (m *Model) Packed() bool { return m.dense.Any() }

// Blocks is the number of blocks.
func (m *Model) Blocks() int { return len(m.blocks) }

// NumParameters counts the elements of all parameters; a tied table counts once.
func (m *Model) NumParameters() int64 {
	var n int64
	for _, p := range m.params {
		n += int64(p.rows) * int64(p.cols)
	}
	return n
}

// Linears lists the matrices of a block in order of use; routers are not among them.
func (m *Model) Linears(block int) []Linear {
	list := make([]Linear, 0, 8)
	for _, l := range m.blocks[block].linears {
		list = append(list, l.Linear)
	}
	return list
}

// Params lists the parameters of a block and says what each is for.
func (m *Model) Params(block int) []arch.Param { return slices.Clone(m.blocks[block].roles) }

// Router gives the name of the block's router matrix [experts, hidden], "" for a block without a mixture.
func (m *Model) Router(block int) string {
	if r := m.blocks[block].Router; r != nil {
		return r.Name
	}
	return ""
}

// Tensors lists every parameter in the order of the checkpoint.
func (m *Model) Tensors() []string { return append([]string(nil), m.names...) }

// Extra lists the tensors of the checkpoint that are no parameters: known buffers, and what
// [Options].AllowExtra let in.
func (m *Model) Extra() []string { return append([]string(nil), m.extra...) }

// Close gives back what the model holds on the device and closes the files. Views and sessions are dead afterwards.
func (m *Model) Close() error {
	var err error
	m.closing.Do(func() {
		for _, p := range m.params {
			m.drop(p)
		}
		if m.setup != nil {
			m.setup.Free()
		}
		for _, s := range m.pool {
			s.free()
		}

		m.pool = nil
		err = m.source.Close()
	})

	return err
}

// param finds a parameter by its tensor name.
func (m *Model) param(name string) (*param, error) {
	p, ok := m.params[name]
	if !ok {
		return nil, fmt.Errorf("%s: %.200q: %w", m.dir, name, ErrUnknownTensor)
	}
	return p, nil
}
