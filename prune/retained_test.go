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
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// deep is a Llama of many small blocks. A block's matrices take 4·64·64 + 3·96·64 BF16, 69,632 bytes; the smallest of its four Hessians
// takes 64·64 F64, 32,768 bytes.
func deep(layers int) *checkpoint {
	c := llama(0)
	c.config["num_hidden_layers"], c.config["hidden_size"], c.config["intermediate_size"] = layers, 64, 96
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

// combinations are all that metrics, updates and allocations make together, with a pattern where the allocation is for one.
func combinations() (all []Options) {
	for _, metric := range metrics {
		for _, update := range updates {
			for _, allocation := range allocations {
				o := Options{Metric: metric(), Sparsity: .5, Update: Update{Name: update}, Allocation: Allocation{Name: allocation}}
				if allocation == OWLMixed {
					o.Sparsity, o.Pattern = 0, Pattern{2, 4}
				}
				if o.Validate() == nil {
					all = append(all, o)
				}
			}
		}
	}
	return all
}

// What a run holds does not grow from block to block, for any metric, update and allocation, but by the block's pruned weights, which stay in
// the model here, and by a few lines of the report: not by statistics, of which the smallest Hessian is the finest that shows. Nor does the
// report hold anything of the run once it is over.
func TestMemoryOfABlock(t *testing.T) {
	const first, blocks = 8, 24
	const weights, hessian = 69_632, 32_768
	dir := deep(blocks).write(t, filepath.Join(t.TempDir(), "m"), nil)
	calib := windows(2, 16, 61)

	for _, o := range combinations() {
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
			if grown := (at[1] - at[0]) / (blocks - first); grown > weights+hessian/2 {
				t.Errorf("a block leaves %d bytes, its weights are %d", grown, weights)
			}
			after := liveHeap()
			runtime.KeepAlive(r)
			if held := after - liveHeap(); held > blocks*hessian/2 {
				t.Errorf("the report of %d blocks holds %d bytes", blocks, held)
			}
		})
	}
}
