package moe

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/merge/internal/vocab"
	"github.com/modelcompress/compress/safetensors"
)

// Sink takes the output's tensors; several goroutines write at once.
type Sink interface {
	// Done reports whether a tensor is complete from an interrupted run.
	Done(name string) bool
	// WriteAt writes a part of a tensor.
	WriteAt(name string, p []byte, off int64) error
	// Written notes that all parts of a tensor are written.
	Written(name string) error
}

// Run writes the tensors; progress, which may be nil, gets the bytes of each part.
func (m *Mixture) Run(ctx context.Context, out Sink, progress func(bytes int64)) error {
	g, within := mmapsafe.WithContext(ctx)
	next := make(chan *tensor)
	g.Go(func() error {
		defer close(next)

		for i := range m.tensors {
			if out.Done(m.tensors[i].info.Name) {
				continue
			}

			select {
			case next <- &m.tensors[i]:
			case <-within.Done():
				return within.Err()
			}
		}

		return nil
	})

	for range m.workers {
		g.Go(func() error {
			b := buffers{x: make([]float32, m.chunk), data: make([]byte, 8*m.chunk)}
			for t := range next {
				if err := m.write(within, t, &b, out, progress); err != nil {
					return err
				}
			}
			return nil
		})
	}

	if err := g.Wait(); err != nil {
		return err
	}

	return ctx.Err()
}

// buffers are what a worker holds.
type buffers struct {
	x    []float32
	data []byte
}

// write writes one tensor.
func (m *Mixture) write(ctx context.Context, t *tensor, b *buffers, out Sink, progress func(int64)) error {
	var at int64
	for _, p := range t.pieces {
		read, release, err := m.reader(&p, t.info.Name)
		if err != nil {
			return err
		}

		for off := int64(0); off < p.size; off += m.chunk {
			if err := ctx.Err(); err != nil {
				return err
			}

			part := b.x[:min(m.chunk, p.size-off)]
			if err := read(part, off); err != nil {
				return fmt.Errorf("%s: %w", t.info.Name, err)
			}

			bytes := b.data[:int64(len(part))*int64(t.info.DType.Bits()/8)]
			if err := stream.Narrow(bytes, part, t.info.DType); err != nil {
				return fmt.Errorf("%s: %w", t.info.Name, err)
			}
			if err := out.WriteAt(t.info.Name, bytes, at); err != nil {
				return err
			}

			at += int64(len(bytes))
			if progress != nil {
				progress(int64(len(bytes)))
			}
		}

		release()
	}

	return out.Written(t.info.Name)
}

// reader gives the function that reads a piece, with the expert's noise and scale.
func (m *Mixture) reader(p *piece, output string) (read func(dst []float32, off int64) error, release func(),
	err error,
) {
	if p.model < 0 {
		var values []float32
		if p.values != nil {
			values = p.values()
		}

		return func(dst []float32, off int64) error {
			clear(dst)
			if values != nil {
				copy(dst, values[off:])
			}
			return nil
		}, func() {}, nil
	}

	source, err := m.models[p.model].Source(p.name, 0)
	if err != nil {
		return nil, nil, err
	}

	// The noise of an element depends on names and place only, so that neither chunks nor workers change it.
	key := rng.NewWide(m.options.Seed, "noise "+output+" "+p.name+" "+m.refs[p.model].String())
	return func(dst []float32, off int64) error {
		if err := source.Read(dst, off); err != nil {
			return err
		}

		// Checked before the noise: the input is to blame, not what was drawn.
		if vec.Peak(dst) >= vec.Infinite {
			return fmt.Errorf("%s of %s: %w", p.name, m.refs[p.model], stream.ErrNonFinite)
		}
		if p.expert != nil {
			p.expert.change(dst, key, off, p.down)
		}

		return nil
	}, source.Release, nil
}

// change adds an expert's noise, and scales its down projections.
func (e *Expert) change(x []float32, key rng.Wide, off int64, down bool) {
	if e.Noise > 0 {
		for i := range x {
			x[i] += float32(e.Noise * key.Normal(uint64(off)+uint64(i)))
		}
	}
	if down && e.Residual != 1 {
		vec.Scale(x, x, float32(e.Residual))
	}
}

