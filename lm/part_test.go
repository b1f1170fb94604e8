package lm

import (
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm/arch"
)

// What the branches of a block give, each run alone, is what the block adds to the stream.
func TestParts(t *testing.T) {
	compared := 0
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			m := load(t, recipe{config: config, seed: 5}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
			whole, err := m.Embed(tokens(3, 30, 2))
			if err != nil {
				t.Fatal(err)
			}
			defer whole.Free()
			before := slices.Clone(values(whole.X))

			// What each branch reads, seen on the way.
			var attention, mlp []float32
			hooks := &Hooks{LinearInput: func(l Linear, x kernels.Mat) {
				switch l.Role {
				case arch.Q, arch.QKV, arch.QA:
					attention = slices.Clone(values(x))
				case arch.Up, arch.GateUp:
					mlp = slices.Clone(values(x))
				}
			}}
			if err := m.RunBlock(ctx, 0, whole, hooks); err != nil {
				t.Fatal(err)
			}

			b := m.blocks[0]
			if b.AttnPost.W != nil || b.MLPPost.W != nil || b.Mixture || m.config.PostNorm {
				t.Skip("norms behind branches, or experts that see some tokens each")
			}
			scale := m.config.ResidualScale
			if scale == 0 {
				scale = 1
			}
			sum := slices.Clone(before)
			for part, in := range map[Part][]float32{AttentionPart: attention, MLPPart: mlp} {
				src := &Hidden{X: kernels.MatOf(kernels.WrapF32(in), whole.X.Rows, whole.X.Cols), Lens: whole.Lens}
				dst, err := m.CopyHidden(whole)
				if err != nil {
					t.Fatal(err)
				}
				defer dst.Free()
				if err := m.RunPart(ctx, 0, part, dst, src); err != nil {
					t.Fatal(err)
				}
				for i, v := range values(dst.X) {
					sum[i] += scale * v
				}
			}
			near(t, "stream", sum, values(whole.X), tolPaths)
			compared++
		})
	}
	if compared < 10 {
		t.Errorf("%d families", compared)
	}
}
