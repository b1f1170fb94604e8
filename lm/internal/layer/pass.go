package layer

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// Setup is what all passes of a model share. It is made by [NewSetup].
type Setup struct {
	Config    *arch.Config
	Device    kernels.Device
	Precision kernels.Precision
	Deltas    int  // attached deltas; changed only while no pass runs
	KVBytes   bool // keys and values in 8 bits; see kvbytes.go. On devices that are host memory

	ops        *kernels.Ops
	host       bool
	threads    int
	activation kernels.Activation
	blocks     []*Block
	plain      [slots]int
	rope       tables
}

// activations are the kernels' names of the functions.
var activations = map[arch.Activation]kernels.Activation{
	arch.SiLU: kernels.SiLU, arch.GELU: kernels.GELU, arch.GELUTanh: kernels.GELUTanh, arch.ReLU: kernels.ReLU,
}

// NewSetup prepares passes over blocks whose parameters are in their places.
func NewSetup(c *arch.Config, dev kernels.Device, precision kernels.Precision, blocks []*Block) *Setup {
	// Once: a device reads its memory figures anew at every call, on the CPU from files.
	info := dev.Info()
	s := &Setup{
		Config: c, Device: dev, Precision: precision, ops: dev.Ops(), host: info.Host, threads: info.Threads,
		activation: activations[c.Activation], blocks: blocks, rope: tables{byKind: map[tableKind]*ropeTable{}},
	}
	s.plain = s.plainWidths(blocks)
	return s
}

// Attached counts a delta that was attached (1) or detached (-1).
func (s *Setup) Attached(by int) {
	s.Deltas += by
	s.plain = s.plainWidths(s.blocks)
}

// Free gives back what passes have shared.
func (s *Setup) Free() { s.rope.free() }

// Pass is one run over some rows. It is made by [Setup.Begin].
type Pass struct {
	*Setup
	// Input gets what a matrix multiplies; nil: nobody asks.
	Input func(l *Linear, x kernels.Mat)
	// Expert gets what an expert gives for the tokens that are routed to it, rows ids of the input, and the weights
	// with which it is added; nil: nobody asks.
	Expert func(b *Block, expert int, y kernels.Mat, ids []int32, weights []float32)
	// Route says where the tokens of a mixture go; nil: where the configuration sends them. Passes that are recorded
	// for a backward one have none.
	Route func(b *Block) Routing
	// Company says which products the rows go through; not of passes that are recorded.
	Company Company
	// Overlays act on some rows each, in ascending order; not in passes that are recorded.
	Overlays []Overlay
	// Past is what came before each of the sequences; nil: nothing, and keys and values are not kept.
	Past []Past
	// Grads are the wanted gradients, in the layout of the weights. [Pass.Backward] adds to those with one row
	// and overwrites the others.
	Grads map[*Weight]kernels.Mat
	// From is the first row that [Pass.Backward] computes, in a pass of one sequence in which no parameter's
	// gradient is wanted. Those of the rows before it are then undefined.
	From int

	scratch   *Scratch
	t         *Tape
	from      int // rows of every matrix that are left out now; see From
	replay    bool
	peeks     bool // nobody wants the block's output
	lens      []int
	rows      int
	rotations [][]rotation // of each of the configuration's rotations
	own       []*ropeTable // tables of this pass alone
	chosen    []int32      // the rows that linears see, ascending; nil: all
}

// Begin prepares a pass over sequences of the given lengths, with what came before each of them; nil: nothing did.
func (s *Setup) Begin(sc *Scratch, lens []int, past []Past) (*Pass, error) {
	p := &Pass{Setup: s, Past: past, scratch: sc, t: &sc.plain, lens: lens}
	for _, n := range lens {
		p.rows += n
	}
	if err := s.reservePlain(&sc.plain, p.rows); err != nil {
		return nil, err
	}

	if err := p.positions(); err != nil {
		p.End()
		return nil, err
	}

	return p, nil
}

// Norms prepares a pass that only norms rows outside of the blocks.
func (s *Setup) Norms() *Pass { return &Pass{Setup: s} }

// End gives back what belongs to the pass alone.
func (p *Pass) End() {
	for _, t := range p.own {
		t.free()
	}
	p.own = nil
}

// Spare is a matrix of the pass's memory that no block uses between two runs: at most as wide as the stream or
// the token table.
func (p *Pass) Spare(rows, cols int) kernels.Mat { return p.mat(sNorm, rows, cols) }

// mat is a matrix of the tape; its contents are undefined until they are written.
func (p *Pass) mat(slot, rows, cols int) kernels.Mat {
	t := p.t
	if t.again[slot] {
		t = &p.scratch.plain
	}

	m := t.mat(slot, rows, cols)
	m.Off += p.from * cols
	return m
}

func (t *Tape) mat(slot, rows, cols int) kernels.Mat {
	return kernels.Mat{Buf: t.arena, Off: t.base[slot], Rows: rows, Cols: cols, Stride: cols}
}

// stream is a recorded matrix as wide as the stream.
func (p *Pass) stream(slot int) kernels.Mat { return p.mat(slot, p.rows, p.Config.Hidden) }

// work is a matrix of the backward pass.
func (p *Pass) work(slot, rows, cols int) kernels.Mat { return p.scratch.grads.mat(slot, rows, cols) }

// keep copies a matrix to the tape if that keeps everything.
func (p *Pass) keep(slot int, x kernels.Mat) {
	if !p.t.full {
		return
	}
	if to := p.mat(slot, x.Rows, x.Cols); to.Buf != x.Buf || to.Off != x.Off {
		p.ops.Convert(to, x)
	}
}

// grad is where the gradient of a weight goes; absent: nobody asks.
func (p *Pass) grad(w *Weight) kernels.Mat {
	if w == nil {
		return kernels.Mat{}
	}
	return p.Grads[w]
}

// onHost runs f over the rows of some matrices of the same height in host memory; what f changes in the first
// reaches the device.
func (p *Pass) onHost(f func(rows [][]float32), x ...kernels.Mat) error {
	rows := make([][]float32, len(x))
	if p.host {
		for i := range x[0].Rows {
			for k := range x {
				rows[k] = x[k].RowF32(i)
			}
			f(rows)
		}

		x[0].Buf.Changed()
		return nil
	}

	raw := make([][]byte, len(x))
	for k := range x {
		rows[k] = make([]float32, x[k].Cols)
		raw[k] = kernels.WrapF32(rows[k]).Bytes()
	}

	// f is Go code, so rows come to the host; what this is for has a few numbers in each.
	for i := range x[0].Rows {
		for k := range x {
			if err := p.Device.Download(raw[k], x[k].Buf, x[k].Off+i*x[k].Stride); err != nil {
				return err
			}
		}

		f(rows)
		if err := p.Device.Upload(x[0].Buf, x[0].Off+i*x[0].Stride, raw[0]); err != nil {
			return err
		}
	}

	return nil
}

// Zero writes zeros to a matrix.
func (s *Setup) Zero(x kernels.Mat) error {
	if s.host {
		for i := range x.Rows {
			clear(x.RowF32(i))
		}
		x.Buf.Changed()
		return nil
	}

	zeros := make([]byte, 4*x.Cols)
	for i := range x.Rows {
		if err := s.Device.Upload(x.Buf, x.Off+i*x.Stride, zeros); err != nil {
			return err
		}
	}

	return nil
}
