package lora

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/combine"
)

// GGUFOptions of [ExportGGUF].
type GGUFOptions struct {
	Model     string    // folder or file of the base
	Type      gguf.Type // F32, F16, BF16 or Q8_0, in which rows that no block divides are F16; the zero value is F32
	Rank      int       // cut to a rank; 0: as it is
	Threads   int       // CPU threads; 0: one for each processor
	Overwrite bool      // replace a file that is there
}

// GGUFTypes lists the types that [ExportGGUF] writes, by their names in small letters.
func GGUFTypes() []string { return []string{"f32", "f16", "bf16", "q8_0"} }

// ExportGGUF writes an adapter of any kind as the GGUF file that llama.cpp and ollama load beside the base. The factors
// of all kinds are put together as [Export] does; the format has one alpha for all modules, and what a module is scaled
// with beside it goes into its factor B. What llama.cpp does not load, or loads and passes over, is refused.
func ExportGGUF(ctx context.Context, dir, out string, o GGUFOptions) (*ExportReport, error) {
	if o.Model == "" {
		return nil, failure.Hinted(fmt.Errorf("%w: a GGUF file has the names of its base's", ErrOption),
			"--model names the base")
	}
	base, err := openBase(ctx, o.Model)
	if err != nil {
		return nil, err
	}
	defer closeBase(base)

	a, notes, err := load(dir, base)
	if err != nil {
		return nil, err
	}
	r := &ExportReport{
		Adapter: dir, Out: out, Kind: string(a.Config.Kind), Modules: len(a.Low), Trained: a.Count(), Notes: notes,
	}
	if a, err = r.cut(ctx, a, o.Rank, o.Threads); err != nil {
		return nil, err
	}

	changes, err := r.changes(a, base)
	if err != nil {
		return nil, err
	}
	plan, err := ggufmodel.NewAdapter(base.Dir, base.Config, base.Layout.Params, changes)
	if err != nil {
		return nil, err
	}

	for _, p := range plan.Pairs {
		r.Rank = max(r.Rank, p.Rank)
		r.Exported += product(p.A) + product(p.B)
	}
	folded := plan.Folded()
	if folded > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("the file has one alpha, %v: what %d of %d modules are scaled with "+
			"beside it is in lora_b", plan.Alpha, folded, len(a.Low)))
	}
	if a.Config.KeepZeros {
		r.Notes = append(r.Notes, unmasked)
	}
	r.Exact = o.Rank == 0 && folded == 0 && o.Type == gguf.F32

	return r, plan.Write(ctx, out, ggufmodel.AdapterOptions{
		Name: folderName(dir), Base: folderName(base.Dir), Type: o.Type, Overwrite: o.Overwrite,
	})
}

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// cut reduces the factors to a rank, 0 for none.
func (r *ExportReport) cut(ctx context.Context, a *adapter.Adapter, rank, threads int) (*adapter.Adapter, error) {
	if most := a.MaxRank(); rank > most {
		return nil, fmt.Errorf("%w: rank %d to cut to, but the adapter has %d", ErrOption, rank, most)
	}
	if rank == 0 {
		return a, nil
	}

	whole := combine.Named{Name: r.Adapter, Adapter: a}
	cut, err := combine.Cut(ctx, whole, rank, threads)
	if err != nil {
		return nil, err
	}
	r.Truncation = combinedModules([]combine.Named{whole}, cut)
	r.Exact = false
	return cut.Adapter, nil
}

// changes lists what an adapter changes in the base's matrices, and refuses what is no product of two factors.
func (r *ExportReport) changes(a *adapter.Adapter, base *adapter.Checkpoint) (map[string]ggufmodel.Change, error) {
	fault := func(what, name string) error {
		return failure.Hinted(fmt.Errorf("%s: %w: %s of %s, which the adapters of llama.cpp do not have", r.Adapter,
			ErrUnsupported, what, name), "lora fold writes it into the weights, and quantize makes a GGUF file of them")
	}

	changes := map[string]ggufmodel.Change{}
	for _, l := range a.Low {
		switch {
		case l.Magnitude != nil:
			return nil, fault("lengths of rows (DoRA)", l.Module.Path)
		case l.Bias != nil:
			return nil, fault("a bias beside B", l.Module.Path)
		case l.Module.Tied:
			return nil, fault("a change of a tied head", l.Module.Path)
		}
		changes[l.Module.Tensor] = ggufmodel.Change{
			Rank: l.Rank, Scale: l.Scale, Factors: func() ([]float32, []float32, error) { return sides(l) },
		}
	}
	for _, w := range a.Whole {
		same, err := w.Frozen, error(nil)
		if same {
			same, err = unchanged(w, base)
		}
		if err != nil {
			return nil, err
		}
		if !same {
			return nil, fault("a trained copy", w.Tensor)
		}
		r.Notes = append(r.Notes, fmt.Sprintf("%s is the base's own and left out", w.Tensor))
	}
	for _, x := range a.Rows {
		return nil, fault("trained rows", x.Module.Path)
	}

	return changes, nil
}

