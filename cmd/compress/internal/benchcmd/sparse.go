package benchcmd

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// thinned is the model of the sparse suite: a Llama of 489 million parameters in BF16, 0.98 GB, so that no
// cache holds it. 60 % of the weights of its blocks are 0, in random places.
var thinned = shape{
	vocab: 4096, hidden: 2048, inner: 5632, blocks: 10, heads: 16, kv: 8, positions: 512, thin: 0.6,
}

// sparseRows are how many tokens run at a time: one sequence that is generated, sixteen, and a prompt.
var sparseRows = []int{1, 16, 256}

// thinCases are those of the model of the sparse suite.
func thinCases(ctx context.Context, dev kernels.Device, b *bed, o Options) ([]timed, error) {
	return sparseCases(ctx, dev, b, thinned, o)
}

// sparseCases run the same model with its zeros, and packed as bitmasks; each case alternates between the two.
func sparseCases(ctx context.Context, dev kernels.Device, b *bed, s shape, o Options) (cases []timed, err error) {
	dense, err := b.random(s, safetensors.BF16, 0)
	if err != nil {
		return nil, err
	}

	packed := dense + "-packed"
	r, err := checkpoint.Convert(ctx, dense, packed, checkpoint.ConvertOptions{
		Pack: true, Device: dev, Progress: o.Progress,
	})
	if err != nil {
		return nil, err
	}

	var runs [2]func(rows int) func() error
	for i, path := range []string{dense, packed} {
		m, err := b.load(ctx, path, dev, lm.Options{})
		if err != nil {
			return nil, err
		}
		runs[i] = func(rows int) func() error { return stepper(ctx, m, rows) }
	}

	unread := 2 * float64(s.vocab*s.hidden) // bytes of the token table, which is looked up
	weights := float64(r.BytesIn)/2 - unread/2
	for _, rows := range sparseRows {
		cases = append(cases, timed{
			name: fmt.Sprintf("%d tokens at a time, 60 %% bitmask", rows), flops: 2 * weights * float64(rows),
			bytes: float64(r.BytesOut) - unread, half: true,
			run: runs[1](rows), dense: runs[0](rows), denseBytes: float64(r.BytesIn) - unread,
		})
	}

	return cases, nil
}

// stepper runs some tokens after the first one of a sequence.
func stepper(ctx context.Context, m *lm.Model, rows int) func() error {
	var s *lm.Session
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32((7919*i + 1) % m.Config().Vocab)
	}

	return func() (err error) {
		if s == nil {
			if s, err = m.NewSession(lm.SessionOptions{}); err == nil {
				_, err = s.Append(ctx, []int32{1})
			}
		}
		if err == nil {
			_, err = s.Append(ctx, ids)
		}
		if err == nil {
			err = s.Truncate(1)
		}

		return err
	}
}

// shape is a Llama of random weights.
type shape struct {
	vocab, hidden, inner, blocks, heads, kv, positions int
	thin                                               float64 // share of the blocks' weights that are 0
}

// sizes are the dimensions of tensors by the names that architectures have for them.
func (s shape) sizes() map[string]int64 {
	return map[string]int64{
		"vocab": int64(s.vocab), "hidden": int64(s.hidden), "inner": int64(s.inner), "q": int64(s.hidden),
		"kv": int64(s.hidden / s.heads * s.kv),
	}
}

// values draws a tensor: normal numbers with a deviation of 0.02, and ones for the norms, as models are
// initialised; BF16 ones are uniform with that deviation, which is faster.
func (s shape) values(rnd *rand.Rand, info safetensors.Info, role arch.Role) []byte {
	n := int64(1)
	for _, d := range info.Shape {
		n *= d
	}
	if info.DType == safetensors.F32 {
		return floats(rnd, n, len(info.Shape) > 1)
	}

	thin := s.thin
	if !role.Linear() {
		thin = 0
	}

	data := make([]byte, 0, 2*n)
	for range n {
		v := float32(1)
		if len(info.Shape) > 1 {
			u := rnd.Uint64()
			v = (float32(u>>40)/(1<<24) - 0.5) * 0.0693
			if float64(u&0xffffff)/(1<<24) < thin {
				v = 0
			}
		}

		data = binary.LittleEndian.AppendUint16(data, kernels.ToBF16(v))
	}

	return data
}
