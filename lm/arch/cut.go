package arch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
)

// ErrCut is the error for what cannot be taken out of a model that has to stay one of its architecture.
var ErrCut = failure.Misuse("cannot be cut", "")

// Cut says what stays of a model that becomes smaller and remains an ordinary model of its architecture: things are
// named by the numbers that they have in it, ascending; nil keeps all of a kind. What is chosen in every block by
// itself is listed by the block's number, for all blocks or for those that stay, as many in each: no runtime has other
// sizes in every block.
type Cut struct {
	Layers []int // blocks
	Hidden []int // channels of the residual stream
	Words  []int // rows of the token table and of the head

	Inner       [][]int   // neurons of a block's MLP, not of its experts
	SharedInner [][]int   // of the expert that every token visits
	Experts     [][]int   // of a block's mixture
	ExpertInner [][][]int // neurons of an expert, by block and expert

	// Heads are a block's query heads, KVHeads those of its keys and values. Query heads that share keys and values
	// stay together: each of KVHeads keeps as many of Heads, and the others none.
	Heads, KVHeads [][]int
}

// Piece is a tensor of the smaller model: what stays of one of the model's parameters.
type Piece struct {
	Param         // as it is in the model
	To    string  // its name in the smaller model
	Keep  [][]int // for each dimension what stays, ascending; nil: all
	Size  []int64 // its shape
}

// of gives an entry of a list by block; nil where there is none.
func of[T any](list [][]T, block int) []T {
	if block < 0 || block >= len(list) {
		return nil
	}
	return list[block]
}

