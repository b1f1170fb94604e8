package structure

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
)

// Restored says what a matrix gained, as ‖ΔW·X‖²/‖W·X‖² over the sequences that were held out, measured on up to 64 of
// its outputs.
type Restored struct {
	Name    string  `json:"name"`
	Cut     float64 `json:"cut"`     // without the inputs that went
	Updated float64 `json:"updated"` // with what stays making up for them
	// Ridge is how much of it was added to the diagonal of Σ x xᵀ.
	Ridge   float64        `json:"ridge"`
	Damping linalg.Damping `json:"damping"`
	// Left: what stays is as it was, since on what was held out nothing made up for what went.
	Left bool `json:"left,omitempty"`
	// Unreached: no token of the text comes to the expert, whose weights stay as they are.
	Unreached bool `json:"unreached,omitempty"`
}

// damping of the normal equations, of the mean of the diagonal, beside what is added to each input's own.
const damping = 1e-6

// heldOut is how many sequences there are for each that is held out, to choose by: every fourth.
const heldOut = 4

// Restore lets the columns that stay of the matrices behind neurons and heads make up for those that went: for each
// output the least squares over what the text brings to the matrix (after FASP, Hu et al., 2025, arXiv:2501.09412),
// drawn to the weights as they were. How strongly, is chosen for each matrix by every fourth sequence; what is written
// is then fitted to all. With fewer than four, nothing is held out: as much as the squares themselves is added to them,
// and the figures are those of the text that was fitted.
//
// It goes from layer to layer, each measured behind those that are narrower already. The matrices of the model change;
// with a saver, finished layers are written, and what an interrupted run has written is taken from there. The plan gets
// what was gained, the same after an interruption.
func Restore(ctx context.Context, m *lm.Model, calib corpus.Windows, p *Plan, out *lm.Saver) error {
	if p.Width == nil || p.Options.NoRestore {
		return nil
	}

	r := &restoration{m: m, c: m.Config(), p: p, out: out}
	if err := r.readRemarks(); err != nil {
		return err
	}

	defer r.free()
	if err := r.embed(ctx, calib); err != nil {
		return err
	}
	blocks := p.Cut.Blocks(r.c)
	for i, l := range blocks {
		p.Options.Progress(Restoring, int64(i), int64(len(blocks)))
		if err := r.block(ctx, l); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
	}
	p.Options.Progress(Restoring, int64(len(blocks)), int64(len(blocks)))

	return nil
}

// restoration is one under way.
type restoration struct {
	m      *lm.Model
	c      *lm.Config
	p      *Plan
	out    *lm.Saver
	fitted half
	held   half                // nothing, of fewer sequences than four
	gained map[string]Restored // by matrix, of this run and of an interrupted one
}

// half is a part of the text on its way through the model.
type half struct {
	states    *actstats.States
	sequences int
}

// embed divides the text.
func (r *restoration) embed(ctx context.Context, calib corpus.Windows) (err error) {
	var fitted, held [][]int32
	for i, ids := range calib.IDs {
		if i%heldOut == heldOut-1 {
			held = append(held, ids)
		} else {
			fitted = append(fitted, ids)
		}
	}

	for _, x := range []struct {
		to  *half
		ids [][]int32
	}{{&r.fitted, fitted}, {&r.held, held}} {
		x.to.sequences = len(x.ids)
		if x.to.states, err = actstats.NewStates(ctx, r.m, x.ids, batchTokens); err != nil {
			return err
		}
	}

	return nil
}

func (r *restoration) free() {
	r.fitted.states.Free()
	r.held.states.Free()
}

// readRemarks takes up what an interrupted run has noted with the matrices that it wrote.
func (r *restoration) readRemarks() error {
	r.gained = map[string]Restored{}
	if r.out == nil {
		return nil
	}

	for _, text := range r.out.Remarks() {
		var list []Restored
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("%s: %w: what was noted of its matrices: %w", r.out.Dir(), lm.ErrDamaged, err)
		}
		for _, x := range list {
			r.gained[x.Name] = x
		}
	}

	return nil
}

// keep is which inputs of a matrix stay; nil: all.
func (r *restoration) keep(l lm.Linear) []int { return inputsKept(r.c, r.p.Cut, l) }

// inputsKept is which inputs of a matrix behind neurons or heads a cut leaves; nil: all.
func inputsKept(c *lm.Config, k *arch.Cut, l lm.Linear) []int {
	switch {
	case l.Role == arch.O && c.KVRank > 0:
		return k.Kept(c, "v", l.Block, -1)
	case l.Role == arch.O:
		return k.Kept(c, "q", l.Block, -1)
	case l.Role == arch.SharedDown:
		return k.Kept(c, "shared_inner", l.Block, -1)
	case l.Role == arch.Down && l.Expert >= 0:
		return k.Kept(c, "expert_inner", l.Block, l.Expert)
	case l.Role == arch.Down:
		return k.Kept(c, "inner", l.Block, -1)
	}
	return nil
}

