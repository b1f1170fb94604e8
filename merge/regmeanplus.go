package merge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/spectral"
	"github.com/modelcompress/compress/safetensors"
)

// ErrUnlike: models that are to be merged have other tensors or tokens than the first.
var ErrUnlike = errors.New("the models do not have the same tensors")

// MergedGrams writes the Gram matrices of RegMean++ (Nguyen et al., arXiv 2508.03121): like those of [Gram] of every
// model on its own text, but the inputs of a block are what the blocks below it give once they are merged, so that
// layers are merged for what they will get. A recipe by regmean with these files and the same alpha makes the merge
// that they were collected on.
//
// into is the first model once more, in which the blocks are merged one after the other; the file of a model is
// paths[i]. Whatever is no linear layer of a block is averaged. Memory holds the hidden states of all windows, and one
// block's matrices.
func MergedGrams(ctx context.Context, models []*lm.Model, into *lm.Model, data []corpus.Windows, paths []string,
	alpha float64, o StatisticsOptions,
) error {
	if len(models) < 2 || len(data) != len(models) || len(paths) != len(models) {
		return fmt.Errorf("%w: %d models, %d texts and %d files", ErrNoData, len(models), len(data), len(paths))
	}
	if !(alpha >= 0 && alpha <= 1) {
		return fmt.Errorf("alpha is %g; it must be 0 to 1", alpha)
	}
	for _, d := range data {
		if len(d.IDs) == 0 {
			return ErrNoData
		}
	}

	r := &mergedGrams{models: models, into: into, alpha: alpha}
	defer r.free()
	if err := r.begin(ctx, data, paths, o.Overwrite); err != nil {
		return err
	}

	for b := range into.Blocks() {
		if err := r.block(ctx, b); err != nil {
			return fmt.Errorf("block %d: %w", b, err)
		}
		if o.Progress != nil {
			o.Progress(int64(b+1), int64(into.Blocks()))
		}
	}

	for _, w := range r.files {
		if err := w.Finish(); err != nil {
			return err
		}
	}
	return nil
}

// mergedGrams is the state of MergedGrams.
type mergedGrams struct {
	models []*lm.Model
	into   *lm.Model
	alpha  float64
	hidden []*lm.Hidden // what the merged blocks give for each model's text
	files  []*safetensors.Writer
}

func (r *mergedGrams) free() {
	for _, h := range r.hidden {
		h.Free()
	}
	for _, w := range r.files {
		_ = w.Abort() // nothing to do for those that are finished
	}
}

// begin averages what no block has, and embeds the texts.
func (r *mergedGrams) begin(ctx context.Context, data []corpus.Windows, paths []string, overwrite bool) error {
	names := r.into.Tensors()
	for _, m := range r.models {
		if !slices.Equal(names, m.Tensors()) {
			return fmt.Errorf("%s and %s: %w", r.into.Path(), m.Path(), ErrUnlike)
		}
	}

	linear := map[string]bool{}
	for b := range r.into.Blocks() {
		for _, l := range r.into.Linears(b) {
			linear[l.Name] = true
		}
	}
	for _, name := range names {
		if !linear[name] {
			if err := r.average(name); err != nil {
				return err
			}
		}
	}

	for i, d := range data {
		h, err := r.into.Embed(d.IDs)
		if err != nil {
			return err
		}
		r.hidden = append(r.hidden, h)

		owner, err := r.models[i].Fingerprint(ctx)
		if err != nil {
			return err
		}
		w, err := safetensors.Create(paths[i], gramInfos(r.into, ""), map[string]string{
			"format": "pt", "statistic": "gram", "data": d.Hash, "merged": "regmean", job.OwnerKey: owner,
		}, safetensors.Options{Overwrite: overwrite})
		if err != nil {
			return err
		}
		r.files = append(r.files, w)
	}
	return nil
}

// values are those of a parameter as it is stored.
func values(m *lm.Model, name string) ([]float32, error) {
	p, err := m.Param(name)
	if err != nil {
		return nil, err
	}

	raw := make([]byte, p.Len()*p.DType().Size())
	if err := m.Device().Download(raw, p.Buf, p.Off); err != nil {
		return nil, err
	}
	buf, err := kernels.Wrap(p.DType(), raw)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", name, err)
	}

	out := make([]float32, p.Len())
	for i, v := range linalg.FromMat(kernels.MatOf(buf, 1, p.Len())).Data {
		out[i] = float32(v)
	}
	return out, nil
}

