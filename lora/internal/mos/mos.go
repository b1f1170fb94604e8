// Package mos holds the parameters of Mixture of Shards (Wang et al., ICLR 2025, arXiv 2410.00938): per kind of
// projection one pool of shards for A and one for B, which all blocks share, and for every block the lists that
// say which shards make up its factors.
//
// With L blocks, equivalent rank e, rank r, l shards per vector and private rank p, a pool has n = e·L·l rows.
// Rows 0 … (e-p)·L·l-1 are public; then block k owns the p·l rows from (e-p)·L·l + k·p·l on. Row j of a block's
// factor is the l pool rows of its list, side by side; the last p rows are the private ones. A shard of A is
// in/l wide, one of B out/l. The number of parameters, e·L·(in+out), does not depend on r, l and p.
//
// # Why
//
// LoRA of rank e gives each of L blocks e vectors of its own. With the same number of parameters, sharing lets every
// block use r > e vectors, out of a pool of e·L. Blocks that all use the same vectors in the same order would have the
// same adapter, so the method breaks the symmetry in four ways, none of which costs a parameter: each block gets a
// random subset (the lists); A's list is not B's, so that pairs differ (dissociation); a vector is joined of l shards
// (more combinations); and p vectors of a block are nobody else's (privatisation).
//
// # How
//
// Lists are sampled once, are stored with the adapter and never change. A block's factors are assembled by copying
// shards to rows, an ordinary low-rank product follows, ΔW = scale·B·A, and gradients of the factors are added back to
// the shards they came from (scatter): d pool[i] = Σ over all places where a list holds i. A shard is at most once in
// one list but in those of several blocks, whose gradients add up in the order of the backward pass.
package mos

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Geometry is the sizes of the pools of one kind of projection.
type Geometry struct {
	Blocks     int // L: modules that share the pools
	Equivalent int // e
	Rank       int // r
	Shards     int // l
	Private    int // p
	In, Out    int
	Pure       bool // every block uses the whole pool
}

// maxRows bounds a pool, whose size comes from files.
const maxRows = 1 << 26

// Check returns every fault of the sizes, each with its numbers.
func (g Geometry) Check() error {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{adapter.ErrConfig}, args...)...))
	}

	if g.Blocks < 1 || g.Equivalent < 1 || g.Rank < 1 || g.Shards < 1 || g.Private < 0 || g.In < 1 || g.Out < 1 {
		bad("blocks %d, equivalent rank %d, rank %d, shards %d, channels %d and %d must be at least 1, private rank "+
			"%d at least 0",
			g.Blocks, g.Equivalent, g.Rank, g.Shards, g.In, g.Out, g.Private)
		return errors.Join(faults...)
	}

	if g.Equivalent > maxRows/g.Blocks/g.Shards {
		bad("equivalent rank %d × blocks %d × shards %d is more than %d pool rows", g.Equivalent, g.Blocks, g.Shards,
			maxRows)
		return errors.Join(faults...)
	}

	if g.In%g.Shards != 0 || g.Out%g.Shards != 0 {
		bad("%d shards per vector do not divide %d inputs and %d outputs", g.Shards, g.In, g.Out)
	}

	if g.Pure {
		if g.Private != 0 || g.Rank != g.Equivalent*g.Blocks {
			bad("pure sharing uses every vector: rank %d must be equivalent rank %d × blocks %d = %d, and private "+
				"rank %d must be 0",
				g.Rank, g.Equivalent, g.Blocks, g.Equivalent*g.Blocks, g.Private)
		}
		return errors.Join(faults...)
	}

	if g.Private > g.Equivalent {
		bad("private rank %d is larger than the equivalent rank %d", g.Private, g.Equivalent)
	}
	if g.Private > g.Rank {
		bad("private rank %d is larger than the rank %d", g.Private, g.Rank)
	}

	if public := (g.Equivalent - g.Private) * g.Blocks; g.Private <= g.Equivalent && g.Rank-g.Private > public {
		bad("rank %d - private rank %d = %d public vectors, but the pool has only (equivalent rank %d - %d) × "+
			"%d blocks = %d",
			g.Rank, g.Private, g.Rank-g.Private, g.Equivalent, g.Private, g.Blocks, public)
	}

	return errors.Join(faults...)
}

// Rows is n, the rows of each pool.
func (g Geometry) Rows() int { return g.Equivalent * g.Blocks * g.Shards }

// Public is the number of public rows.
func (g Geometry) Public() int { return (g.Equivalent - g.Private) * g.Blocks * g.Shards }

// List is the length of one list.
func (g Geometry) List() int { return g.Rank * g.Shards }

// Pool is the shards of one kind of projection with the lists of the blocks.
type Pool struct {
	Geometry
	Type   string
	A, B   *adapter.Param // [n, in/l], [n, out/l]
	IndexA []int32        // [L, r, l]
	IndexB []int32
}

