package prunecmd

import (
	"cmp"
	"fmt"
	"math"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// blockSteps is into how many steps of progress a block is divided.
const blockSteps = 1000

// The displays of progress of a run, in their order.
const (
	stageBefore     = "perplexity before"
	stageGradients  = "gradients"
	stageAllocation = "allocation"
	stagePruning    = "pruning"
	stageAfter      = "perplexity after"
)

// stages announces what a run consists of, in passes of a token through a block: good enough to say how long
// the stages to come take by the pace of those before them.
func stages(m *lm.Model, o prune.Options, calib, ppl corpus.Windows) []cli.Stage {
	blocks, tokens := float64(m.Blocks()), float64(cli.Tokens(calib))
	var list []cli.Stage

	if len(ppl.IDs) > 0 {
		list = append(list, cli.Stage{Name: stageBefore, Work: float64(m.LossWork(ppl))})
	}

	if o.Needs()&prune.Gradients != 0 && o.Gradients.File == "" {
		const forwardAndBack = 5 // one pass forward; back, the block again and two products
		list = append(list, cli.Stage{Name: stageGradients, Work: forwardAndBack * tokens * blocks})
	}

	if a := o.Allocation.Name; a != "" && a != prune.Uniform {
		work := tokens * blocks
		if a == prune.Search {
			// Offspring on an eighth of the text, a quarter of them on all of it.
			g, n := float64(o.Allocation.Generations), float64(o.Allocation.Offspring)
			work *= 1 + cmp.Or(g, 30)*cmp.Or(n, 8)*(1./8+1./4)
		}
		list = append(list, cli.Stage{Name: stageAllocation, Work: work})
	}

	// A matrix is scored, selected and written in about the time in which so many tokens pass it.
	const selecting = 200
	work := selecting * blocks
	if o.Needs()&^prune.Gradients != 0 && o.Norms == nil {
		work += 2 * tokens * blocks // before and after it is pruned
	}

	if o.Needs()&prune.Regional != 0 {
		const forwardAndBack = 5 // as for gradients
		work += forwardAndBack * tokens * blocks
	}

	if o.Needs()&prune.Hessian != 0 && o.Norms == nil {
		work += cli.HessianWork(m, tokens)
	}

	list = append(list, cli.Stage{Name: stagePruning, Work: work + solving(m, o)})
	if len(ppl.IDs) > 0 {
		list = append(list, cli.Stage{Name: stageAfter, Work: float64(m.LossWork(ppl))})
	}

	return list
}

// memory is about how much a run takes, in bytes.
func memory(m *lm.Model, o prune.Options, calib corpus.Windows) int64 {
	need := cli.PassMemory(m, cli.Tokens(calib), cmp.Or(o.BatchTokens, 8192))
	if o.Needs()&prune.Gradients != 0 && o.Gradients.File == "" && o.Gradients.Keep == "" {
		need += 4 * m.NumParameters()
	}
	if o.Needs()&prune.Hessian != 0 {
		need += cli.HessianMemory(m, o.HessianMemory)
	}
	return need
}

// solving is what swaps and the exact update take, in passes of a token through a block.
func solving(m *lm.Model, o prune.Options) (work float64) {
	if o.Swaps == 0 && o.Update.Name != prune.Exact {
		return 0
	}

	lost := max(o.Sparsity, o.Pattern.Sparsity())
	for l := range m.Blocks() {
		solves, weights := 0.0, 0.0
		for _, lin := range m.Linears(l) {
			in, out := float64(lin.In), float64(lin.Out)
			weights += in * out
			solves += float64(o.Swaps+1) * out * in * in
			if o.Update.Name == prune.Exact {
				// A product in double precision, of smaller matrices, takes several times as long as in single.
				const slower = 4
				solves += slower * out * math.Pow(min(lost, 1-lost)*in, 3) / 6
			}
		}
		work += solves / max(1, weights)
	}
	return work
}

// steps shows the steps of a run: gradients and allocation by themselves, then the walk over the blocks.
func steps(bar *cli.Bars, layers int, o prune.Options) func(prune.Step) {
	blocks := int64(layers)
	measured := o.Needs()&^prune.Gradients != 0 && o.Norms == nil
	var at, allocated int64 // a block that is run several times goes back and forth
	return func(s prune.Step) {
		switch s.Stage {
		case prune.Gradient:
			bar.Show(stageGradients, int64(s.Done), int64(s.Of))
		case prune.Allocate:
			within := blockSteps * int64(s.Done) / int64(max(s.Of, 1))
			allocated = max(allocated, int64(s.Block)*blockSteps+within)
			bar.Show(stageAllocation, allocated, blocks*blockSteps)
		default:
			at = max(at, position(s, blocks, measured))
			bar.Show(stagePruning, at, blocks*blockSteps)
		}
	}
}

// position turns a step of the walk into progress. Where activations are measured, running the block before and after
// takes most of the time.
func position(s prune.Step, blocks int64, measured bool) int64 {
	from, to := int64(0), int64(blockSteps)
	switch {
	case s.Stage == prune.Save:
		return blocks * blockSteps
	case !measured:
	case s.Stage == prune.Region:
		to = 300
	case s.Stage == prune.Statistics:
		to = 450
	case s.Stage == prune.Select:
		from, to = 450, 550
	case s.Stage == prune.Propagate:
		from = 550
	}

	return int64(s.Block)*blockSteps + from + (to-from)*int64(s.Done)/int64(max(s.Of, 1))
}

// print shows the result by role, and what it cost.
func (r *Report) print(j *cli.Job) {
	t := &report.Table{Columns: report.Columns("role", "matrices", "weights", "zeros", "zeros %|%.2f")}
	type sum struct{ n, weights, zeros int64 }

	roles := map[string]*sum{}
	var order []string
	for _, m := range r.Tensors {
		s := roles[m.Role]
		if s == nil {
			s = &sum{}
			roles[m.Role], order = s, append(order, m.Role)
		}

		s.n = s.n + 1
		s.weights = s.weights + m.Zeros + m.Kept
		s.zeros = s.zeros + m.Zeros
	}

	for _, role := range order {
		s := roles[role]
		t.Add(role, s.n, s.weights, s.zeros, 100*float64(s.zeros)/float64(s.weights))
	}

	t.Add("all", r.Total.Matrices, r.Total.Weights, r.Total.Zeros, 100*r.Total.Sparsity)
	t.Note = fmt.Sprintf("%s, %s; %.1f %% of all parameters are zero", r.method(), r.Meaning, 100*r.Total.Overall)
	if n := r.Total.NearTies; n > 0 {
		t.Note += fmt.Sprintf("; %d near ties: weights of which the CPU may choose otherwise", n)
	}

	j.Table(t)
	r.printChange(j)

	r.Perplexity.Print(j)
	if r.Packed != nil {
		j.Printf("packed: %s instead of %s\n", cli.Size(r.Packed.BytesOut), cli.Size(r.Packed.BytesIn))
	}

	if l := r.LowRank; l != nil {
		j.Printf("low-rank parts up to rank %d: %s, %s; with them the matrices have %.1f %% of their values\n", l.Rank,
			l.Adapter, cli.Size(l.Bytes), 100*l.Stored)
		for _, n := range l.Notes {
			j.Note("%s", n)
		}
	}
	j.Printf("written to %s in %.1f s, %.1f of them pruning\n", r.Out, j.Elapsed().Seconds(), r.Times.Total)
	if r.Imatrix != "" {
		j.Printf("importance matrix written to %s\n", r.Imatrix)
	}
	for _, n := range r.Notes {
		j.Note("%s", n)
	}
}

// method names what chose the weights, with what is not as usual.
func (r *Report) method() string {
	text := r.Options.Metric.Name
	if r.Options.MasksFrom != "" {
		text = "masks of " + r.Options.MasksFrom
	}
	if n := r.Options.Norms; n != nil {
		text += " by " + n.From
	}
	if n := r.Options.Swaps; n > 0 {
		text += fmt.Sprintf(" with %d passes of swaps", n)
		if share := r.Options.SwapDiagonal; share > 0 {
			text += fmt.Sprintf(" (diagonal + %g)", share)
		}
	}
	if u := r.Options.Update.Name; u != "" && u != prune.NoUpdate {
		text += " with update " + u
	}
	if a := r.Options.Allocation.Name; a != "" && a != prune.Uniform {
		text += ", allocation " + a
	}

	return text
}

// printChange says what swaps and an update of the weights gained, on average over the matrices.
func (r *Report) printChange(j *cli.Job) {
	var swapped, changed prune.Change
	swaps := 0.0
	changes := 0.0
	for i := range r.Tensors {
		if c := r.Tensors[i].Swapped; c != nil {
			swapped.Masked += c.Masked
			swapped.Updated += c.Updated
			swaps++
		}
		if c := r.Tensors[i].Change; c != nil {
			changed.Masked += c.Masked
			changed.Updated += c.Updated
			changes++
		}
	}

	if s := r.Searched; s != nil {
		j.Printf("allocation: %d of %d generations found a better one; KL to the dense model on the calibration data "+
			"%.4f nats, %.4f with every layer alike\n", s.Better, s.Generations, s.Best, s.Start)
	}
	const errorOf = "relative squared error of the outputs on the calibration data: "
	if swaps > 0 {
		j.Printf(errorOf+"%.4f by the method's masks, %.4f by those that the swaps made\n", swapped.Masked/swaps,
			swapped.Updated/swaps)
	}
	if changes > 0 {
		j.Printf(errorOf+"%.4f by zeroing, %.4f with the update\n", changed.Masked/changes, changed.Updated/changes)
	}
}
