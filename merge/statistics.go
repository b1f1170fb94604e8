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
	"github.com/modelcompress/compress/safetensors"
)

// ErrNoData: statistics were asked for without text.
var ErrNoData = errors.New("no windows to collect statistics from")

// errStatistic is [ErrNonFinite] with what can be done about it here.
var errStatistic = fmt.Errorf("%w%w", failure.New("", "compress inspect --verify names the tensors"), ErrNonFinite)

// StatisticsOptions are the choices of Fisher and Gram. The zero value is ready.
type StatisticsOptions struct {
	// bytes of sums held at a time; 0: DefaultMemory. Less takes more passes, with the same result
	Memory   int64
	Progress func(done, total int64) // windows, or blocks; may be nil
}

// Fisher writes the diagonal Fisher information of a model to a safetensors file, for the method fisher: for
// every parameter the mean over windows of the squared gradient of the window's mean loss, F32, under the
// parameter's name.
func Fisher(ctx context.Context, m *lm.Model, data corpus.Windows, path string, o StatisticsOptions) error {
	if len(data.IDs) == 0 {
		return ErrNoData
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}

	f := &fisherRun{model: m, data: data, o: o}
	infos, passes, err := f.plan()
	if err != nil {
		return err
	}

	f.total = int64(passes) * int64(len(data.IDs))
	w, err := safetensors.Create(path, infos,
		map[string]string{"format": "pt", "statistic": "fisher", "data": data.Hash}, safetensors.Options{})
	if err != nil {
		return err
	}
	defer w.Abort()

	for names := f.next(); len(names) > 0; names = f.next() {
		if err := f.pass(ctx, w, names); err != nil {
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
	if err := dev.Ops().Sync(); err != nil {
		return err
	}

	values := make([]float32, sums.Len())
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values))
	if err := dev.Download(raw, sums.Buf, sums.Off); err != nil {
		return err
	}

	bad := 0
	for i := range values {
		values[i] = float32(float64(values[i]) / count)
		if values[i]-values[i] != 0 {
			bad++
		}
	}

	if bad > 0 {
		return fmt.Errorf("tensor %q: %d of %d statistics are not finite, since weights or activations of the "+
			"model are not: %w",
			name, bad, len(values), errStatistic)
	}

	return w.WriteTensor(name, raw)
}

// Gram writes the Gram matrices of the inputs of a model's linear layers to a safetensors file, for the method
// regmean: XᵀX divided by the number of tokens, F32 [in, in], under the name of the layer's weight. Blocks are
// run one after the other, so that the sums of one block and the hidden states of the windows are all that is
// held.
func Gram(ctx context.Context, m *lm.Model, data corpus.Windows, path string, o StatisticsOptions) error {
	if len(data.IDs) == 0 {
		return ErrNoData
	}

	var infos []safetensors.Info
	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			infos = append(infos,
				safetensors.Info{Name: l.Name, DType: safetensors.F32, Shape: []int64{int64(l.In), int64(l.In)}})
		}
	}

	w, err := safetensors.Create(path, infos, map[string]string{"format": "pt", "statistic": "gram", "data": data.Hash},
		safetensors.Options{})
	if err != nil {
		return err
	}
	defer w.Abort()

	h, err := m.Embed(data.IDs)
	if err != nil {
		return err
	}

	for b := range m.Blocks() {
		if err := gramBlock(ctx, m, b, h, w); err != nil {
			return err
		}

		m.ReleaseBlock(b, false)
		if o.Progress != nil {
			o.Progress(int64(b+1), int64(m.Blocks()))
		}
	}

	return w.Finish()
}

// gramBlock runs a block and writes the matrices of its layers. An expert that no token reaches has a matrix of zeros.
func gramBlock(ctx context.Context, m *lm.Model, b int, h *lm.Hidden, w *safetensors.Writer) error {
	dev := m.Device()
	sums, tokens := map[string]kernels.Mat{}, map[string]int{}
	defer func() {
		for _, s := range sums {
			s.Buf.Free()
		}
	}()

	for _, l := range m.Linears(b) {
		buf, err := dev.Alloc(kernels.F32, l.In*l.In)
		if err != nil {
			return err
		}
		sums[l.Name] = kernels.MatOf(buf, l.In, l.In)
	}

	hooks := &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		dev.Ops().MatMulTN(sums[l.Name], x, x, kernels.MatMul{Accumulate: true})
		tokens[l.Name] += x.Rows
	}}

	if err := m.RunBlock(ctx, b, h, hooks); err != nil {
		return err
	}

	for _, l := range m.Linears(b) {
		if err := writeMean(w, dev, l.Name, sums[l.Name], float64(max(1, tokens[l.Name]))); err != nil {
			return err
		}
	}

	return nil
}