// block restores the matrices of a layer, first attention's, whose output the MLP reads, and runs it.
func (r *restoration) block(ctx context.Context, l int) error {
	var attention, mlp []lm.Linear
	for _, lin := range r.m.Linears(l) {
		switch {
		case r.keep(lin) == nil:
		case lin.Role == arch.O:
			attention = append(attention, lin)
		default:
			mlp = append(mlp, lin)
		}
	}

	var names []string
	done := r.out != nil
	for _, lin := range append(attention, mlp...) {
		names = append(names, lin.Name)
		_, noted := r.gained[lin.Name]
		done = done && noted && r.out.Done(lin.Name)
	}

	switch {
	case len(names) == 0:
	case done:
		if err := r.out.LoadDone(names...); err != nil {
			return err
		}
	default:
		for _, part := range [][]lm.Linear{attention, mlp} {
			if err := r.part(ctx, l, part); err != nil {
				return err
			}
		}
		if err := r.save(names); err != nil {
			return err
		}
	}
	for _, name := range names {
		r.p.Width.Restored = append(r.p.Width.Restored, r.gained[name])
	}

	for _, x := range []half{r.fitted, r.held} {
		if err := x.states.Advance(ctx, l, nil, func(int, int) {}); err != nil {
			return err
		}
	}
	r.m.ReleaseBlock(l, r.out != nil)

	return nil
}

// save writes some matrices, and beside them what they gained.
func (r *restoration) save(names []string) error {
	if r.out == nil {
		return nil
	}

	var list []Restored
	for _, name := range names {
		list = append(list, r.gained[name])
	}
	remark, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return r.out.SaveWith(remark, names...)
}

// part measures what reaches some matrices of a layer and restores them.
func (r *restoration) part(ctx context.Context, l int, matrices []lm.Linear) error {
	for _, pass := range (actstats.Plan{Needs: actstats.Hessian}).Passes(matrices) {
		if err := r.pass(ctx, l, pass); err != nil {
			return err
		}
	}
	return nil
}

// pass restores those matrices whose Hessians are held at a time.
func (r *restoration) pass(ctx context.Context, l int, pass []lm.Linear) error {
	var stats [2]*actstats.Stats
	for i, x := range []half{r.fitted, r.held} {
		var err error
		if stats[i], err = x.measure(ctx, r.m, l, pass); err != nil {
			return err
		}
		defer stats[i].Free()
	}

	for _, lin := range pass {
		if err := r.matrix(ctx, lin, stats[0], stats[1]); err != nil {
			return err
		}
	}
	return nil
}

// measure runs a layer for what reaches some of its matrices.
func (x *half) measure(ctx context.Context, m *lm.Model, l int, pass []lm.Linear) (*actstats.Stats, error) {
	stats, err := actstats.New(m.Device(), pass, actstats.Hessian, x.sequences, damping)
	if err != nil {
		return nil, err
	}
	stats.Stop = ctx.Err
	if err = x.states.Peek(ctx, l, stats.Hooks(), func(int, int) {}); err == nil {
		err = stats.Err()
	}
	if err != nil {
		stats.Free()
		return nil, err
	}
	return stats, nil
}

// matrix restores one matrix. One of an expert that no token reached keeps its weights.
func (r *restoration) matrix(ctx context.Context, l lm.Linear, fitted, held *actstats.Stats) error {
	own, err := r.m.MutableParam(l.Name)
	if err != nil {
		return err
	}
	stored := own
	if l.Transposed {
		if stored, err = hostmat.Transposed(r.m.Device(), own); err != nil {
			return err
		}
		defer stored.Buf.Free()
	}
	weights, err := hostmat.F32(r.m.Device(), stored)
	if err != nil {
		return err
	}

	f := &fit{w: linalg.FromMat(weights), keep: r.keep(l)}
	f.solver = linalg.Solver{Threads: r.m.Device().Info().Threads, Device: r.m.Device(), Stop: ctx.Err}
	found := Restored{Name: l.Name}
	after, err := r.fit(f, &found, l, fitted, held)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", l.Name, err)
	}
	r.gained[l.Name] = found

	values := kernels.MatOf(kernels.NewHost(kernels.F32, after.Rows*after.Cols), after.Rows, after.Cols)
	after.ToF32(values)
	if err := hostmat.Store(r.m.Device(), own, values, l.Transposed); err != nil {
		return err
	}

	return r.m.Device().Ops().Sync()
}

// fit gives a matrix as it is to be, 0 where inputs go.
func (r *restoration) fit(f *fit, found *Restored, l lm.Linear, fitted, held *actstats.Stats) (linalg.Matrix, error) {
	here, there := fitted.SumOf(l.Name).Tokens(), held.SumOf(l.Name).Tokens()
	if here+there == 0 {
		found.Unreached = true
		return f.part(f.w, true), nil
	}

	if here == 0 || there == 0 {
		if here == 0 {
			fitted = held
		}
		h, err := fitted.HessianOf(fitted.SumOf(l.Name), l)
		if err != nil {
			return h, err
		}
		return f.usual(found, h)
	}

	h, err := fitted.HessianOf(fitted.SumOf(l.Name), l)
	if err != nil {
		return h, err
	}
	other, err := held.HessianOf(held.SumOf(l.Name), l)
	if err != nil {
		return h, err
	}
	if err := f.choose(found, h, other); err != nil {
		return h, err
	}
	if found.Left {
		return f.part(f.w, true), nil
	}

	// Each is the mean over its sequences.
	n := float64(r.fitted.sequences + r.held.sequences)
	for i, v := range other.Data {
		h.Data[i] = (float64(r.fitted.sequences)*h.Data[i] + float64(r.held.sequences)*v) / n
	}
	after, d, err := f.made(f.w, h, found.Ridge)
	found.Damping = d
	return after, err
}
