package merge

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/safetensors"
)

// ErrNoData: statistics were asked for without text.
var ErrNoData = errors.New("no windows to collect statistics from")

// errStatistic is [ErrNonFinite] with what can be done about it here.
var errStatistic = fmt.Errorf("%w%w", failure.New("", "compress inspect --verify names the tensors"), ErrNonFinite)

// StatisticsOptions are the choices of Fisher and Gram. The zero value is ready.
type StatisticsOptions struct {
	// bytes of sums held at a time; 0: DefaultMemory. Less takes more passes, with the same result
	Memory    int64
	Progress  func(done, total int64) // windows, or blocks; may be nil
	Overwrite bool                    // replace files that are there
}

// Fisher writes the diagonal Fisher information of a model to a safetensors file, for the method fisher: for
// every parameter the mean over windows of the squared gradient of the window's mean loss, F32, under the
// parameter's name.
func Fisher(ctx context.Context, m *lm.Model, data corpus.Windows, path string, o StatisticsOptions) error {
	return collect(ctx, m, data, path, "fisher", o)
}

// Gram writes the Gram matrices of the inputs of a model's linear layers to a safetensors file, for the method
// regmean: XᵀX divided by the number of tokens, F32 [in, in], under the name of the layer's weight. Blocks are
// run one after the other, so that the sums of one block and the hidden states of the windows are all that is
// held.
func Gram(ctx context.Context, m *lm.Model, data corpus.Windows, path string, o StatisticsOptions) error {
	return collect(ctx, m, data, path, "gram", o)
}

// FisherAndGram writes both to one file, which either method takes: Gram matrices under names with the prefix
// [job.GramPrefix].
func FisherAndGram(ctx context.Context, m *lm.Model, data corpus.Windows, path string, o StatisticsOptions) error {
	return collect(ctx, m, data, path, job.BothStatistics, o)
}

// collect writes the statistics of a kind.
func collect(ctx context.Context, m *lm.Model, data corpus.Windows, path, kind string, o StatisticsOptions) error {
	if len(data.IDs) == 0 {
		return ErrNoData
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}

	prefix := ""
	if kind == job.BothStatistics {
		prefix = job.GramPrefix
	}

	var infos []safetensors.Info
	f := &fisherRun{model: m, data: data, o: o}
	if kind != "gram" {
		list, passes, err := f.plan()
		if err != nil {
			return err
		}
		infos, f.total = list, int64(passes)*int64(len(data.IDs))
	}
	if kind != "fisher" {
		infos = append(infos, gramInfos(m, prefix)...)
	}

	owner, err := m.Fingerprint(ctx)
	if err != nil {
		return err
	}
	w, err := safetensors.Create(path, infos,
		map[string]string{"format": "pt", "statistic": kind, "data": data.Hash, job.OwnerKey: owner},
		safetensors.Options{Overwrite: o.Overwrite})
	if err != nil {
		return err
	}
	defer w.Abort()

	if kind != "gram" {
		for names := f.next(); len(names) > 0; names = f.next() {
			if err := f.pass(ctx, w, names); err != nil {
				return err
			}
		}
	}
	if kind != "fisher" {
		if err := grams(ctx, m, data, w, prefix, o); err != nil {
			return err
		}
	}

	return w.Finish()
}

// fisherRun is the state of Fisher.
type fisherRun struct {
	model       *lm.Model
	data        corpus.Windows
	o           StatisticsOptions
	names       []string
	sizes       []int64
	at          int // of the first name that is left
	done, total int64
}

// plan lists the parameters, and counts the passes that the memory needs.
func (f *fisherRun) plan() (infos []safetensors.Info, passes int, err error) {
	for _, name := range f.model.Tensors() {
		info, ok := f.model.Info(name)
		if !ok {
			return nil, 0, fmt.Errorf("tensor %q: %w", name, safetensors.ErrUnknownTensor)
		}

		size := 4 * info.Elements()
		if size > f.o.Memory {
			return nil, 0, fmt.Errorf("tensor %q needs %d MiB of sums: %w", name, size>>20, ErrMemory)
		}

		f.names, f.sizes = append(f.names, name), append(f.sizes, size)
		infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: info.Shape})
	}

	for len(f.next()) > 0 {
		passes++
	}

	f.at = 0
	return infos, passes, nil
}

// next gives the names whose sums fit the memory together, nil after the last.
func (f *fisherRun) next() []string {
	first, used := f.at, int64(0)
	for f.at < len(f.names) && used+f.sizes[f.at] <= f.o.Memory {
		used += f.sizes[f.at]
		f.at++
	}
	return f.names[first:f.at]
}

