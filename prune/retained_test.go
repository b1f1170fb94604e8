package prune

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/lm"
)

// liveHeap is what the garbage collector finds in use.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second collection
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// deep is a Llama of many small blocks. A block's matrices take 4·64·64 + 3·96·64 BF16, 69,632 bytes; its four
// Hessians, of 64, 64, 64 and 96 inputs, 172,032 bytes in F64.
func deep(layers int) *checkpoint {
	c := llama(0)
	c.config["num_hidden_layers"] = layers
	c.config["hidden_size"] = 64
	c.config["intermediate_size"] = 96
	c.config["num_key_value_heads"] = 4
	c.tensors = nil
	c.add("model.embed_tokens.weight", 61, 64)

	for l := range layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		c.add(p+"input_layernorm.weight", 64)
		for _, name := range []string{"q", "k", "v", "o"} {
			c.add(p+"self_attn."+name+"_proj.weight", 64, 64)
		}

		c.add(p+"post_attention_layernorm.weight", 64)
		c.add(p+"mlp.gate_proj.weight", 96, 64)
		c.add(p+"mlp.up_proj.weight", 96, 64)
		c.add(p+"mlp.down_proj.weight", 64, 96)
	}

	c.add("model.norm.weight", 64)
	return c
}

// combinations are every metric with every update, and the metrics that need least and most with every allocation
// and the updates that hold nothing and a Hessian; an allocation is measured before the blocks, whatever the rest
// is.
func combinations() (all []Options) {
	add := func(o Options) {
		if o.Allocation.Name == OWLMixed {
			o.Sparsity, o.Pattern = 0, Pattern{2, 4}
		}
		if o.Validate() == nil {
			all = append(all, o)
		}
	}

	for _, metric := range metrics {
		for _, update := range updates {
			add(Options{Metric: metric(), Sparsity: .5, Update: Update{Name: update}})
		}
	}

	for _, metric := range []Metric{Magnitude(), PrunerZero()} {
		for _, allocation := range allocations[1:] {
			for _, update := range []string{NoUpdate, SparseGPTUpdate} {
				add(Options{
					Metric: metric, Sparsity: .5, Update: Update{Name: update},
					Allocation: Allocation{Name: allocation},
				})
			}
		}
	}

	return all
}

// quick takes the fewest steps: how many there are has no influence on memory.
func (u *Update) quick() {
	switch u.Name {
	case ADMM:
		u.Polish = 1
	case DSnoT:
		u.Cycles = 1
	}
}

// What a run holds does not grow from block to block, for any metric, update and allocation, but by the block's
// pruned weights, which stay in the model here, and by a few lines of the report: half of a block's Hessians is
// more than what scratch of other sizes makes of it, and less than what statistics that are kept would. Nor does
// the report hold anything of the run once it is over.
func TestMemoryOfABlock(t *testing.T) {
	const first, blocks = 2, 6
	const weights, hessians = 69_632, 172_032
	dir := deep(blocks).write(t, filepath.Join(t.TempDir(), "m"), nil)
	calib := windows(2, 16, 61)

	for _, o := range combinations() {
		o.Update.quick()
		t.Run(fmt.Sprintf("%s %s %s", o.Metric.Name, o.Update.Name, o.Allocation.Name), func(t *testing.T) {
			var at [2]int64
			o.Events.Tensor = func(r Tensor) {
				if r.Role == "down" && r.Block == first-1 {
					at[0] = liveHeap()
				}
				if r.Role == "down" && r.Block == blocks-1 {
					at[1] = liveHeap()
				}
			}

			r, err := Model(ctx, load(t, dir, 2, lm.Options{}), calib, o)
			if err != nil {
				t.Fatal(err)
			}

			if grown := (at[1] - at[0]) / (blocks - first); grown > weights+hessians/2 {
				t.Errorf("a block leaves %d bytes, its weights are %d", grown, weights)
			}

			after := liveHeap()
			runtime.KeepAlive(r)
			if held := after - liveHeap(); held > blocks*hessians/8 {
				t.Errorf("the report of %d blocks holds %d bytes", blocks, held)
			}
		})
	}
}
