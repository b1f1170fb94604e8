package ggufmodel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/lm/arch"
)

// Change is a low-rank change of a matrix of a checkpoint, Scale·left·right: its rows are outputs, those of a table
// tokens, however the checkpoint stores it.
type Change struct {
	Rank  int
	Scale float64
	// Factors gives left [rows, Rank] and right [Rank, columns].
	Factors func() (left, right []float32, err error)
}

// Adapter is a file of llama.cpp's that changes a model when it is loaded beside it: for tensors NAME of the model a
// pair of factors, NAME.lora_a and NAME.lora_b, whose product times [Adapter.Alpha] over its rank is added.
type Adapter struct {
	Architecture string
	// Alpha is common to all pairs. What their changes are scaled with beside it is in lora_b.
	Alpha float32
	Pairs []*AdapterPair // in the order of the model
}

// AdapterPair is the change of one tensor of the model, which may be a stack of matrices.
type AdapterPair struct {
	Name string // of the tensor
	// Rank is that of each matrix: the changes of what lies one above the other in it have their ranks side by side.
	Rank    int
	Sources []string // the changed parameters in it
	A, B    []int64  // shapes of the factors, outermost first

	target  *Target
	changes map[string]Change
	alpha   float64
	table   bool // lora_a is turned around
}

// NewAdapter plans the adapter that makes changes of a model's parameters, by the names of [arch.Resolve], whose result
// is params. What llama.cpp cannot load or would pass over is an error around [ErrUnwritable]. file names the
// model in errors.
func NewAdapter(file string, c *arch.Config, params []arch.Param, changes map[string]Change) (*Adapter, error) {
	targets, err := targetsOf(file, c, params)
	if err != nil {
		return nil, err
	}

	a := &Adapter{Architecture: c.GGUFName()}
	for _, t := range targets {
		p := &AdapterPair{Name: t.Name, target: t, changes: changes, table: t.Role == arch.Embed}
		for _, name := range t.Sources {
			if _, ok := changes[name]; ok {
				p.Sources = append(p.Sources, name)
			}
		}
		if len(p.Sources) == 0 {
			continue
		}

		if err := p.check(file, c, params); err != nil {
			return nil, err
		}
		p.measure()
		a.Pairs = append(a.Pairs, p)
	}

	a.settle()
	return a, nil
}

// targetsOf lists the tensors of a model's file, but for what is made of no parameter.
func targetsOf(file string, c *arch.Config, params []arch.Param) ([]*Target, error) {
	if !c.Arch.GGUFWritable() {
		return nil, unknownType(file, c)
	}
	p := &plan{file: file, config: c, byName: map[string]*Target{}, params: params}
	if err := p.build(); err != nil {
		return nil, err
	}
	return p.list, nil
}

// unknownType says that nothing is known of how llama.cpp has an architecture.
func unknownType(file string, c *arch.Config) error {
	return &Error{
		File: file, Err: ErrUnwritable,
		Detail: fmt.Sprintf("nothing is known of how llama.cpp has a %s; known: %s", c.ModelType,
			strings.Join(arch.GGUFTypes(), ", ")),
	}
}

// check refuses what llama.cpp does not load, or loads and does not use.
func (p *AdapterPair) check(file string, c *arch.Config, params []arch.Param) error {
	fault := func(format string, args ...any) error {
		return &Error{File: file, Tensor: p.Sources[0], Err: ErrUnwritable, Detail: fmt.Sprintf(format, args...)}
	}

	t := p.target
	roles := map[string]arch.Role{}
	for _, q := range params {
		roles[q.Name] = q.Role
	}
	for _, name := range p.Sources {
		if slices.Contains(c.Arch.GGUF.Unadapted, roles[name]) {
			return fault("llama.cpp takes adapters of %s and computes a %s as if they were not there", t.Name,
				c.ModelType)
		}
	}

	switch {
	case p.table && c.Tied:
		return fault("llama.cpp has one tensor for tokens and for the tied head, and one change for both is not " +
			"what the adapter is")
	case len(t.Shape) == 1 || t.flipped || len(t.matrices) > 1 && len(t.Shape) != 3:
		return fault("%s of a %s is stored in a way that adapters cannot change", t.Name, c.ModelType)
	}
	return nil
}

