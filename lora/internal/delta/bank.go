package delta

import (
	"fmt"
	"sync"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Bank lets several adapters act on one model, each on its own rows. The factors are assembled when they are
// needed: an adapter takes the memory of its parameters.
type Bank struct {
	r     *Runtime // for its memory and device
	mu    sync.Mutex
	all   map[string]map[string]*adapter.Low // by name, then by tensor
	spans []span                             // of the pass that runs
	undo  func()
}

// span is rows of one adapter; a nil one changes nothing.
type span struct {
	lo, hi  int
	modules map[string]*adapter.Low
}

// NewBank attaches an empty bank to all matrices of the blocks.
func NewBank(m *lm.Model) (*Bank, error) {
	r := &Runtime{m: m, dev: m.Device(), ops: m.Device().Ops(), host: m.Device().Info().Host}
	r.spare.New = func() any { return &workspace{dev: r.dev} }
	b := &Bank{r: r, all: map[string]map[string]*adapter.Low{}}
	var err error
	b.undo, err = m.Attach(b)
	return b, err
}

// Close detaches the bank.
func (b *Bank) Close() { b.undo() }

// Add takes an adapter in under a name. Only low-rank changes of matrices that see every row can differ from
// row to row.
func (b *Bank) Add(name string, a *adapter.Adapter) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	if _, taken := b.all[name]; taken || name == "" {
		return fmt.Errorf("%w: an adapter called %.100q is there, or the name is empty", adapter.ErrConfig, name)
	}

	// A masked change needs a product with a matrix as large as the weight, for each adapter of the batch.
	if a.Config.KeepZeros {
		return fmt.Errorf("%w: %.100q keeps zeros of the base, which a bank does not (HINT: lora fold writes it "+
			"into the weights)", adapter.ErrUnsupported, name)
	}
	if len(a.Whole)+len(a.Rows) > 0 {
		return fmt.Errorf("%w: %.100q trains whole tensors, which all rows share", adapter.ErrUnsupported, name)
	}

	modules := map[string]*adapter.Low{}
	for _, l := range a.Low {
		// An expert sees rows of all sequences in an order of its own, and DoRA scales what the base gives too.
		if !l.Module.Linear() || l.Module.Expert >= 0 || l.Magnitude != nil {
			return fmt.Errorf("%w: %.100q changes %s, whose change cannot differ from row to row (a table, the "+
				"head, an expert, or DoRA)",
				adapter.ErrUnsupported, name, l.Module.Path)
		}
		modules[l.Module.Tensor] = l
	}

	b.all[name] = modules
	return nil
}

// Remove forgets an adapter.
func (b *Bank) Remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, name)
}

// Run runs the model, sequence i with the adapter names[i]; "" is the base alone. One pass runs at a time.
func (b *Bank) Run(run func() (*lm.Result, error), lens []int, names []string) (*lm.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if len(names) != len(lens) {
		return nil, fmt.Errorf("%w: %d names for %d sequences", adapter.ErrConfig, len(names), len(lens))
	}
	defer func() { b.spans = nil }()

	at := 0
	for i, n := range lens {
		modules, ok := b.all[names[i]]
		if !ok && names[i] != "" {
			return nil, fmt.Errorf("%w: no adapter is called %.100q", adapter.ErrConfig, names[i])
		}

		// Neighbours with the same adapter share its products.
		if k := len(b.spans) - 1; k >= 0 && names[i] == names[i-1] {
			b.spans[k].hi = at + n
		} else {
			b.spans = append(b.spans, span{at, at + n, modules})
		}

		at += n
	}

	return run()
}

// Forward implements [lm.Delta].
func (b *Bank) Forward(l lm.Linear, x, y kernels.Mat) error {
	for _, s := range b.spans {
		low := s.modules[l.Name]
		if low == nil {
			continue
		}
		if err := b.one(low, x.RowRange(s.lo, s.hi), y.RowRange(s.lo, s.hi)); err != nil {
			return err
		}
	}

	return nil
}

// Backward implements [lm.Delta]: a bank is for inference.
func (b *Bank) Backward(lm.Linear, kernels.Mat, kernels.Mat, kernels.Mat) error {
	return fmt.Errorf("%w: a gradient through several adapters at once", adapter.ErrUnsupported)
}

// Parameters implements [lm.Delta].
func (b *Bank) Parameters() []lm.Parameter { return nil }

// one applies a change to some rows.
func (b *Bank) one(low *adapter.Low, x, y kernels.Mat) error {
	r := b.r
	w := r.work()
	defer r.spare.Put(w)

	a, bt := w.host(0, low.Rank, low.Module.In), w.host(1, low.Rank, low.Module.Out)
	low.Assemble(a, bt)
	scale(a, low.Scale)

	// The gradients' slots are free: a bank has no backward pass.
	if !r.host {
		for slot, m := range map[int]*kernels.Mat{wDA: &a, wDB: &bt} {
			d, err := w.mat(slot, m.Rows, m.Cols)
			if err == nil {
				err = r.dev.Upload(d.Buf, 0, f32Bytes(*m))
			}
			if err != nil {
				return err
			}
			*m = d
		}
	}

	t, err := w.mat(wT, x.Rows, low.Rank)
	if err != nil {
		return err
	}

	r.ops.MatMulNT(t, x, a, kernels.MatMul{})
	o := kernels.MatMul{Accumulate: true}
	if low.Bias != nil {
		bias := hostMat(1, low.Module.Out)
		copy(bias.RowF32(0), low.Bias.Data())
		scale(bias, low.Scale)

		o.Bias = bias
		if !r.host {
			if o.Bias, err = w.mat(wRow, 1, low.Module.Out); err == nil {
				err = r.dev.Upload(o.Bias.Buf, 0, f32Bytes(bias))
			}
			if err != nil {
				return err
			}
		}
	}

	r.ops.MatMulNN(y, t, bt, o)
	return nil
}