// sides gives the factors of a matrix [outputs, inputs], or of a table [tokens, width].
func sides(l *adapter.Low) (left, right []float32, err error) {
	a, b := l.Pair()
	if !l.Module.Table {
		return b.Buf.F32(), a.Buf.F32(), nil
	}
	return across(a.Buf.F32(), a.Rows, a.Cols), across(b.Buf.F32(), b.Rows, b.Cols), nil
}

// across is a matrix [rows, cols] as [cols, rows].
func across(x []float32, rows, cols int) []float32 {
	out := make([]float32, len(x))
	for i := range rows {
		for j := range cols {
			out[j*rows+i] = x[i*cols+j]
		}
	}
	return out
}

// unchanged reports whether a tensor that an adapter has along is as in the base.
func unchanged(w *adapter.Whole, base *adapter.Checkpoint) (bool, error) {
	have, err := stored{base}.Values(w.Tensor)
	if err != nil {
		return false, err
	}
	return slices.Equal(have.Buf.F32(), w.Value.Data()), nil
}

// isFile reports whether an adapter is named by a file, one of llama.cpp's.
func isFile(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && !stat.IsDir()
}

// basis is the base of an adapter whose names are those of a GGUF file.
type basis struct {
	config  *arch.Config
	params  []arch.Param
	modules []adapter.Module
}

// basisOf is a base in a folder; nil: there is none.
func basisOf(base *adapter.Checkpoint) *basis {
	if base == nil {
		return nil
	}
	return &basis{base.Config, base.Layout.Params, base.Modules}
}

// loadFile reads an adapter of llama.cpp's for a base; nil: there is none.
func loadFile(path string, base *basis) (*adapter.Adapter, error) {
	if !strings.HasSuffix(path, ".gguf") {
		return nil, fmt.Errorf("%s: %w", path, errFile)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	switch {
	case !ggufmodel.IsAdapter(f):
		return nil, fmt.Errorf("%s: %w", path, errFile)
	case base == nil:
		return nil, failure.Hinted(fmt.Errorf("%s: %w: the names of a GGUF file are not those of modules", path,
			ErrUnsupported), "--model names the base")
	}

	changes, err := ggufmodel.ReadAdapter(f, base.config, base.params)
	if err != nil {
		return nil, err
	}

	a := &adapter.Adapter{Config: adapter.Config{Kind: adapter.LoRA, Biases: adapter.NoBias, Base: baseOf(f)}}
	for _, m := range base.modules {
		c, ok := changes[m.Tensor]
		if !ok || m.Tied {
			continue
		}
		low, err := lowOf(m, c)
		if err != nil {
			return nil, err
		}
		a.Low = append(a.Low, low)
		a.Config.Targets.Names = append(a.Config.Targets.Names, m.Path)
		delete(changes, m.Tensor)
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		return nil, fmt.Errorf("%s: %w: it changes %s, which is no matrix that is adapted here", path, ErrUnsupported,
			name)
	}
	if len(a.Low) == 0 {
		return nil, fmt.Errorf("%s: %w: it has no factors", path, ErrFile)
	}

	a.Config.Rank = a.Low[0].Rank
	a.Config.Alpha = a.Low[0].Alpha
	return a, nil
}

// baseOf is the name that a file has for its base.
func baseOf(f *gguf.File) string {
	v, _ := f.Metadata().Get("general.base_model.0.name")
	name, _ := v.Text()
	return name
}

// lowOf makes plain factors of a change.
func lowOf(m adapter.Module, c ggufmodel.Change) (*adapter.Low, error) {
	left, right, err := c.Factors()
	if err != nil {
		return nil, err
	}

	nameA, nameB := ".lora_A.weight", ".lora_B.weight"
	if m.Table {
		nameA, nameB = ".lora_embedding_A", ".lora_embedding_B"
		a := across(left, m.In, c.Rank)
		left = across(right, c.Rank, m.Out)
		right = a
	}
	a := adapter.NewParam(m.Path+nameA, c.Rank, m.In)
	b := adapter.NewParam(m.Path+nameB, m.Out, c.Rank)
	copy(a.Data(), right)
	copy(b.Data(), left)

	return &adapter.Low{
		Module: m, Rank: c.Rank, Alpha: c.Scale * float64(c.Rank), Scale: c.Scale, Factors: adapter.Plain{A: a, B: b},
	}, nil
}

// fileTypes lists the element types in a GGUF file, sorted.
func fileTypes(path string) ([]string, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	var types []string
	for _, n := range f.Names() {
		info, _ := f.Info(n)
		types = append(types, info.Type.String())
	}
	slices.Sort(types)
	return slices.Compact(types), nil
}
