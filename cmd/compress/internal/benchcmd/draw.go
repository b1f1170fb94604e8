package benchcmd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// write writes the model into a new folder.
func (s shape) write(dir string, d safetensors.DType, seed uint64) error {
	out, err := stage.Begin(dir, nil)
	if err != nil {
		return err
	}

	config, err := json.Marshal(map[string]any{
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": s.vocab,
		"hidden_size":       s.hidden,
		"intermediate_size": s.inner, "num_hidden_layers": s.blocks, "num_attention_heads": s.heads,
		"num_key_value_heads":     s.kv,
		"max_position_embeddings": s.positions, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
		"tie_word_embeddings": false,
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(out.Dir, "config.json"), config, 0o666)
	}
	if err == nil {
		err = s.writeWeights(out.Dir, config, d, seed)
	}
	if err != nil {
		return errors.Join(err, out.Abandon())
	}

	return out.Publish()
}

func (s shape) writeWeights(dir string, config []byte, d safetensors.DType, seed uint64) error {
	c, err := arch.ParseConfig(filepath.Join(dir, "config.json"), config)
	if err != nil {
		return err
	}

	sizes, roles := s.sizes(), []arch.Role{}
	var infos []safetensors.Info
	for l := -1; l < c.Layers; l++ {
		for _, t := range c.Arch.Tensors {
			if t.PerBlock() != (l >= 0) || t.Part != "" {
				continue
			}

			info := safetensors.Info{Name: arch.Expand(t.Name, max(l, 0), 0), DType: d}
			for _, d := range t.Shape {
				info.Shape = append(info.Shape, sizes[d])
			}

			infos, roles = append(infos, info), append(roles, t.Role)
		}
	}

	w, err := safetensors.CreateDir(dir, infos, map[string]string{"format": "pt"}, safetensors.DirOptions{})
	if err != nil {
		return err
	}
	defer w.Abort()

	rnd := rand.New(rand.NewPCG(seed, 1))
	for i, info := range infos {
		if err := w.WriteTensor(info.Name, s.values(rnd, info, roles[i])); err != nil {
			return err
		}
	}

	return w.Finish()
}

// floats is n numbers in F32, as bytes: random normal ones with a deviation of 0.02, or ones.
func floats(rnd *rand.Rand, n int64, normal bool) []byte {
	data := make([]byte, 0, 4*n)
	for range n {
		v := 1.0
		if normal {
			v = 0.02 * rnd.NormFloat64()
		}
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
	}
	return data
}