// set gives the merged model a parameter, rounded to its type.
func (r *mergedGrams) set(name string, v []float32) error {
	p, err := r.into.MutableParam(name)
	if err != nil {
		return err
	}

	var raw []byte
	for _, x := range v {
		switch p.DType() {
		case kernels.F32:
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		case kernels.BF16:
			raw = binary.LittleEndian.AppendUint16(raw, kernels.ToBF16(x))
		case kernels.F16:
			raw = binary.LittleEndian.AppendUint16(raw, kernels.ToF16(x))
		default:
			return fmt.Errorf("tensor %q of %s cannot be merged in memory", name, p.DType())
		}
	}
	if err := r.into.Device().Upload(p.Buf, p.Off, raw); err != nil {
		return err
	}
	p.Buf.Changed()
	return nil
}

// average makes a parameter the mean of all models'.
func (r *mergedGrams) average(name string) error {
	var sum []float64
	for _, m := range r.models {
		v, err := values(m, name)
		if err != nil {
			return err
		}
		if sum == nil {
			sum = make([]float64, len(v))
		}
		if len(v) != len(sum) {
			return fmt.Errorf("tensor %q of %s: %w", name, m.Path(), ErrUnlike)
		}
		for i, x := range v {
			sum[i] += float64(x)
		}
	}

	mean := make([]float32, len(sum))
	for i, x := range sum {
		mean[i] = float32(x / float64(len(r.models)))
	}
	return r.set(name, mean)
}

// block collects a block's matrices from every model, merges the block, and runs it.
func (r *mergedGrams) block(ctx context.Context, b int) error {
	grams := map[string][][]float32{}
	for i, m := range r.models {
		sums, err := r.collect(ctx, i, b)
		if err != nil {
			return err
		}

		err = sums.write(r.files[i], "")
		for _, l := range m.Linears(b) {
			if err != nil {
				break
			}
			var g []float32
			g, err = sums.mean(l)
			grams[l.Name] = append(grams[l.Name], g)
		}
		sums.free()
		if err != nil {
			return err
		}
	}

	for _, l := range r.into.Linears(b) {
		if err := r.merge(l, grams[l.Name]); err != nil {
			return fmt.Errorf("tensor %q: %w", l.Name, err)
		}
	}
	for _, m := range r.models {
		m.ReleaseBlock(b, false)
	}

	for _, h := range r.hidden {
		if err := r.into.RunBlock(ctx, b, h, nil); err != nil {
			return err
		}
	}
	return nil
}

// collect runs one model's block on a copy of what the merged blocks give.
func (r *mergedGrams) collect(ctx context.Context, i, b int) (*gramSums, error) {
	h, dev := r.hidden[i], r.into.Device()
	buf, err := dev.Alloc(kernels.F32, h.X.Len())
	if err != nil {
		return nil, err
	}

	own := &lm.Hidden{X: kernels.MatOf(buf, h.X.Rows, h.X.Cols), Lens: h.Lens}
	defer own.Free()
	rows := make([]int32, h.X.Rows)
	for k := range rows {
		rows[k] = int32(k)
	}
	dev.Ops().Gather(own.X, h.X, rows, 1)

	return gramBlock(ctx, r.models[i], b, own)
}

// merge solves for a layer, as the method regmean does. A layer that no token of any text reaches is averaged.
func (r *mergedGrams) merge(l lm.Linear, grams [][]float32) error {
	var all [][]float32
	for _, m := range r.models {
		v, err := values(m, l.Name)
		if err != nil {
			return err
		}
		if len(v) != l.In*l.Out {
			return fmt.Errorf("%s: %w", m.Path(), ErrUnlike)
		}
		all = append(all, v)
	}

	reached := false
	for _, g := range grams {
		for i := range l.In {
			reached = reached || g[i*l.In+i] != 0
		}
	}
	if !reached {
		return r.average(l.Name)
	}

	out := make([]float32, l.In*l.Out)
	if err := spectral.RegMean(out, all, grams, l.In, r.alpha, l.Transposed, linalg.Solver{}); err != nil {
		return err
	}
	return r.set(l.Name, out)
}
