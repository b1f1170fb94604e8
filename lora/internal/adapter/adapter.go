package adapter

import (
	"errors"
	"strings"

	"github.com/modelcompress/compress/kernels"
)

// Ways in which an adapter can be wrong.
var (
	// ErrConfig: a setting is out of range, unknown, or contradicts another.
	ErrConfig = errors.New("adapter configuration")
	// ErrTarget: a target matches no module of the base, or modules that cannot be adapted.
	ErrTarget = errors.New("adapter target")
	// ErrBase: the adapter belongs to another base model.
	ErrBase = errors.New("adapter is for another base model")
	// ErrFile: the files of an adapter are malformed, or disagree with their configuration.
	ErrFile = errors.New("adapter file")
	// ErrUnsupported: the adapter uses a feature that cannot be computed here.
	ErrUnsupported = errors.New("adapter feature is not supported")
)

// Adapter is a change of a base model.
type Adapter struct {
	Config Config
	Low    []*Low   // low-rank changes, in the order of the base's modules
	Whole  []*Whole // tensors that replace the base's
	Rows   []*Rows  // rows of a token table that replace the base's
}

// Low is the low-rank change of one module.
type Low struct {
	Module Module
	Rank   int
	Alpha  float64
	Scale  float64 // alpha/rank, alpha/√rank, or what the kind says
	Factors
	Bias      *Param // [1, out], times Scale, is added to the output; nil: none
	Magnitude *Param // DoRA's, [1, out] (of a token table: [1, width]); nil: none
}

// Whole is a trained copy of a whole tensor of the base. A tied head that is replaced is no longer tied.
type Whole struct {
	Tensor string  // name in the base
	Key    string  // module path and part, as PEFT names it: "lm_head.weight"
	Value  *Param  // storage layout of the base; one-dimensional tensors are [1, n]
	Shape  []int64 // in the file
	Frozen bool    // saved along, not trained
}

// Rows are trained rows of a token table.
type Rows struct {
	Module Module
	IDs    []int32
	Value  *Param // [len(IDs), width]
}

// Param is one matrix that is trained, or a frozen one that the factors need.
type Param struct {
	Name   string      // tensor name in the adapter's file, without PEFT's prefix
	Value  kernels.Mat // F32, host memory, without gaps
	Grad   kernels.Mat // of the same shape; absent until gradients are wanted
	Frozen bool
	Shape  []int64 // in the file, where that is not the value's; nil: it is
	// Elements: the values are elements of a matrix, whatever their shape is, so that weight decay acts on them as on
	// a matrix.
	Elements bool
}

// NewFactor makes a zeroed factor, which is a matrix also where it has one row.
func NewFactor(name string, rows, cols int) *Param {
	p := NewParam(name, rows, cols)
	p.Elements = true
	return p
}

// NewParam makes a zeroed parameter.
func NewParam(name string, rows, cols int) *Param {
	return &Param{Name: name, Value: kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)}
}

// Clear makes room for the gradient, or sets it to zero.
func (p *Param) Clear() {
	if p.Grad.IsZero() {
		p.Grad = kernels.MatOf(kernels.NewHost(kernels.F32, p.Value.Len()), p.Value.Rows, p.Value.Cols)
		return
	}
	clear(p.Grad.Buf.F32())
}

// Vector reports whether the parameter is a vector, which weight decay leaves alone.
func (p *Param) Vector() bool { return p.Value.Rows == 1 && !p.Elements }

// Up reports whether the parameter is a factor on the side of the outputs, B or what B is made of: names of files say
// so.
func (p *Param) Up() bool {
	part := p.Name[strings.LastIndexByte(strings.TrimSuffix(p.Name, ".weight"), '.')+1:]
	switch strings.TrimSuffix(part, ".weight") {
	case "lora_B", "lora_embedding_B", "pool_B", "prolora_B", "unshared_B", "gralora_B", "gralora_B_general",
		"rasa_B", "share_B", "shared_B":
		return true
	}
	return false
}

// FileShape is the shape in the file.
func (p *Param) FileShape() []int64 {
	if p.Shape != nil {
		return p.Shape
	}
	return []int64{int64(p.Value.Rows), int64(p.Value.Cols)}
}

// Data is the value as a slice, row by row.
func (p *Param) Data() []float32 { return p.Value.Buf.F32()[p.Value.Off : p.Value.Off+p.Value.Len()] }

// Factors say how the two factors of a module follow from parameters. Several modules may share parameters.
type Factors interface {
	// Assemble writes A [rank, in] and the transposed B [rank, out], both F32 in host memory without gaps.
	Assemble(a, bt kernels.Mat)
	// Scatter adds to the parameters' gradients what the gradients of the assembled factors make of them.
	Scatter(da, dbt kernels.Mat)
	// Parameters lists what the factors are made of, shared ones too.
	Parameters() []*Param
}

// Fixed is what [Factors] have whose A is not trained: Scatter gets no gradient of it, and need not be given one.
type Fixed interface{ FixedA() }

// Pair gives the factors as PEFT stores them: A [rank, in] and B [out, rank], copies without gaps. The scale is
// in neither.
func (l *Low) Pair() (a, b kernels.Mat) {
	in, out := l.Module.In, l.Module.Out
	a, bt := hostMat(l.Rank, in), hostMat(l.Rank, out)
	l.Assemble(a, bt)
	b = hostMat(out, l.Rank)
	transpose(b, bt)
	return a, b
}

// Trainable lists the parameters that training changes, each once, in a fixed order.
func (a *Adapter) Trainable() []*Param {
	var list []*Param
	seen := map[*Param]bool{}
	add := func(p *Param) {
		if p != nil && !p.Frozen && !seen[p] {
			seen[p] = true
			list = append(list, p)
		}
	}

	for _, p := range a.Params() {
		add(p)
	}

	return list
}

// Params lists all parameters, frozen ones too, each once, in a fixed order.
func (a *Adapter) Params() []*Param {
	var list []*Param
	seen := map[*Param]bool{}
	add := func(ps ...*Param) {
		for _, p := range ps {
			if p != nil && !seen[p] {
				seen[p] = true
				list = append(list, p)
			}
		}
	}

	for _, l := range a.Low {
		add(l.Parameters()...)
		add(l.Bias, l.Magnitude)
	}

	for _, w := range a.Whole {
		add(w.Value)
	}
	for _, r := range a.Rows {
		add(r.Value)
	}

	return list
}

// MaxRank is the largest rank of a module.
func (a *Adapter) MaxRank() int {
	most := 0
	for _, l := range a.Low {
		most = max(most, l.Rank)
	}
	return most
}

// Count is the number of trained elements.
func (a *Adapter) Count() int64 {
	var n int64
	for _, p := range a.Trainable() {
		n += int64(p.Value.Len())
	}
	return n
}

// Find gives the change of a module by its path, nil if there is none.
func (a *Adapter) Find(path string) *Low {
	for _, l := range a.Low {
		if l.Module.Path == path {
			return l
		}
	}
	return nil
}

func hostMat(rows, cols int) kernels.Mat {
	return kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
}

// transpose writes src, turned around, to dst.
func transpose(dst, src kernels.Mat) {
	for i := range src.Rows {
		for j, v := range src.RowF32(i) {
			dst.RowF32(j)[i] = v
		}
	}
}
