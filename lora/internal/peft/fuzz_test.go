package peft

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// FuzzConfig: whatever the text, parsing it ends with an error of its kind or with settings that can be used.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"peft_type":"LORA"}`,
		`{"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj","v_proj"],"rank_pattern":{"q_proj":2},"alpha_pattern":{"^model\\.layers\\.1":3}}`,
		`{"peft_type":"LORA","target_modules":".*\\.[01]\\.q_proj","exclude_modules":".*x","use_rslora":true,"use_dora":true,"lora_bias":true}`,
		`{"peft_type":"LORA","target_modules":"all-linear","layers_to_transform":[0,2],"layers_pattern":"layers"}`,
		`{"peft_type":"LORA","trainable_token_indices":{"embed_tokens":[1,2]},"modules_to_save":["lm_head"],"bias":"all"}`,
		`{"peft_type":"LORA","init_lora_weights":"pissa_niter_4","loftq_config":{},"unknown":{},"layer_replication":[[0,1]]}`,
		`{"r":null,"lora_alpha":-1e300}`, `[`, `{"a":1}{`, `{"r":1,"r":2}`,
	} {
		f.Add([]byte(s))
	}

	modules := []adapter.Module{
		{Path: "model.layers.0.self_attn.q_proj", Role: "q", In: 4, Out: 4},
		{Path: "model.embed_tokens", Table: true, Block: -1, In: 9, Out: 4},
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		s, err := parse(text)
		if err != nil {
			if !errors.Is(err, adapter.ErrConfig) && !errors.Is(err, adapter.ErrUnsupported) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}

		if s.Rank < 1 || math.IsNaN(s.Alpha) || math.IsInf(s.Alpha, 0) {
			t.Fatalf("%+v", s.Config)
		}
		if _, _, err := s.Fits(modules); err != nil && !errors.Is(err, adapter.ErrConfig) {
			t.Fatal(err)
		}

		find, err := s.RankAlpha()
		if err != nil {
			if !errors.Is(err, adapter.ErrConfig) {
				t.Fatal(err)
			}
			return
		}

		if rank, alpha := find(modules[0].Path); rank < 1 || math.IsNaN(s.ScaleOf(rank, alpha)) {
			t.Fatalf("rank %d, alpha %g", rank, alpha)
		}
	})
}
