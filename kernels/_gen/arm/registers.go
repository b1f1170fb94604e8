package main

import (
	"fmt"
	"slices"
)

// registers chooses vector registers for the values of a function: those that are alive at the same time get different
// ones (Chaitin, "Register allocation and spilling via graph coloring", 1982), and a copy's two sides the same one where
// they can (Briggs, Cooper and Torczon, 1994). What one instruction loads into registers that follow each other gets its
// registers first. There are no spills: what does not fit 32 registers is a mistake of the
// description.
type registers struct {
	code   []ins
	starts []int   // of blocks
	next   [][]int // blocks that may follow a block
	out    []set   // values alive after a block
}

type set map[int]bool

// allocate rewrites code with chosen registers, without what computes nothing that is used.
func allocate(code []ins) ([]ins, error) {
	r := &registers{code: code}
	for r.prune() {
	}

	for _, aggressive := range []bool{true, false} {
		if colours, same, ok := r.colour(aggressive); ok {
			return r.rewrite(colours, same), nil
		}
	}
	return nil, fmt.Errorf("more than 32 values are alive at once")
}

// blocks cuts the code at labels and jumps.
func (r *registers) blocks() {
	r.starts, r.next = nil, nil
	at := map[string]int{}
	fresh := true
	for i := range r.code {
		n := &r.code[i]
		if fresh || n.label != "" {
			r.starts = append(r.starts, i)
			fresh = false
		}
		if n.label != "" {
			at[n.label] = len(r.starts) - 1
		}
		fresh = n.jump != "" || n.always
	}

	for b := range r.starts {
		last := r.code[r.end(b)-1]
		var next []int
		if last.jump != "" {
			to, ok := at[last.jump]
			if !ok {
				panic("no label " + last.jump)
			}
			next = append(next, to)
		}
		if !last.always && b+1 < len(r.starts) {
			next = append(next, b+1)
		}
		r.next = append(r.next, next)
	}
}

func (r *registers) end(b int) int {
	if b+1 < len(r.starts) {
		return r.starts[b+1]
	}
	return len(r.code)
}

// alive computes what is alive after every block.
func (r *registers) alive() {
	r.blocks()
	in := make([]set, len(r.starts))
	r.out = make([]set, len(r.starts))
	for b := range r.starts {
		in[b], r.out[b] = set{}, set{}
	}

	for changed := true; changed; {
		changed = false
		for b := len(r.starts) - 1; b >= 0; b-- {
			for _, s := range r.next[b] {
				for v := range in[s] {
					r.out[b][v] = true
				}
			}

			live := clone(r.out[b])
			for i := r.end(b) - 1; i >= r.starts[b]; i-- {
				step(live, &r.code[i])
			}
			if len(live) != len(in[b]) {
				in[b] = live
				changed = true
			}
		}
	}
	for v := range in[0] {
		panic(fmt.Sprintf("value %d is read before it is written", v))
	}
}

func clone(s set) set {
	c := make(set, len(s))
	for v := range s {
		c[v] = true
	}
	return c
}

// step moves from after an instruction to before it.
func step(live set, n *ins) {
	defs, uses := n.split()
	for _, d := range defs {
		delete(live, d)
	}
	for _, u := range uses {
		live[u] = true
	}
}

// prune removes instructions whose results nobody reads and reports whether there were any.
func (r *registers) prune() bool {
	r.alive()
	var kept []ins
	for b := range r.starts {
		live := clone(r.out[b])
		var rest []ins
		for i := r.end(b) - 1; i >= r.starts[b]; i-- {
			n := r.code[i]
			defs, _ := n.split()
			used := n.lasting()
			for _, d := range defs {
				used = used || live[d]
			}
			if used {
				rest = append(rest, n)
				step(live, &n)
			}
		}
		slices.Reverse(rest)
		kept = append(kept, rest...)
	}

	fewer := len(kept) < len(r.code)
	r.code = kept
	return fewer
}

// graph says which values are alive together.
type graph struct {
	near map[int]set
	same map[int]int // values that were given one register
}

func (g *graph) of(v int) int {
	for {
		w, ok := g.same[v]
		if !ok {
			return v
		}
		v = w
	}
}

func (g *graph) join(a, b int) {
	if a == b {
		return
	}
	if g.near[a] == nil {
		g.near[a] = set{}
	}
	if g.near[b] == nil {
		g.near[b] = set{}
	}
	g.near[a][b], g.near[b][a] = true, true
}