// pass sums the squared gradients of some parameters over all windows and writes the means.
func (f *fisherRun) pass(ctx context.Context, w *safetensors.Writer, names []string) error {
	dev := f.model.Device()
	sums := map[string]kernels.Mat{}
	defer func() {
		for _, s := range sums {
			s.Buf.Free()
		}
	}()

	for _, name := range names {
		p, err := f.model.Param(name)
		if err != nil {
			return err
		}

		buf, err := dev.Alloc(kernels.F32, p.Len())
		if err != nil {
			return err
		}

		sums[name] = kernels.MatOf(buf, p.Rows, p.Cols)
	}

	hooks := &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
		dev.Ops().AddSquare(sums[name], g, 1)
		return nil
	}}

	want := func(name string) bool { _, ok := sums[name]; return ok }
	for _, ids := range f.data.IDs {
		if _, err := f.model.Backward(ctx, [][]int32{ids}, lm.BackwardOptions{Hooks: hooks, Want: want}); err != nil {
			return err
		}

		f.done++
		if f.o.Progress != nil {
			f.o.Progress(f.done, f.total)
		}
	}

	for _, name := range names {
		if err := writeMean(w, dev, name, sums[name], float64(len(f.data.IDs))); err != nil {
			return err
		}
	}

	return nil
}

// writeMean writes sums divided by a count.
func writeMean(w *safetensors.Writer, dev kernels.Device, name string, sums kernels.Mat, count float64) error {
	values, err := mean(dev, name, sums, count)
	if err != nil {
		return err
	}
	return w.WriteTensor(name, bytesOf(values))
}

// bytesOf are those of values in memory.
func bytesOf(values []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values))
}

// mean is sums divided by a count.
func mean(dev kernels.Device, name string, sums kernels.Mat, count float64) ([]float32, error) {
	if err := dev.Ops().Sync(); err != nil {
		return nil, err
	}

	values := make([]float32, sums.Len())
	if err := dev.Download(bytesOf(values), sums.Buf, sums.Off); err != nil {
		return nil, err
	}

	bad := 0
	for i := range values {
		values[i] = float32(float64(values[i]) / count)
		if values[i]-values[i] != 0 {
			bad++
		}
	}

	if bad > 0 {
		return nil, fmt.Errorf("tensor %q: %d of %d statistics are not finite, since weights or activations of the "+
			"model are not: %w",
			name, bad, len(values), errStatistic)
	}

	return values, nil
}

// gramInfos are the Gram matrices of a model.
func gramInfos(m *lm.Model, prefix string) (infos []safetensors.Info) {
	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			infos = append(infos, safetensors.Info{
				Name: prefix + l.Name, DType: safetensors.F32, Shape: []int64{int64(l.In), int64(l.In)},
			})
		}
	}
	return infos
}

// grams runs a model block by block and writes its Gram matrices.
func grams(ctx context.Context, m *lm.Model, data corpus.Windows, w *safetensors.Writer, prefix string,
	o StatisticsOptions,
) error {
	h, err := m.Embed(data.IDs)
	if err != nil {
		return err
	}
	defer h.Free()

	for b := range m.Blocks() {
		sums, err := gramBlock(ctx, m, b, h)
		if err == nil {
			err = sums.write(w, prefix)
			sums.free()
		}
		if err != nil {
			return err
		}

		m.ReleaseBlock(b, false)
		if o.Progress != nil {
			o.Progress(int64(b+1), int64(m.Blocks()))
		}
	}

	return nil
}

// gramSums are XᵀX of the inputs of a block's layers.
type gramSums struct {
	m      *lm.Model
	block  int
	sums   map[string]kernels.Mat
	tokens map[string]int
}

// gramBlock runs a block and sums the matrices of its layers. An expert that no token reaches has a matrix of zeros.
func gramBlock(ctx context.Context, m *lm.Model, b int, h *lm.Hidden) (*gramSums, error) {
	dev := m.Device()
	g := &gramSums{m: m, block: b, sums: map[string]kernels.Mat{}, tokens: map[string]int{}}
	for _, l := range m.Linears(b) {
		buf, err := dev.Alloc(kernels.F32, l.In*l.In)
		if err != nil {
			g.free()
			return nil, err
		}
		g.sums[l.Name] = kernels.MatOf(buf, l.In, l.In)
	}

	hooks := &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		dev.Ops().MatMulTN(g.sums[l.Name], x, x, kernels.MatMul{Accumulate: true})
		g.tokens[l.Name] += x.Rows
	}}

	if err := m.RunBlock(ctx, b, h, hooks); err != nil {
		g.free()
		return nil, err
	}

	return g, nil
}

func (g *gramSums) free() {
	for _, s := range g.sums {
		s.Buf.Free()
	}
}

// mean is the Gram matrix of a layer, divided by its tokens.
func (g *gramSums) mean(l lm.Linear) ([]float32, error) {
	return mean(g.m.Device(), l.Name, g.sums[l.Name], float64(max(1, g.tokens[l.Name])))
}

// write writes the matrices of a block.
func (g *gramSums) write(w *safetensors.Writer, prefix string) error {
	for _, l := range g.m.Linears(g.block) {
		values, err := g.mean(l)
		if err == nil {
			err = w.WriteTensor(prefix+l.Name, bytesOf(values))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
