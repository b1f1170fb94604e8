package prunecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/prune"
)

// LowRankReport says what became of the low-rank parts.
type LowRankReport struct {
	Adapter string `json:"adapter"`
	Bytes   int64  `json:"bytes"` // of the adapter's weights
	Rank    int    `json:"rank"`  // the largest
	// Stored is the part of the values of the pruned matrices that their sparse and low-rank parts have.
	Stored float64  `json:"stored"`
	Notes  []string `json:"notes,omitempty"` // what others may not read
}

// adapterFaults says what does not go with low-rank parts.
func (o *Options) adapterFaults(p prune.Options) error {
	name := prune.OATS().Name
	switch {
	case p.Metric.Name != name && o.Adapter != "":
		return cli.Usagef("--adapter %s: method %s has no low-rank parts (HINT: --method %s makes them)", o.Adapter,
			p.Metric.Name, name)
	case p.Metric.Name != name && p.LowRank != prune.LowRank{}:
		return cli.Usagef("--rank-share and --rank-turns go with --method %s", name)
	case p.Metric.Name != name:
		return nil
	case o.Adapter == "":
		return cli.Usagef("method %s: the low-rank parts have no place (HINT: give --adapter DIR)", name)
	case o.Save == "bitmask":
		return cli.Usagef("--save bitmask with --adapter: an adapter goes with weights in the dense form")
	case o.ImatrixOut != "":
		return cli.Usagef("--imatrix-out with method %s (HINT: compress imatrix measures by itself)", name)
	}
	return nil
}

// factorsName is the file of factors that a run keeps until they are an adapter.
func (o *Options) factorsName() string {
	dir := filepath.Clean(o.Adapter)
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".factors.safetensors")
}

// begun reports whether there is something of a run to go on with, which may have written the adapter before it was
// interrupted: factors that are kept until then, or the output that they belong to.
func (o *Options) begun() bool {
	factors := o.factorsName()
	for _, path := range []string{o.Out, factors, factors + ".partial"} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// beginFactors looks at the place of the adapter and names the file of factors.
func (p *pruning) beginFactors() error {
	if p.flags.Adapter == "" {
		return nil
	}

	p.replace = p.flags.Overwrite || p.flags.Resume && p.flags.begun()
	if err := lora.Vacant(p.flags.Adapter, p.replace); err != nil {
		return fmt.Errorf("--adapter %s: %w", p.flags.Adapter, err)
	}

	p.opts.Factors = prune.NewFactors(p.flags.factorsName(),
		prune.MaskOptions{Overwrite: !p.flags.Resume, Resume: p.flags.Resume})
	return nil
}

// writeAdapter makes an adapter of the factors.
func (p *pruning) writeAdapter(r *Report) error {
	if p.flags.Adapter == "" {
		return nil
	}

	weights := filepath.Join(p.flags.Adapter, "adapter_model.safetensors")
	r.LowRank = &LowRankReport{
		Adapter: p.flags.Adapter, Stored: float64(r.Total.Stored) / float64(max(1, r.Total.Weights)),
	}
	pairs := lora.Pairs{
		Ranks: map[string]int{}, Pair: p.opts.Factors.Pair, Overwrite: p.replace,
	}
	for i := range r.Tensors {
		if rank := r.Tensors[i].Rank; rank > 0 {
			pairs.Ranks[r.Tensors[i].Name] = rank
			r.LowRank.Rank = max(r.LowRank.Rank, rank)
		}
	}

	if p.opts.Factors.Gone() {
		if _, err := os.Stat(weights); errors.Is(err, fs.ErrNotExist) {
			return cli.Usagef("--adapter %s: the run was finished, and its adapter is not there any more (HINT: start "+
				"over with --overwrite instead of --resume)", p.flags.Adapter)
		}
	} else {
		notes, err := lora.WritePairs(p.job.Ctx, p.dense, p.flags.Adapter, pairs)
		if err != nil {
			return err
		}
		r.LowRank.Notes = notes
		if err := p.opts.Factors.Remove(); err != nil {
			return err
		}
	}

	info, err := os.Stat(weights)
	if err == nil {
		r.LowRank.Bytes = info.Size()
	}
	return err
}

// adapterApart returns an error where the adapter would lie in the model, in the output or the other way round.
func (o *Options) adapterApart(model string) error {
	if o.Adapter == "" {
		return nil
	}
	return errors.Join(stage.Apart(model, o.Adapter), stage.Apart(o.Out, o.Adapter))
}
