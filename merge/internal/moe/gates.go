package moe

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Gates computes the routers, on a device for the modes that need hidden states (nil otherwise). It comes before Run.
func (m *Mixture) Gates(ctx context.Context, dev kernels.Device) error {
	all := m.Config.Experts
	all = append(all[:len(all):len(all)], m.Config.Shared...)
	var rows [][][]float32 // by expert and layer
	var err error
	switch {
	case drawn(m.Config.Gate):
		rows = m.drawn(len(all))
	case m.Config.Gate == "cheap_embed":
		rows, err = m.cheap(all)
	default:
		rows, err = m.hidden(ctx, dev, all)
	}
	if err != nil {
		return err
	}

	n := len(m.Config.Experts)
	for l := range m.base.Layers {
		for e := range rows {
			if e < n {
				m.gates[l] = append(m.gates[l], rows[e][l]...)
			} else {
				m.shared[l] = rows[e][l]
			}
		}
	}

	return m.degenerate(n)
}

// drawn makes random gates: normal, or uniform within ±1/√hidden.
func (m *Mixture) drawn(n int) [][][]float32 {
	bound := math.Sqrt(1 / float64(m.base.Hidden))
	out := make([][][]float32, n)
	for e := range out {
		for l := range m.base.Layers {
			key := rng.NewWide(m.options.Seed, fmt.Sprintf("gate %d %d", l, e))
			row := make([]float32, m.base.Hidden)
			for i := range row {
				if m.Config.Gate == "random" {
					row[i] = float32(key.Normal(uint64(i)))
				} else {
					row[i] = float32(bound * (2*key.Open(uint64(i)) - 1))
				}
			}

			out[e] = append(out[e], row)
		}
	}

	return out
}

// tokenize gives the ids of prompts, each with the start token in front if there is one.
func (m *Mixture) tokenize(prompts []string) ([][]int32, error) {
	tok, err := tokenizer.Load(m.dirs[0])
	if err != nil {
		return nil, err
	}

	var out [][]int32
	for _, p := range prompts {
		if id, ok := tok.BOS(); ok {
			// As a text, as mergekit-moe does it: templates of the tokenizer would add other tokens too.
			text, _ := tok.Token(id)
			p = text + p
		}

		ids, err := tok.Encode(p, tokenizer.EncodeOptions{NoSpecial: true})
		if err != nil {
			return nil, fmt.Errorf("prompt %q: %w", p, err)
		}

		if len(ids) == 0 {
			return nil, fmt.Errorf("%w: prompt %q has no tokens", ErrModels, p)
		}

		// A token that was added without a row in the table.
		for _, id := range ids {
			if int(id) >= m.base.Vocab {
				return nil, fmt.Errorf("%w: prompt %q has the token %d, the base %d rows", ErrModels, p, id,
					m.base.Vocab)
			}
		}

		out = append(out, ids)
	}

	return out, nil
}

// difference makes an expert's gates: of its positive prompts less of its negative ones, each by layer, of unit length.
func (m *Mixture) difference(e *Expert, of func(ids [][]int32) ([][]float64, error)) ([][]float32, error) {
	ids, err := m.tokenize(e.Positive)
	if err != nil {
		return nil, err
	}

	sums, err := of(ids)
	if err != nil {
		return nil, err
	}

	if len(e.Negative) > 0 {
		if ids, err = m.tokenize(e.Negative); err != nil {
			return nil, err
		}

		less, err := of(ids)
		if err != nil {
			return nil, err
		}

		for l := range sums {
			for i := range sums[l] {
				sums[l][i] -= less[l][i]
			}
		}
	}

	out := make([][]float32, len(sums))
	for l := range sums {
		// Only the direction tells prompts apart; long prompts must not win by their length.
		unit(sums[l])
		out[l] = make([]float32, len(sums[l]))
		for i, x := range sums[l] {
			out[l][i] = float32(x)
		}
	}

	return out, nil
}

// unit gives a vector the length 1; one shorter than 1e-8 is divided by that.
func unit(x []float64) {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	norm := max(math.Sqrt(sum), 1e-8)
	for i := range x {
		x[i] /= norm
	}
}