func isMove(n *ins) bool { return n.op == "mov.16b" }

// interference builds the graph.
func (r *registers) interference() *graph {
	r.alive()
	g := &graph{near: map[int]set{}, same: map[int]int{}}
	for b := range r.starts {
		live := clone(r.out[b])
		for i := r.end(b) - 1; i >= r.starts[b]; i-- {
			n := &r.code[i]
			defs, uses := n.split()
			for _, d := range defs {
				if g.near[d] == nil {
					g.near[d] = set{}
				}
				for v := range live {
					if !isMove(n) || v != uses[0] {
						g.join(d, v)
					}
				}
				for _, e := range defs {
					g.join(d, e)
				}
			}
			step(live, n)
		}
	}
	return g
}

// merge gives the two sides of copies one register where they are not alive together. If not aggressive, only where that
// leaves the graph as easy to colour as before.
func (r *registers) merge(g *graph, aggressive bool) {
	for changed := true; changed; {
		changed = false
		for i := range r.code {
			n := &r.code[i]
			if !isMove(n) {
				continue
			}
			a, b := g.of(n.v[0]), g.of(n.v[1])
			if a == b || g.near[a][b] || !aggressive && !g.easy(a, b) {
				continue
			}
			g.same[b] = a
			for v := range g.near[b] {
				g.join(a, v)
				delete(g.near[v], b)
			}
			delete(g.near, b)
			changed = true
		}
	}
}

// easy is Briggs' criterion: the merged value has fewer than 32 neighbours that have 32 or more.
func (g *graph) easy(a, b int) bool {
	hard := 0
	both := clone(g.near[a])
	for v := range g.near[b] {
		both[v] = true
	}
	for v := range both {
		d := len(g.near[v])
		if g.near[v][a] && g.near[v][b] {
			d--
		}
		if d >= 32 {
			hard++
		}
	}
	return hard < 32
}

// colour returns a register for every value.
func (r *registers) colour(aggressive bool) (colours map[int]int, g *graph, ok bool) {
	g = r.interference()
	r.merge(g, aggressive)

	colours = map[int]int{}
	if !r.runs(g, colours) {
		return nil, nil, false
	}
	var nodes []int
	degree := map[int]int{}
	for v := range g.near {
		if _, done := colours[v]; done {
			continue
		}
		nodes = append(nodes, v)
		degree[v] = len(g.near[v])
	}
	slices.Sort(nodes)

	var stack []int
	gone := set{}
	for len(stack) < len(nodes) {
		best := -1
		for _, v := range nodes { // the least connected one first
			if !gone[v] && (best < 0 || degree[v] < degree[best]) {
				best = v
			}
		}
		gone[best] = true
		stack = append(stack, best)
		for v := range g.near[best] {
			degree[v]--
		}
	}

	for _, v := range slices.Backward(stack) {
		taken := g.taken(v, colours)
		c := slices.Index(taken[:], false)
		if c < 0 {
			return nil, nil, false
		}
		colours[v] = c
	}
	return colours, g, true
}

// taken says which registers the values have that are alive together with v.
func (g *graph) taken(v int, colours map[int]int) (taken [32]bool) {
	for w := range g.near[v] {
		if c, done := colours[w]; done {
			taken[c] = true
		}
	}
	return taken
}

// runs gives values that one instruction loads the first registers in a row that are free for all of them.
func (r *registers) runs(g *graph, colours map[int]int) bool {
	for i := range r.code {
		n := &r.code[i]
		if !n.follows(1) {
			continue
		}
		first := 0
		for k := 0; k < len(n.v); k++ {
			if first+k >= 32 {
				return false
			}
			if g.taken(g.of(n.v[k]), colours)[first+k] {
				first, k = first+1, -1
			}
		}
		for k, v := range n.v {
			colours[g.of(v)] = first + k
		}
	}
	return true
}

// rewrite replaces values by registers and drops copies that have become empty.
func (r *registers) rewrite(colours map[int]int, g *graph) []ins {
	var out []ins
	for _, n := range r.code {
		v := make([]int, len(n.v))
		for i := range v {
			v[i] = colours[g.of(n.v[i])]
		}
		n.v = v
		if isMove(&n) && v[0] == v[1] {
			continue
		}
		out = append(out, n)
	}
	return out
}
