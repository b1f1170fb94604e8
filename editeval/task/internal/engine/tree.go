package engine

import (
	"slices"

	"github.com/modelcompress/compress/lm"
)

// job is a sequence to score and where its answer goes.
type job struct {
	Sequence
	index int
	lcp   int // tokens that it begins with as the job before it in the plan does
}

// start is the first position that is scored.
func (j *job) start() int { return len(j.IDs) - len(j.Target) }

// common counts the tokens that two runs begin with.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// batch is sequences that run in one pass.
type batch struct {
	jobs   []job
	shared int // tokens that all begin with, which the session holds
}

// minShared is how many tokens must be shared so that a pass of their own pays.
const minShared = 32

// plan sorts sequences so that those with a common beginning are neighbours, and cuts them into passes of about
// budget tokens, what is shared inside of a pass counted once. The plan depends on the sequences and the budget
// alone.
func plan(jobs []job, budget int, share bool) []batch {
	slices.SortStableFunc(jobs, func(a, b job) int { return slices.Compare(a.IDs, b.IDs) })
	for i := 1; i < len(jobs); i++ {
		jobs[i].lcp = common(jobs[i-1].IDs, jobs[i].IDs)
	}

	var out []batch
	for len(jobs) > 0 {
		n, shared := fill(jobs, budget, share)
		out = append(out, batch{jobs[:n:n], shared})
		jobs = jobs[n:]
	}

	settle(out)
	return out
}

// settle decides what the session keeps: of what a pass shares, as much as a neighbour has too. The rest runs
// inside of the pass.
func settle(list []batch) {
	before := 0 // what a pass has in common with the one before
	for i := range list {
		b, after := &list[i], 0
		if i+1 < len(list) {
			after = list[i+1].jobs[0].lcp
		}
		b.shared = rooted(min(b.shared, max(before, after)))
		before = after
	}
}

// fill finds how many of the next sequences go into a pass, and what they share.
func fill(jobs []job, budget int, share bool) (n, shared int) {
	shared = jobs[0].start()
	tokens := len(jobs[0].IDs) // of the tree, from its root on
	for n = 1; n < len(jobs); n++ {
		next := &jobs[n]
		lcp := 0
		if share {
			lcp = next.lcp
		}

		root := min(shared, lcp, next.start())
		total := tokens + len(next.IDs) - lcp
		if total-rooted(root) > budget {
			break
		}

		tokens, shared = total, root
	}

	if !share {
		shared = 0
	}

	return n, shared
}

// rooted is what a session keeps of a shared beginning.
func rooted(n int) int {
	if n < minShared {
		return 0
	}
	return n
}

// tree is a batch as branches, with the row of every scored position.
type tree struct {
	branches []lm.Branch
	rows     [][]int32 // per job, aligned with its targets
	starts   []int     // first row of each branch
	total    int
	share    bool
}

// grow makes the branches of a batch.
func grow(b batch, share bool) *tree {
	t := &tree{rows: make([][]int32, len(b.jobs)), share: share}
	if !share {
		for i := range b.jobs {
			t.add(b.jobs[i:i+1], i, nil, b.shared)
		}
		return t
	}
	t.add(b.jobs, 0, nil, b.shared)
	return t
}

// link is a branch above, and the depth at which it starts.
type link struct{ branch, depth int }

// add makes the branches of jobs (the first of which has number first) that share everything up to a depth,
// below a chain of others.
func (t *tree) add(jobs []job, first int, chain []link, depth int) {
	end := len(jobs[0].IDs)
	for i := 1; i < len(jobs); i++ {
		end = min(end, jobs[i].lcp)
	}

	if end > depth {
		parent := -1
		if len(chain) > 0 {
			parent = chain[len(chain)-1].branch
		}

		chain = append(chain[:len(chain):len(chain)], link{len(t.branches), depth})
		t.branches = append(t.branches, lm.Branch{Parent: parent, IDs: jobs[0].IDs[depth:end]})
		t.starts = append(t.starts, t.total)
		t.total += end - depth
	}

	for i := 0; i < len(jobs); {
		if len(jobs[i].IDs) == end {
			t.rows[first+i] = t.rowsOf(&jobs[i], chain)
			i++
			continue
		}

		k := i + 1
		for k < len(jobs) && jobs[k].lcp > end {
			k++
		}

		t.add(jobs[i:k], first+i, chain, end)
		i = k
	}
}

// rowsOf lists the rows of a job's scored positions.
func (t *tree) rowsOf(j *job, chain []link) []int32 {
	rows := make([]int32, 0, len(j.Target))
	at := 0
	for p := j.start(); p < len(j.IDs); p++ {
		for at+1 < len(chain) && chain[at+1].depth <= p {
			at++
		}
		rows = append(rows, int32(t.starts[chain[at].branch]+p-chain[at].depth))
	}
	return rows
}