// cheap makes gates of the token table's rows.
func (m *Mixture) cheap(all []Expert) ([][][]float32, error) {
	table, err := m.models[0].Source("model.embed_tokens.weight", 0)
	if err != nil {
		return nil, err
	}

	row := make([]float32, m.base.Hidden)
	sum := func(ids [][]int32) ([][]float64, error) {
		total := make([]float64, m.base.Hidden)
		for _, prompt := range ids {
			// Summed in float64: a prompt file has thousands of tokens.
			for _, id := range prompt {
				if err := table.Read(row, int64(id)*int64(m.base.Hidden)); err != nil {
					return nil, err
				}
				for i, x := range row {
					total[i] += float64(x)
				}
			}
		}

		unit(total)
		return [][]float64{total}, nil
	}

	var out [][][]float32
	for i := range all {
		rows, err := m.difference(&all[i], sum)
		if err != nil {
			return nil, err
		}

		// What enters the layers is not known without a forward pass: every layer gets the same row.
		layers := make([][]float32, m.base.Layers)
		for l := range layers {
			layers[l] = rows[0]
		}

		out = append(out, layers)
	}

	return out, nil
}

// hidden makes gates of the base's hidden states.
func (m *Mixture) hidden(ctx context.Context, dev kernels.Device, all []Expert) ([][][]float32, error) {
	if m.refs[0].Adapter.Path != "" {
		return nil, fmt.Errorf("%w: the base has an adapter, so its hidden states cannot be computed; fold the "+
			"adapter in first, or choose gate_mode cheap_embed", ErrModels)
	}
	if dev == nil {
		return nil, fmt.Errorf("%w: gate_mode %s needs a device", ErrOption, m.Config.Gate)
	}

	// Streamed: gates need one pass per prompt, and the model can be larger than the device.
	model, err := lm.Load(ctx, m.dirs[0], dev, lm.Options{Stream: true, AllowExtra: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer model.Close()

	states := func(ids [][]int32) ([][]float64, error) { return m.states(ctx, model, ids) }
	var out [][][]float32
	for i := range all {
		rows, err := m.difference(&all[i], states)
		if err != nil {
			return nil, err
		}
		out = append(out, rows)
	}

	return out, nil
}

// states gives, for each layer, the mean over prompts of what enters it.
func (m *Mixture) states(ctx context.Context, model *lm.Model, ids [][]int32) ([][]float64, error) {
	out, err := m.through(ctx, model, ids, m.Config.Gate != "hidden_avg")
	if err != nil || m.Config.Gate != "hidden_avg" {
		return out, err
	}
	return out, m.addPadding(ctx, model, ids, out)
}

// through runs prompts through the model and gives, for each layer, the sum of what enters it over the last tokens, or
// over all tokens each divided by the length of the longest prompt, divided by the number of prompts.
func (m *Mixture) through(ctx context.Context, model *lm.Model, ids [][]int32, last bool) ([][]float64, error) {
	parts, err := m.batches(ids)
	if err != nil {
		return nil, err
	}

	factor := 1 / float64(len(ids))
	if !last {
		longest := 0
		for _, p := range ids {
			longest = max(longest, len(p))
		}
		factor /= float64(longest)
	}

	out := make([][]float64, m.base.Layers)
	for l := range out {
		out[l] = make([]float64, m.base.Hidden)
	}

	for _, part := range parts {
		if err := add(ctx, out, model, part, factor, last); err != nil {
			return nil, err
		}
	}

	return out, nil
}

// add adds the states of prompts, times a factor, to the sums of all layers.
func add(ctx context.Context, sums [][]float64, model *lm.Model, ids [][]int32, factor float64, last bool) error {
	h, err := model.Embed(ids)
	if err != nil {
		return err
	}
	defer h.Free()

	for l := range sums {
		if err := gather(sums[l], model.Device(), h, factor, last); err != nil {
			return err
		}
		if l == len(sums)-1 {
			break
		}
		if err := model.RunBlock(ctx, l, h, nil); err != nil {
			return err
		}
	}

	return nil
}

// gather adds rows of the hidden state to a sum; see through.
func gather(sum []float64, dev kernels.Device, h *lm.Hidden, factor float64, last bool) error {
	data := make([]byte, 4*h.X.Cols)
	first := 0
	for _, n := range h.Lens {
		from := first
		if last {
			from += n - 1
		}

		for i := from; i < first+n; i++ {
			if err := dev.Download(data, h.X.Buf, h.X.Off+i*h.X.Stride); err != nil {
				return err
			}
			for j := range sum {
				sum[j] += factor * float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*j:])))
			}
		}

		first += n
	}

	return nil
}

