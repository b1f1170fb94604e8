package lora

import (
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestLosesExperts: factors of experts are lost in PEFT only beside a shared expert.
func TestLosesExperts(t *testing.T) {
	for _, name := range arch.Known() {
		table, err := arch.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, expert := range []int{-1, 0} {
			a := &adapter.Adapter{Low: []*adapter.Low{{Module: adapter.Module{Expert: -1}}, {Module: adapter.Module{Expert: expert}}}}
			if got, want := losesExperts(table, a), name == "qwen2_moe" && expert == 0; got != want {
				t.Errorf("%s, expert %d: %v", name, expert, got)
			}
		}
	}
}
