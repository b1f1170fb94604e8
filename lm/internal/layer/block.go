package layer

import (
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/internal/quant"
)

// Weight is one parameter. Its value must be there while a pass runs.
type Weight struct {
	Name  string
	Value kernels.Mat // storage layout; one-dimensional tensors are [1, n]
	// instead of the value, of a linear that is not transposed; where both are there, they are equal
	Sparse kernels.Sparse
	Quant  *quant.Matrix // instead of the value, of a linear; where both are there, they are equal
	// instead of the value, of a linear that is not transposed, the head or the token table: as it is stored. Where
	// both are there, they are equal but for a rounding of the value to its type.
	Coded kernels.Quantised
}

// DType is the element type.
func (w *Weight) DType() kernels.DType {
	switch {
	case !w.Sparse.IsZero():
		return w.Sparse.DType()
	case w.Quant != nil:
		return w.Quant.DType
	case !w.Coded.IsZero():
		return kernels.F32
	}
	return w.Value.DType()
}

// Mat is the weight's value, or the absent matrix for nil.
func (w *Weight) Mat() kernels.Mat {
	if w == nil {
		return kernels.Mat{}
	}
	return w.Value
}

// Norm is a normalisation's parameters; W is nil where there is none.
type Norm struct {
	W, B *Weight
	Eps  float32   // 0: the configuration's
	Rest []*Weight // where every head has a tensor of its own: those of the second head and so on
}

// Set puts a parameter where it belongs.
func (n *Norm) Set(w *Weight, bias bool) {
	switch {
	case bias:
		n.B = w
	case n.W != nil:
		n.Rest = append(n.Rest, w)
	default:
		n.W = w
	}
}

// Linear is a matrix with its bias and what is attached to it.
type Linear struct {
	W, B       *Weight
	Role       arch.Role
	Expert     int // -1 outside of mixtures
	In, Out    int
	Transposed bool // stored [in, out]
	ID         int  // the caller's number
	Deltas     []Delta
}

// Delta changes what a linear computes; see the interface of that name in package lm.
type Delta interface {
	// Forward changes y, the linear's output for x.
	Forward(x, y kernels.Mat) error
	// Backward adds to dx what reaches x through the delta, and to its own parameters' gradients.
	Backward(x, dy, dx kernels.Mat) error
	// Trains reports whether it has parameters whose gradients are wanted.
	Trains() bool
}

// MLP is a plain or gated feed-forward network: up or gate and up (apart or in one), then down.
type MLP struct{ Gate, Up, GateUp, Down *Linear }

// Block is one layer of the model: attention and MLP with their norms.
type Block struct {
	Index int

	AttnNorm, MLPNorm, AttnPost, MLPPost, QNorm, KNorm Norm

	Q, K, V, QKV, O *Linear

	QA, QB, KVA, KVB *Linear // latent attention; see latent.go
	QANorm, KVANorm  Norm
	Sinks            *Weight // nil without; see sinks.go

	Experts      []MLP // one for a plain MLP
	Mixture      bool
	Router       *Weight
	RouterBias   *Weight // nil without
	RouterOffset *Weight // nil without; see routing.go
	Shared       *MLP    // nil without a shared expert
	SharedRouter *Weight
}

// NewBlock makes block l without its parameters.
func NewBlock(l int, c *arch.Config) *Block {
	b := &Block{Index: l, Experts: make([]MLP, 1), Mixture: c.Mixture[l]}
	if b.Mixture {
		b.Experts = make([]MLP, c.Experts)
	}
	b.QANorm.Eps, b.KVANorm.Eps = c.LatentEps, c.LatentEps
	return b
}

// Place puts a parameter where the block uses it. A matrix comes before its bias.
func (b *Block) Place(a arch.Param, w *Weight) {
	norms := map[arch.Role]*Norm{
		arch.AttnNorm: &b.AttnNorm, arch.MLPNorm: &b.MLPNorm, arch.AttnPostNorm: &b.AttnPost,
		arch.MLPPostNorm: &b.MLPPost,
		arch.QNorm:       &b.QNorm, arch.KNorm: &b.KNorm,
		arch.QANorm: &b.QANorm, arch.KVANorm: &b.KVANorm,
	}

	switch n := norms[a.Role]; {
	case n != nil:
		n.Set(w, a.Bias)
	case a.Role == arch.Router && a.Bias:
		b.RouterBias = w
	case a.Role == arch.Router:
		b.Router = w
	case a.Role == arch.RouterOffset:
		b.RouterOffset = w
	case a.Role == arch.Sinks:
		b.Sinks = w
	case a.Role == arch.SharedRouter:
		b.SharedRouter = w
	default:
		// A dense MLP is kept as the only expert.
		placeLinear(b.slot(a.Role, max(a.Expert, 0)), a, w)
	}
}

// slot is where the block keeps the matrix of a role.
func (b *Block) slot(r arch.Role, expert int) **Linear {
	switch r {
	case arch.Q:
		return &b.Q
	case arch.K:
		return &b.K
	case arch.V:
		return &b.V
	case arch.QKV:
		return &b.QKV
	case arch.O:
		return &b.O
	case arch.QA:
		return &b.QA
	case arch.QB:
		return &b.QB
	case arch.KVA:
		return &b.KVA
	case arch.KVB:
		return &b.KVB
	case arch.SharedGate, arch.SharedUp, arch.SharedGateUp, arch.SharedDown:
		if b.Shared == nil {
			b.Shared = &MLP{}
		}
		return b.Shared.slot(map[arch.Role]arch.Role{
			arch.SharedGate: arch.Gate, arch.SharedUp: arch.Up, arch.SharedGateUp: arch.GateUp,
			arch.SharedDown: arch.Down,
		}[r])
	}

	return b.Experts[expert].slot(r)
}

func (f *MLP) slot(r arch.Role) **Linear {
	switch r {
	case arch.Gate:
		return &f.Gate
	case arch.Up:
		return &f.Up
	case arch.GateUp:
		return &f.GateUp
	case arch.Down:
		return &f.Down
	}

	panic("layer: architecture table names a role that blocks do not have")
}

func placeLinear(at **Linear, a arch.Param, w *Weight) {
	if a.Bias {
		(*at).B = w
		return
	}
	in, out := int(a.Shape[1]), int(a.Shape[0])
	if a.Transposed { // the file has it the other way round
		in, out = out, in
	}
	*at = &Linear{W: w, Role: a.Role, Expert: a.Expert, In: in, Out: out, Transposed: a.Transposed}
}

// Linears lists the matrices in order of use, which is expert by expert in a mixture.
func (b *Block) Linears() []*Linear {
	list := []*Linear{b.QA, b.Q, b.K, b.V, b.QKV, b.KVA, b.QB, b.KVB, b.O}
	for _, f := range b.Experts {
		list = append(list, f.linears()...)
	}
	if b.Shared != nil {
		list = append(list, b.Shared.linears()...)
	}
	return slices.DeleteFunc(list, func(l *Linear) bool { return l == nil })
}

func (f *MLP) linears() []*Linear { return []*Linear{f.Gate, f.Up, f.GateUp, f.Down} }