// Blocks lists the blocks that stay.
func (k *Cut) Blocks(c *Config) []int {
	if k.Layers != nil {
		return k.Layers
	}

	return upTo(c.Layers)
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// Check refuses what is no part of the model, and what the architecture has no form for. The errors wrap [ErrCut].
func (k *Cut) Check(c *Config) error {
	whole := []struct {
		what string
		list []int
		n    int
	}{{"layers", k.Layers, c.Layers}, {"hidden channels", k.Hidden, c.Hidden}, {"words", k.Words, c.Vocab}}
	for _, w := range whole {
		if err := ascending(w.what, w.list, w.n); err != nil {
			return err
		}
	}

	if k.Hidden != nil && c.EmbedDim != c.Hidden {
		return fmt.Errorf("hidden channels: %w: the token table of this %s has a width of its own, %d",
			ErrCut, c.ModelType, c.EmbedDim)
	}
	if k.Heads != nil && c.KVRank > 0 && k.KVHeads == nil {
		return fmt.Errorf("heads: %w: with latent attention, heads and their keys and values go together", ErrCut)
	}

	inBlocks := []struct {
		what string
		list [][]int
		n    int
		has  func(l int) bool
	}{
		{"neurons", k.Inner, c.Inner, func(l int) bool { return !c.Mixture[l] }},
		{"shared neurons", k.SharedInner, c.SharedInner, func(l int) bool { return c.Mixture[l] }},
		{"experts", k.Experts, c.Experts, func(l int) bool { return c.Mixture[l] }},
		{"heads", k.Heads, c.Heads, func(int) bool { return true }},
		{"key/value heads", k.KVHeads, c.KVHeads, func(int) bool { return true }},
	}
	for _, b := range inBlocks {
		if err := k.checkBlocks(c, b.what, b.list, b.n, b.has); err != nil {
			return err
		}
	}

	for _, check := range []func(*Config) error{k.checkExpertInner, k.checkHeads, k.checkGroups} {
		if err := check(c); err != nil {
			return err
		}
	}

	return nil
}

// checkBlocks looks at a list by block: as many stay in each block that has any.
func (k *Cut) checkBlocks(c *Config, what string, list [][]int, n int, has func(l int) bool) error {
	if list == nil {
		return nil
	}

	first := -1
	for _, l := range k.Blocks(c) {
		if !has(l) {
			continue
		}
		if of(list, l) == nil {
			return fmt.Errorf("%s: %w: nothing is said of block %d", what, ErrCut, l)
		}
		if err := ascending(fmt.Sprintf("%s of block %d", what, l), list[l], n); err != nil {
			return err
		}

		switch {
		case first < 0:
			first = l
		case len(list[l]) != len(list[first]):
			return fmt.Errorf("%s: %w: %d stay in block %d, %d in block %d, and runtimes know one size for all",
				what, ErrCut, len(list[first]), first, len(list[l]), l)
		}
	}

	return nil
}

func (k *Cut) checkExpertInner(c *Config) error {
	if k.ExpertInner == nil {
		return nil
	}

	size := -1
	for _, l := range k.Blocks(c) {
		if !c.Mixture[l] {
			continue
		}

		for _, e := range k.experts(c, l) {
			list := of(of(k.ExpertInner, l), e)
			what := fmt.Sprintf("neurons of expert %d of block %d", e, l)
			if list == nil {
				return fmt.Errorf("%s: %w: nothing is said of them", what, ErrCut)
			}
			if err := ascending(what, list, c.ExpertInner); err != nil {
				return err
			}

			if size < 0 {
				size = len(list)
			}
			if len(list) != size {
				return fmt.Errorf("%s: %w: %d stay, elsewhere %d", what, ErrCut, len(list), size)
			}
		}
	}

	return nil
}

// checkHeads: each key/value head that stays keeps as many query heads, and no query head stays without.
func (k *Cut) checkHeads(c *Config) error {
	if k.Heads == nil && k.KVHeads == nil {
		return nil
	}

	each := c.Heads / c.KVHeads
	for _, l := range k.Blocks(c) {
		queries, values := k.heads(c, l)
		count := map[int]int{}
		for _, h := range queries {
			count[h/each]++
		}

		for _, kv := range values {
			if n := count[kv]; n*len(values) != len(queries) {
				return fmt.Errorf("heads of block %d: %w: key/value head %d keeps %d of %d query heads, "+
					"%d of %d would make all alike", l, ErrCut, kv, n, each, len(queries)/len(values), each)
			}
		}
	}

	return nil
}

// heads gives the query heads and the key/value heads that stay in a block. Where only one kind is chosen, the
// other follows.
func (k *Cut) heads(c *Config, l int) (queries, values []int) {
	each := c.Heads / c.KVHeads
	queries, values = of(k.Heads, l), of(k.KVHeads, l)
	switch {
	case queries == nil && values == nil:
		return upTo(c.Heads), upTo(c.KVHeads)
	case queries == nil:
		for _, v := range values {
			for i := range each {
				queries = append(queries, v*each+i)
			}
		}
	case values == nil:
		for _, h := range queries {
			if v := h / each; len(values) == 0 || values[len(values)-1] != v {
				values = append(values, v)
			}
		}
	}

	return queries, values
}

// experts lists those that stay in a block.
func (k *Cut) experts(c *Config, l int) []int {
	if list := of(k.Experts, l); list != nil {
		return list
	}
	return upTo(c.Experts)
}

// checkGroups: where a router chooses groups of experts first, every group keeps as many.
func (k *Cut) checkGroups(c *Config) error {
	if k.Experts == nil || c.Groups < 2 {
		return nil
	}

	each := c.Experts / c.Groups
	for _, l := range k.Blocks(c) {
		if !c.Mixture[l] {
			continue
		}

		count := make([]int, c.Groups)
		for _, e := range k.Experts[l] {
			count[e/each]++
		}
		if slices.Min(count) != slices.Max(count) {
			return fmt.Errorf("experts of block %d: %w: its router has %d groups, which would keep %v experts",
				l, ErrCut, c.Groups, count)
		}
	}

	return nil
}

// ascending refuses a list that is empty, out of order or out of range.
func ascending(what string, list []int, n int) error {
	if list == nil {
		return nil
	}
	if len(list) == 0 {
		return fmt.Errorf("%s: %w: none of %d stays", what, ErrCut, n)
	}

	for i, x := range list {
		switch {
		case x < 0 || x >= n:
			return fmt.Errorf("%s: %w: there is no %d among %d", what, ErrCut, x, n)
		case i > 0 && list[i-1] >= x:
			return fmt.Errorf("%s: %w: %d stands behind %d", what, ErrCut, x, list[i-1])
		}
	}

	return nil
}

// Pieces lists the tensors of the smaller model, in the order of the layout; the model's buffers and the blocks behind
// its last one are not among them. The cut must have passed [Cut.Check].
func (k *Cut) Pieces(c *Config, layout *Layout) []Piece {
	number := map[int]int{-1: -1}
	for i, l := range k.Blocks(c) {
		number[l] = i
	}

	var pieces []Piece
	for _, p := range layout.Params {
		l, stays := number[p.Block]
		if !stays {
			continue
		}

		copied, ok := k.copyNumber(c, &p)
		if !ok {
			continue
		}

		pieces = append(pieces, k.piece(c, p, Expand(p.table.Name, l, copied)))
	}

	// A head that a tied model stores besides has the table's rows.
	for _, name := range layout.Heads {
		i := slices.IndexFunc(layout.Params, func(p Param) bool { return p.Role == Embed })
		p := layout.Params[i]
		p.Name = name
		pieces = append(pieces, k.piece(c, p, name))
	}

	return pieces
}

func (k *Cut) piece(c *Config, p Param, to string) Piece {
	piece := Piece{Param: p, To: strings.TrimPrefix(to, p.prefix), Size: slices.Clone(p.Shape)}
	for i, dim := range p.table.Shape {
		keep := k.Kept(c, dim, p.Block, p.Expert)
		piece.Keep = append(piece.Keep, keep)
		if keep != nil {
			piece.Size[i] = int64(len(keep))
		}
	}

	return piece
}

// copyNumber is the number among its like that an expert's or a head's tensor has in the smaller model; false where
// it does not stay.
func (k *Cut) copyNumber(c *Config, p *Param) (int, bool) {
	stay := []int{0}
	queries, values := k.heads(c, p.Block)
	switch {
	case p.table.PerExpert():
		stay = k.experts(c, p.Block)
	case p.table.PerHead() && p.Role == KNorm:
		stay = values
	case p.table.PerHead():
		stay = queries
	}

	return slices.BinarySearch(stay, p.copied)
}

// Kept lists what stays of a dimension of a block's tensors (-1: of one outside of the blocks) and, in a mixture, of
// an expert's, ascending; nil: all of it.
func (k *Cut) Kept(c *Config, dim string, block, expert int) []int {
	switch dim {
	case "vocab":
		return k.Words
	case "hidden":
		return k.Hidden
	case "embed_dim":
		if c.EmbedDim == c.Hidden {
			return k.Hidden
		}
	case "inner":
		return k.inner(block, expert)
	case "gate_up":
		return halves(k.inner(block, expert), c.Inner, c.Arch.Gate == ClampedGate)
	case "shared_inner":
		return of(k.SharedInner, block)
	case "shared_gate_up":
		return halves(of(k.SharedInner, block), c.SharedInner, false)
	case "experts":
		return of(k.Experts, block)
	case "expert_inner":
		return of(of(k.ExpertInner, block), expert)
	}

	if of(k.Heads, block) == nil && of(k.KVHeads, block) == nil {
		return nil
	}

	return k.keptOfHeads(c, dim, block)
}

// inner lists the neurons that stay of a block's MLP, or of an expert in a family whose experts are as wide as an MLP.
func (k *Cut) inner(block, expert int) []int {
	if expert >= 0 {
		return of(of(k.ExpertInner, block), expert)
	}
	return of(k.Inner, block)
}

// keptOfHeads is Kept for the dimensions that heads make up.
func (k *Cut) keptOfHeads(c *Config, dim string, block int) []int {
	queries, values := k.heads(c, block)
	switch dim {
	case "heads":
		return queries
	case "kv_heads":
		return values
	case "q":
		return runs(queries, c.HeadDim, 0)
	case "kv":
		return runs(values, c.HeadDim, 0)
	case "qk":
		return runs(queries, c.NopeDim+c.RopeDim, 0)
	case "v":
		return runs(queries, c.VDim, 0)
	case "kv_b":
		return runs(queries, c.NopeDim+c.VDim, 0)
	case "qkv":
		return c.keptQKV(queries, values)
	}

	return nil
}

// keptQKV lists the outputs of a fused projection that stay.
func (c *Config) keptQKV(queries, values []int) []int {
	d := c.HeadDim
	each := c.Heads / c.KVHeads
	var keep []int
	switch c.Arch.QKV {
	case HeadBlocks: // a head has keys and values of its own
		keep = runs(queries, 3*d, 0)
	case Groups:
		for _, v := range values {
			base := v * (each + 2)
			for _, h := range queries {
				if h/each == v {
					keep = append(keep, runs([]int{base + h%each}, d, 0)...)
				}
			}
			keep = append(keep, runs([]int{base + each, base + each + 1}, d, 0)...)
		}
	default:
		keep = runs(queries, d, 0)
		keep = append(keep, runs(values, d, c.Heads*d)...)
		keep = append(keep, runs(values, d, (c.Heads+c.KVHeads)*d)...)
	}

	return keep
}

// runs lists the channels of things that have size of them each, behind first.
func runs(things []int, size, first int) []int {
	list := make([]int, 0, len(things)*size)
	for _, t := range things {
		for i := range size {
			list = append(list, first+t*size+i)
		}
	}
	return list
}

// halves lists what stays of a matrix that holds gate and up: one behind the other, or in turns.
func halves(keep []int, n int, alternate bool) []int {
	if keep == nil {
		return nil
	}
	if alternate {
		return runs(keep, 2, 0)
	}

	both := slices.Clone(keep)
	for _, i := range keep {
		both = append(both, n+i)
	}
	return both
}