// measure finds the rank.
func (p *AdapterPair) measure() {
	t := p.target
	for _, slots := range t.matrices {
		rank := 0
		for _, part := range p.parts(slots) {
			rank += p.changes[part].Rank
		}
		p.Rank = max(p.Rank, rank)
	}
	p.shapes()
}

// shapes are those of factors of the rank.
func (p *AdapterPair) shapes() {
	t := p.target
	rank := int64(p.Rank)
	p.A = []int64{rank, int64(t.width)}
	p.B = []int64{int64(t.height), rank}
	if p.table {
		p.A = []int64{int64(t.height), rank}
		p.B = []int64{int64(t.width), rank}
	}
	if len(t.Shape) == 3 {
		p.A = slices.Insert(p.A, 0, t.Shape[0])
		p.B = slices.Insert(p.B, 0, t.Shape[0])
	}
}

// parts lists the changed parameters in a matrix, in the order of their ranks.
func (p *AdapterPair) parts(slots []slot) (list []string) {
	for i := range slots {
		if _, ok := p.changes[slots[i].source]; ok && !slices.Contains(list, slots[i].source) {
			list = append(list, slots[i].source)
		}
	}
	return list
}

// settle chooses the alpha that needs the fewest factors to be scaled: a reader multiplies by alpha over the rank.
func (a *Adapter) settle() {
	counts := map[float32]int{}
	var order []float32
	for _, p := range a.Pairs {
		for _, name := range p.Sources {
			alpha := float32(p.changes[name].Scale * float64(p.Rank))
			if alpha == 0 || math.IsInf(float64(alpha), 0) {
				continue // a reader takes 0 for no alpha at all
			}
			if counts[alpha] == 0 {
				order = append(order, alpha)
			}
			counts[alpha]++
		}
	}

	a.Alpha = 1
	for i, alpha := range order {
		if i == 0 || counts[alpha] > counts[a.Alpha] {
			a.Alpha = alpha
		}
	}
	for _, p := range a.Pairs {
		p.alpha = float64(a.Alpha)
	}
}

// Folded counts the changed parameters whose scale is partly in lora_b.
func (a *Adapter) Folded() (n int) {
	for _, p := range a.Pairs {
		for _, name := range p.Sources {
			if p.factor(name) != 1 {
				n++
			}
		}
	}
	return n
}

// factor is what lora_b has beside the change's own factor.
func (p *AdapterPair) factor(name string) float64 {
	alpha := p.changes[name].Scale * float64(p.Rank)
	if float32(alpha) == float32(p.alpha) {
		return 1
	}
	return alpha / p.alpha
}

// values makes the two factors of all matrices.
func (p *AdapterPair) values() (a, b []float32, err error) {
	t := p.target
	a = make([]float32, len(t.matrices)*p.Rank*t.width)
	b = make([]float32, len(t.matrices)*p.Rank*t.height)
	for m, slots := range t.matrices {
		if err := p.matrix(a[m*p.Rank*t.width:], b[m*p.Rank*t.height:], slots); err != nil {
			return nil, nil, err
		}
	}

	if p.table { // rows of lora_a are those of tokens, which are looked up
		left := b
		b = turned(a, p.Rank, t.width)
		return left, b, nil
	}
	return a, b, nil
}

// matrix writes the factors of a matrix: right ones above each other, left ones side by side.
func (p *AdapterPair) matrix(a, b []float32, slots []slot) error {
	width, first := p.target.width, 0
	for _, name := range p.parts(slots) {
		c := p.changes[name]
		left, right, err := c.Factors()
		if err != nil {
			return err
		}

		factor := p.factor(name)
		lines := right[:c.Rank*width]
		copy(a[first*width:], lines)
		for i := range slots {
			s := &slots[i]
			if s.source != name {
				continue
			}
			for row := range s.rows {
				to := b[(s.first+row)*p.Rank+first:][:c.Rank]
				copy(to, left[s.at(row)*c.Rank:])
				for k := range to {
					if factor != 1 {
						to[k] = float32(float64(to[k]) * factor)
					}
				}
			}
		}
		first += c.Rank
	}
	return nil
}

