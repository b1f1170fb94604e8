package bench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"path/filepath"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// drawWeights writes normal numbers with a deviation of 0.02, and ones for the norms, as models are initialised.
func drawWeights(dir string, config []byte, seed uint64) error {
	c, err := arch.ParseConfig(filepath.Join(dir, "config.json"), config)
	if err != nil {
		return err
	}
	sizes := map[string]int64{
		"vocab": drawVocab, "hidden": drawHidden, "inner": drawInner,
		"q": drawHidden, "kv": drawHidden / drawHeads * drawKV,
	}
	var infos []safetensors.Info
	for l := -1; l < c.Layers; l++ {
		for _, t := range c.Arch.Tensors {
			if t.PerBlock() != (l >= 0) || t.Part != "" {
				continue
			}
			info := safetensors.Info{Name: arch.Expand(t.Name, max(l, 0), 0), DType: safetensors.F32}
			for _, d := range t.Shape {
				info.Shape = append(info.Shape, sizes[d])
			}
			infos = append(infos, info)
		}
	}
	w, err := safetensors.CreateDir(dir, infos, map[string]string{"format": "pt"}, safetensors.DirOptions{})
	if err != nil {
		return err
	}
	defer w.Abort()
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, info := range infos {
		if err := w.WriteTensor(info.Name, drawn(rnd, info)); err != nil {
			return err
		}
	}
	return w.Finish()
}

func drawn(rnd *rand.Rand, info safetensors.Info) []byte {
	n := int64(1)
	for _, d := range info.Shape {
		n *= d
	}
	data := make([]byte, 0, 4*n)
	for range n {
		v := 1.0
		if len(info.Shape) > 1 {
			v = 0.02 * rnd.NormFloat64()
		}
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
	}
	return data
}
