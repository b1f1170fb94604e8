package lm

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// Delta changes what linear layers compute: an adapter, a routed expert, an edit. It is attached to a model with
// [Model.Attach]; the model's own parameters stay as they are.
type Delta interface {
	// Forward changes y [tokens, Out], which holds the layer's output for x [tokens, In], in place. Before a
	// backward pass it may be called again with the same x.
	Forward(l Linear, x, y kernels.Mat) error
	// Backward adds to dx [tokens, In] the gradient that reaches x through the delta, given the gradient dy
	// [tokens, Out] of y, and adds to the gradients of the delta's own parameters.
	Backward(l Linear, x, dy, dx kernels.Mat) error
	// Parameters lists what can be trained.
	Parameters() []Parameter
}

// Parameter is a trainable matrix of a [Delta] and its gradient, both F32.
type Parameter struct {
	Name        string
	Value, Grad kernels.Mat
}

// Attach lets a delta act on the named linears ([Linear].Name), or on all when none is named. Deltas act in the order
// in which they were attached. undo detaches it again. No pass may run meanwhile.
func (m *Model) Attach(d Delta, names ...string) (undo func(), err error) {
	chosen, err := m.choose(names)
	if err != nil {
		return nil, err
	}

	// Nothing is attached before all names are known to be right.
	for _, l := range chosen {
		l.at.Deltas = append(l.at.Deltas, attached{l.Linear, d})
	}

	m.setup.Attached(1)
	return func() {
		for _, l := range chosen {
			l.at.Remove(func(a layer.Delta) bool { return a.(attached).delta == d })
		}
		m.setup.Attached(-1)
	}, nil
}

// Precision is that of the model's matrix products.
func (m *Model) Precision() kernels.Precision { return m.opts.Precision }

// attached is a delta at one linear.
type attached struct {
	linear Linear
	delta  Delta
}

// Forward implements [layer.Delta].
func (a attached) Forward(x, y kernels.Mat) error { return a.delta.Forward(a.linear, x, y) }

// Backward implements [layer.Delta].
func (a attached) Backward(x, dy, dx kernels.Mat) error { return a.delta.Backward(a.linear, x, dy, dx) }

// Trains implements [layer.Delta].
func (a attached) Trains() bool { return len(a.delta.Parameters()) > 0 }

// Hooks look into a pass; the gradients come from backward passes alone. Nil functions are off. The matrices
// are only valid during the call and must not be changed.
type Hooks struct {
	// LinearInput gets what a matrix multiplies: F32 [tokens, In]. It is called once per matrix and pass; in a
	// mixture with the tokens that are routed to the expert, and not at all for an expert without any.
	LinearInput func(l Linear, x kernels.Mat)
	// Expert gets what an expert of a mixture gives, once per expert and pass, and not at all for one without tokens.
	Expert func(r Routed)
	// Route says where the tokens of a mixture go instead of where the configuration sends them, as a smaller one would
	// have it; nil: nobody. Passes with a backward one must not have it. It is asked several times and answers alike.
	Route func(block int) Routing
	// BlockOutput gets what leaves a block: F32 [tokens, hidden], before the final norm.
	BlockOutput func(block int, x kernels.Mat)
	// WeightGrad gets the gradient of a parameter, F32 in the layout of [Model.Param]: once per wanted
	// parameter and backward pass, also where it is zero. The pass does not need the parameter any more: it may
	// be changed. An error ends the pass.
	WeightGrad func(name string, g kernels.Mat) error
	// HiddenGrad gets the gradient of a hidden state, F32 [tokens, hidden]: 0 is the embeddings, i what leaves
	// block i-1.
	HiddenGrad func(state int, g kernels.Mat) error
}

// Routing is where the tokens of a mixture go.
type Routing struct {
	// Keep are the experts that there are, at least TopK, and as many in every group of a router that has groups; nil:
	// all.
	Keep []bool
	TopK int // experts of a token; 0: as the configuration says
}

// Routed is what an expert gives for the tokens that are routed to it. It is good during the call alone.
type Routed struct {
	Block, Expert int
	Y             kernels.Mat // F32 [tokens, hidden]
	Rows          []int32     // the tokens: rows of the block's input, ascending
	Weights       []float32   // with which each is added to the block's output
}