// turned is a matrix [rows, cols] as [cols, rows].
func turned(x []float32, rows, cols int) []float32 {
	out := make([]float32, len(x))
	for i := range rows {
		for j := range cols {
			out[j*rows+i] = x[i*cols+j]
		}
	}
	return out
}

// AdapterOptions says how an adapter is written.
type AdapterOptions struct {
	Name      string    // general.name
	Base      string    // name of the base; "": not known
	Type      gguf.Type // F32, F16, BF16, or a type of blocks, for which rows that they do not divide are F16
	Overwrite bool
}

// Write writes the file, one pair in memory at a time. The errors are those of [gguf.Create] and of Factors, and around
// [ErrUnwritable] where a value does not fit the type.
func (a *Adapter) Write(ctx context.Context, path string, o AdapterOptions) error {
	var infos []gguf.Info
	for _, p := range a.Pairs {
		infos = append(infos, factorInfo(p.Name+loraA, p.A, o.Type), factorInfo(p.Name+loraB, p.B, o.Type))
	}

	w, err := gguf.Create(path, infos, a.metadata(o), gguf.Options{Overwrite: o.Overwrite})
	if err != nil {
		return err
	}
	for i, p := range a.Pairs {
		if err = ctx.Err(); err == nil {
			err = p.write(w, path, infos[2*i:2*i+2])
		}
		if err != nil {
			return errors.Join(err, w.Abort())
		}
	}

	return w.Finish()
}

// The endings of the names of factors.
const (
	loraA = ".lora_a"
	loraB = ".lora_b"
)

// factorInfo describes a factor as a tensor.
func factorInfo(name string, shape []int64, as gguf.Type) gguf.Info {
	if elements, _ := as.Block(); shape[len(shape)-1]%elements != 0 {
		as = gguf.F16
	}
	return gguf.Info{Name: name, Type: as, Shape: shape}
}

// metadata lists the keys, those that llama.cpp's converter writes.
func (a *Adapter) metadata(o AdapterOptions) gguf.Metadata {
	m := gguf.Metadata{
		{Key: "general.architecture", Value: gguf.Of(a.Architecture)},
		{Key: "general.type", Value: gguf.Of("adapter")},
		{Key: "adapter.type", Value: gguf.Of("lora")},
	}
	if o.Name != "" {
		m = append(m, gguf.Entry{Key: "general.name", Value: gguf.Of(o.Name)})
	}
	if o.Base != "" {
		m = append(m, gguf.Entry{Key: "general.base_model.count", Value: gguf.Of(uint32(1))},
			gguf.Entry{Key: "general.base_model.0.name", Value: gguf.Of(o.Base)})
	}
	return append(m, gguf.Entry{Key: "adapter.lora.alpha", Value: gguf.Of(a.Alpha)},
		gguf.Entry{Key: "general.quantization_version", Value: gguf.Of(uint32(2))})
}

// write writes the two factors.
func (p *AdapterPair) write(w *gguf.Writer, path string, infos []gguf.Info) error {
	a, b, err := p.values()
	if err != nil {
		return err
	}

	for i, x := range [][]float32{a, b} {
		info := infos[i]
		data, err := encoded(x, info)
		if err != nil {
			return &Error{File: path, Tensor: info.Name, Err: ErrUnwritable, Detail: err.Error()}
		}
		if err := w.WriteTensor(info.Name, data); err != nil {
			return err
		}
	}
	return nil
}

// encoded is the bytes of a tensor, every one of whose values must be finite in its type.
func encoded(x []float32, info gguf.Info) ([]byte, error) {
	block, ok := quantized.BlockNamed(info.Type.String())
	if !ok {
		return nil, fmt.Errorf("nothing here encodes %v", info.Type)
	}
	cols := int(info.Cols())
	data := make([]byte, block.Size(cols)*(len(x)/cols))
	return data, block.Encode(data, x, cols, nil)
}