// OutputConfig gives the text of the output's config.json: the base's, as the mixture's kind writes it, with the values
// spelt out whose defaults differ between the kinds.
func (m *Mixture) OutputConfig() ([]byte, error) {
	text, err := m.text.Compact()
	if err != nil {
		return nil, err
	}

	o, err := orderedjson.Parse(text)
	if err != nil {
		return nil, err
	}

	c := m.base
	// They would contradict the class of the mixture: remote code, and settings of the dense kind that it lacks.
	for _, key := range []string{"auto_map", "attention_bias", "mlp_bias", "pretraining_tp"} {
		o.Delete(key)
	}

	set := []field{
		{"architectures", []string{m.family.class}},
		{"model_type", m.family.modelType},
		{"num_experts_per_tok", m.Config.PerToken},
	}
	if m.family.modelType == "mixtral" {
		set = append(set, field{"num_local_experts", len(m.Config.Experts)})
	} else {
		set = append(set, field{"num_experts", len(m.Config.Experts)}, field{"moe_intermediate_size", c.Inner},
			field{"decoder_sparse_step", 1}, field{"norm_topk_prob", true}, field{"mlp_only_layers", []int{}})
	}

	if m.family.shared > 0 {
		set = append(set, field{"shared_expert_intermediate_size", c.Inner})
	}

	set = append(set, m.window()...)
	// What the base leaves to its class's default must be spelt out: the mixture's class has other defaults.
	for _, x := range m.defaults() {
		if !o.Has(x.key) {
			set = append(set, x)
		}
	}

	if name := dtype.Torch(m.typeOfMost()); name != "" {
		key := "torch_dtype"
		if o.Has("dtype") {
			key = "dtype"
		}
		set = append(set, field{key, name})
	}

	for _, x := range set {
		if err := o.Put(x.key, x.value); err != nil {
			return nil, err
		}
	}

	return o.Indent()
}

// field is a key of config.json.
type field struct {
	key   string
	value any
}

// defaults are the values of the base that its configuration may leave out.
func (m *Mixture) defaults() []field {
	c := m.base
	out := []field{
		{"num_key_value_heads", c.KVHeads},
		{"head_dim", c.HeadDim},
		{"rms_norm_eps", json.Number(fmt.Sprint(c.Eps))},
		{"hidden_act", "silu"},
		{"tie_word_embeddings", c.Tied},
		{"max_position_embeddings", c.MaxPositions},
	}

	if c.Rope != nil && !m.text.Has("rope_parameters") {
		out = append(out, field{"rope_theta", c.Rope.Theta})
	}

	return out
}

// window writes the base's sliding window as the mixture's kind does; the kinds have different defaults.
func (m *Mixture) window() []field {
	n, from := 0, 0
	for l, w := range m.base.Windows {
		if w > 0 && n == 0 {
			n, from = w, l
		}
	}

	var size any
	if n > 0 {
		size = n
	}
	if m.family.modelType == "mixtral" {
		return []field{{"sliding_window", size}}
	}

	out := []field{{"use_sliding_window", n > 0}, {"sliding_window", size}}
	if n > 0 {
		out = append(out, field{"max_window_layers", from})
	}

	return out
}

// typeOfMost is the type of the largest tensor.
func (m *Mixture) typeOfMost() safetensors.DType {
	var best *tensor
	for i := range m.tensors {
		if t := &m.tensors[i]; best == nil || t.info.Elements() > best.info.Elements() {
			best = t
		}
	}
	return best.info.DType
}

// WriteSide writes what belongs beside the tensors: configuration, the base's tokenizer, and the recipe.
func (m *Mixture) WriteSide(dir string) error {
	config, err := m.OutputConfig()
	if err != nil {
		return err
	}

	if err := vocab.CopyFiles(m.dirs[0], dir); err != nil {
		return err
	}
	if err := output.WriteFile(filepath.Join(dir, "config.json"), config); err != nil {
		return err
	}

	return output.WriteFile(filepath.Join(dir, "mergekit_moe_config.yml"), m.Config.Text)
}