// addPadding adds the positions that shorter prompts are filled up with, which the original program averages too. They
// hold the start token, and attend to nothing: their attention gives zeros.
func (m *Mixture) addPadding(ctx context.Context, model *lm.Model, ids [][]int32, sums [][]float64) error {
	longest, missing := 0, 0
	for _, p := range ids {
		longest = max(longest, len(p))
	}
	for _, p := range ids {
		missing += longest - len(p)
	}
	if missing == 0 {
		return nil
	}

	pad, err := m.padding()
	if err != nil {
		return err
	}

	undo, err := model.Attach(silence{model.Device()}, m.attentionOutputs(model)...)
	if err != nil {
		return err
	}
	defer undo()

	// One position stands for all of them: silenced, each sees nothing but its own token.
	states, err := m.through(ctx, model, [][]int32{{pad}}, true) // of a single token, the last is all
	if err != nil {
		return err
	}

	for l := range sums {
		for i := range sums[l] {
			sums[l][i] += states[l][i] * float64(missing) / float64(longest*len(ids))
		}
	}

	return nil
}

// padding is the token that prompts are filled up with: the start token, or else the end token.
func (m *Mixture) padding() (int32, error) {
	tok, err := tokenizer.Load(m.dirs[0])
	if err != nil {
		return 0, err
	}

	if id, ok := tok.BOS(); ok {
		return id, nil
	}
	if id, ok := tok.EOS(); ok {
		return id, nil
	}

	return 0, fmt.Errorf("%w: gate_mode hidden_avg fills prompts up with the start token, and the tokenizer has "+
		"neither that nor an end token", ErrModels)
}

// attentionOutputs names the output projections of attention.
func (m *Mixture) attentionOutputs(model *lm.Model) []string {
	var out []string
	for l := range m.base.Layers {
		for _, x := range model.Linears(l) {
			if x.Role == arch.O {
				out = append(out, x.Name)
			}
		}
	}
	return out
}

// silence is a delta that makes a layer's output zero.
type silence struct{ dev kernels.Device }

// Forward implements lm.Delta.
func (s silence) Forward(_ lm.Linear, _, y kernels.Mat) error {
	zeros := make([]byte, 4*y.Cols)
	for i := range y.Rows {
		if err := s.dev.Upload(y.Buf, y.Off+i*y.Stride, zeros); err != nil {
			return err
		}
	}
	return nil
}

// Backward implements lm.Delta; gates need no gradients.
func (silence) Backward(lm.Linear, kernels.Mat, kernels.Mat, kernels.Mat) error { return nil }

// Parameters implements lm.Delta.
func (silence) Parameters() []lm.Parameter { return nil }

// worstCondition is the condition number of a router above which its experts are hard to distinguish.
const worstCondition = 5

// degenerate warns of routers whose rows are nearly dependent.
func (m *Mixture) degenerate(n int) error {
	var bad []int
	for l, rows := range m.gates {
		a := linalg.New(n, m.base.Hidden)
		for e := range n {
			for i, x := range rows[e*m.base.Hidden : (e+1)*m.base.Hidden] {
				a.Set(e, i, float64(x))
			}
		}

		values, err := linalg.Solver{}.SingularValues(a)
		if err != nil {
			return fmt.Errorf("router of layer %d: %w", l, err)
		}

		low, high := math.Inf(1), 0.0
		for _, v := range values {
			low, high = min(low, v), max(high, v)
		}
		if high > worstCondition*low { // a zero singular value too, which no quotient would survive
			bad = append(bad, l)
		}
	}

	if len(bad) > 0 {
		m.warn("the routers of %d layers (first: %d) have nearly dependent rows; the prompts may be too similar, "+
			"and experts would go unused", len(bad), bad[0])
	}

	return nil
}
