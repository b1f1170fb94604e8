package fold

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// Edit is how one tensor of the output comes about.
type Edit struct {
	Info  safetensors.Info // of the output
	From  string           // parameter of the base that it starts from
	to    string           // tensor of the output that holds it, and
	first int64            // its first element there
	whole *adapter.Whole   // replaces that; nil: none
	rows  []*adapter.Rows  // replace rows
	low   *adapter.Low     // is added; nil: none
	bias  *adapter.Low     // whose output bias is added; nil: none
}

// Plan is what becomes of a base.
type Plan struct {
	Edits map[string]*Edit // by parameter of the output
	Names []string         // edited ones in the order of the output
	Head  string           // the head that a tied model gets; "": none
	Untie bool
}

// Matrix reports whether what is edited has a pattern of zeros to keep: vectors, such as biases, have none.
func (e *Edit) Matrix() bool { return len(e.Info.Shape) > 1 }

// planner collects edits.
type planner struct {
	base *adapter.Checkpoint
	Plan
	table string // token table of the base
}

// NewPlan finds the tensors that an adapter changes. The error wraps [adapter.ErrBase] and names the first
// that does not fit.
func NewPlan(base *adapter.Checkpoint, a *adapter.Adapter) (*Plan, error) {
	p := &planner{base: base, Plan: Plan{Edits: map[string]*Edit{}}}
	for _, m := range base.Modules {
		if m.Table {
			p.table = m.Tensor
		}
	}

	if err := p.separateHead(a); err != nil {
		return nil, err
	}

	for _, w := range a.Whole {
		if err := p.addWhole(w); err != nil {
			return nil, err
		}
	}

	for _, r := range a.Rows {
		if err := p.addRows(r); err != nil {
			return nil, err
		}
	}

	for _, l := range a.Low {
		if err := p.addLow(l); err != nil {
			return nil, err
		}
	}

	p.order()
	return &p.Plan, nil
}

// order lists the edited tensors as the output has them, a new head last.
func (p *planner) order() {
	for _, name := range p.base.Tensors.Names() {
		if p.Edits[name] != nil {
			p.Names = append(p.Names, name)
		}
	}
	if p.Head != "" && !slices.Contains(p.Names, p.Head) {
		p.Names = append(p.Names, p.Head)
	}
}

// separateHead finds out whether a tied model needs a head of its own, and starts it from the table.
func (p *planner) separateHead(a *adapter.Adapter) error {
	if !p.base.Config.Tied {
		return nil
	}
	if !a.Apart(p.table) {
		return nil
	}
	if p.base.Config.Arch.Config["tied"].Key == "" || p.base.Config.Arch.HeadName() == "" {
		return fmt.Errorf("%s: %w: the adapter changes the token table or the head, which a %s cannot have apart",
			p.base.Dir, adapter.ErrUnsupported, p.base.Config.ModelType)
	}

	p.Untie = true
	p.Head = p.base.Config.Arch.HeadName()
	e, err := p.edit(p.table)
	if err != nil {
		return err
	}

	delete(p.Edits, p.table)
	e.Info.Name, e.to = p.Head, p.Head
	p.Edits[p.Head] = e

	return nil
}

// edit gives the edit of a tensor of the base, a new one if there is none.
func (p *planner) edit(name string) (*Edit, error) {
	if e := p.Edits[name]; e != nil {
		return e, nil
	}

	info, ok := p.base.Tensors.Info(name)
	if !ok {
		return nil, fmt.Errorf("%s: %w: it has no tensor %.200q", p.base.Dir, adapter.ErrBase, name)
	}

	if !dtype.IsFloat(info.DType) || info.DType == safetensors.F64 {
		return nil, failure.Hinted(fmt.Errorf("%s: tensor %.200q: %w: nothing is folded into %s", p.base.Dir, name,
			adapter.ErrUnsupported, info.DType), "compress convert --dtype f32")
	}

	e := &Edit{Info: info, From: name}
	e.to, e.first = p.base.Tensors.Place(name)
	p.Edits[name] = e

	return e, nil
}

// addWhole replaces a tensor. A table that is saved along replaces it for both uses.
func (p *planner) addWhole(w *adapter.Whole) error {
	name := w.Tensor
	if p.base.Config.Tied && w.Head() {
		if name = p.Head; name == "" {
			return nil // the table says the same
		}
	}

	e, err := p.edit(name)
	if err != nil {
		return err
	}

	if !slices.Equal(e.Info.Shape, w.Shape) {
		return fmt.Errorf("%s: tensor %.200q: %w: shape %v, the adapter's %q has %v", p.base.Dir, w.Tensor,
			adapter.ErrBase, e.Info.Shape, w.Key, w.Shape)
	}

	e.whole = w
	if head := p.Edits[p.Head]; head != nil && w.Frozen && w.Tensor == p.table {
		head.whole = w
	}

	return nil
}

// addRows replaces rows of a table, for both uses where they are tied.
func (p *planner) addRows(r *adapter.Rows) error {
	names := []string{r.Module.Tensor}
	if p.Head != "" && r.Module.Table {
		names = append(names, p.Head)
	}
	if r.Module.Tied && p.Head != "" {
		names = []string{p.Head}
	}

	for _, name := range names {
		e, err := p.edit(name)
		if err != nil {
			return err
		}
		e.rows = append(e.rows, r)
	}

	return nil
}

// addLow adds the low-rank change of a module.
func (p *planner) addLow(l *adapter.Low) error {
	name := l.Module.Tensor
	if l.Module.Tied {
		if name = p.Head; name == "" {
			return nil // the table's change is the head's
		}
	}

	e, err := p.edit(name)
	if err != nil {
		return err
	}

	e.low = l
	if l.Bias == nil {
		return nil
	}
	if l.Module.Bias == "" {
		return fmt.Errorf("%s: %w: the adapter's lora_bias needs a bias of %s, which the base does not have",
			p.base.Dir, adapter.ErrUnsupported, l.Module.Path)
	}
	if e, err = p.edit(l.Module.Bias); err != nil {
		return err
	}

	e.bias = l
	return nil
}