// NewPool makes pools of zeros without lists. The geometry must be sound.
func NewPool(kind string, g Geometry) *Pool {
	return &Pool{
		Geometry: g, Type: kind,
		A: adapter.NewParam("mos."+kind+".pool_A", g.Rows(), g.In/g.Shards),
		B: adapter.NewParam("mos."+kind+".pool_B", g.Rows(), g.Out/g.Shards),
	}
}

// Check looks whether lists are possible ones: right length, rows that exist, none twice in one list, and
// private rows only where they belong.
func (p *Pool) Check() error {
	return cmp.Or(p.checkLists("index_A", p.IndexA), p.checkLists("index_B", p.IndexB))
}

func (p *Pool) checkLists(side string, index []int32) error {
	if len(index) != p.Blocks*p.List() {
		return fmt.Errorf("%w: mos.%s.%s has %d entries, not %d blocks × rank %d × %d shards", adapter.ErrFile, p.Type,
			side, len(index), p.Blocks, p.Rank, p.Shards)
	}

	for k := range p.Blocks {
		if err := p.checkList(k, index[k*p.List():(k+1)*p.List()]); err != nil {
			return fmt.Errorf("%w: mos.%s.%s: block %d: %w", adapter.ErrFile, p.Type, side, k, err)
		}
	}

	return nil
}

func (p *Pool) checkList(k int, list []int32) error {
	seen := make(map[int32]bool, len(list))
	first, own := p.Public()+k*p.Private*p.Shards, p.Private*p.Shards
	for i, row := range list {
		switch tail := i >= len(list)-own; {
		case row < 0 || int(row) >= p.Rows():
			return fmt.Errorf("row %d of a pool of %d", row, p.Rows())
		case seen[row]:
			return fmt.Errorf("row %d twice in one list", row)
		case tail && (int(row) < first || int(row) >= first+own):
			return fmt.Errorf("row %d among the private ones, which are %d to %d", row, first, first+own-1)
		case !tail && int(row) >= p.Public():
			return fmt.Errorf("row %d is private, but stands among the public ones", row)
		}

		seen[row] = true
	}

	return nil
}

// Dead counts the public rows of A and of B that no list uses: they are trained by nobody and stay as they are.
func (p *Pool) Dead() (a, b int) { return p.dead(p.IndexA), p.dead(p.IndexB) }

func (p *Pool) dead(index []int32) int {
	used := make([]bool, p.Rows())
	for _, row := range index {
		used[row] = true
	}

	n := 0
	for _, u := range used[:p.Public()] {
		if !u {
			n++
		}
	}

	return n
}

// Part is the factors of one block. It implements [adapter.Factors].
type Part struct {
	*Pool
	Block int // the list that counts
}

// Assemble implements [adapter.Factors].
func (p Part) Assemble(a, bt kernels.Mat) {
	assemble(a, p.A.Value, p.list(p.IndexA))
	assemble(bt, p.B.Value, p.list(p.IndexB))
}

// Scatter implements [adapter.Factors].
func (p Part) Scatter(da, dbt kernels.Mat) {
	scatter(p.A.Grad, da, p.list(p.IndexA))
	scatter(p.B.Grad, dbt, p.list(p.IndexB))
}

// Parameters implements [adapter.Factors].
func (p Part) Parameters() []*adapter.Param { return []*adapter.Param{p.A, p.B} }

// Lists are the pools' rows that A and B are joined of.
func (p Part) Lists() (a, b []int32) { return p.list(p.IndexA), p.list(p.IndexB) }

func (p Part) list(index []int32) []int32 { return index[p.Block*p.List() : (p.Block+1)*p.List()] }

// assemble joins the shards of a list to rows.
func assemble(dst, pool kernels.Mat, list []int32) {
	at := 0
	for j := range dst.Rows {
		for row := dst.RowF32(j); len(row) > 0; row = row[pool.Cols:] {
			copy(row[:pool.Cols], pool.RowF32(int(list[at])))
			at++
		}
	}
}

// scatter adds rows to the shards that they were joined of, in the order of the list.
func scatter(pool, src kernels.Mat, list []int32) {
	at := 0
	for j := range src.Rows {
		for row := src.RowF32(j); len(row) > 0; row = row[pool.Cols:] {
			to := pool.RowF32(int(list[at]))
			for i, v := range row[:pool.Cols] {
				to[i] += v
			}
			at++
		}
	}
}

// Pools lists the different pools of an adapter.
func Pools(a *adapter.Adapter) []*Pool {
	var list []*Pool
	for _, l := range a.Low {
		if p, ok := l.Factors.(Part); ok && !slices.Contains(list, p.Pool) {
			list = append(list, p.Pool)
		}
	}
	return list
}
