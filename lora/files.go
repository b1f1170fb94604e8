package lora

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/combine"
	"github.com/modelcompress/compress/lora/internal/extract"
	"github.com/modelcompress/compress/lora/internal/fold"
	"github.com/modelcompress/compress/lora/internal/infer"
	"github.com/modelcompress/compress/lora/internal/mosfile"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which work on adapter files can be refused.
var (
	ErrExists  = stage.ErrExists   // there is something at the place of the output
	ErrMethod  = combine.ErrMethod // unknown way of combining
	ErrOption  = combine.ErrOption // an option that does not fit the way of combining
	ErrRanks   = combine.ErrRanks  // adapters differ in rank where they must not
	ErrRefused = combine.ErrRefused
	// ErrExtract: an option of an extraction is out of range.
	ErrExtract = extract.ErrOption
)

// Fold writes the checkpoint in the folder model with an adapter of any kind folded into its weights to the
// folder out. The weights keep their element types; one block of rows is in memory at a time, beside the
// adapter. An interrupted run is continued with Resume, to the same bytes. An adapter that says it was trained
// on other weights is refused (ErrOtherBase) unless that is allowed. The errors wrap this package's, those of
// package safetensors and of [lm.OpenFolder].
func Fold(ctx context.Context, model, dir, out string, o FoldOptions) (*FoldReport, error) {
	base, err := adapter.OpenCheckpoint(model)
	if err != nil {
		return nil, err
	}
	defer base.Close()

	a, notes, sum, err := loadSummed(dir, base)
	if err != nil {
		return nil, err
	}

	weights, err := lm.Fingerprint(ctx, base.Dir, base.Source)
	if err != nil {
		return nil, err
	}

	remark := otherBase(&a.Config, weights)
	if err := refuseOther(remark, o.AllowOtherBase); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if remark == "" {
		remark = otherName(&a.Config, base.Dir)
	}
	if remark != "" {
		notes = append(notes, remark)
	}

	r, err := fold.Run(ctx, base, a, out, o.of(foldJob(weights, sum, o)))
	if err != nil {
		return nil, err
	}

	return foldReport(model, dir, append(notes, zerosOf(r)...), r), nil
}

// zerosOf are the remarks about zeros of the base: what was left out to keep them, or that they are gone.
func zerosOf(r *fold.Report) []string {
	z := r.Zeros
	switch {
	case z == nil:
		return nil
	case z.Kept && z.Lost > 0:
		return []string{fmt.Sprintf("zeros of the base are kept: what the adapter would put there, %.1f %% of the "+
			"norm of its change, is left out", 100*z.Lost)}
	case !z.Kept && z.Pruned > 0 && z.After < z.Before:
		return []string{fmt.Sprintf("%d of the changed matrices are pruned, and the adapter fills them: %.1f %% "+
			"zeros before, %.1f %% after (HINT: --keep-zeros keeps them; lora train --keep-zeros makes an adapter "+
			"that loses nothing by it)", z.Pruned, percent(z.Before, z.Elements), percent(z.After, z.Elements))}
	}

	return nil
}

func percent(part, all int64) float64 { return 100 * float64(part) / float64(max(all, 1)) }

// foldJob identifies the work of folding by all that the output depends on: what is in the files, wherever they lie.
func foldJob(weights, adapter string, o FoldOptions) string {
	text := fmt.Appendf(nil, "fold 3\n%s\n%s\n%v %d\n", weights, adapter, o.Safe, o.MaxShardSize)
	if o.KeepZeros {
		text = append(text, "keep zeros\n"...)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// loadSummed loads an adapter and says what its files hold. Summed before and after, since another process may
// be writing them: the sum names what was loaded.
func loadSummed(dir string, base *adapter.Checkpoint) (a *adapter.Adapter, notes []string, sum string, err error) {
	before, err := contents(dir)
	if err != nil {
		return nil, nil, "", err
	}

	if a, notes, err = load(dir, base); err != nil {
		return nil, nil, "", err
	}
	if sum, err = contents(dir); err == nil && sum != before {
		err = fmt.Errorf("%w %s: it changed while it was read", adapter.ErrFile, filepath.Join(dir, peft.WeightsName))
	}

	return a, notes, sum, err
}

// contents sums up what an adapter's files say, without the paths in them.
func contents(dir string) (string, error) {
	h := sha256.New()
	settings, err := peft.Settings(dir)
	if err != nil {
		return "", err
	}

	fmt.Fprintf(h, "%s\n", settings)
	f, err := safefile.Open(filepath.Join(dir, peft.WeightsName))
	if err != nil {
		return "", err
	}
	defer f.Close()

	n, err := io.Copy(h, f)
	fmt.Fprintf(h, "\n%d\n", n)
	return hex.EncodeToString(h.Sum(nil)), err
}

// load reads an adapter of any kind for a base, with notes on what was accepted without effect. Without a base
// (nil), the modules are those that the files imply.
func load(dir string, base *adapter.Checkpoint) (*adapter.Adapter, []string, error) {
	kind, err := mosfile.Type(dir)
	if err != nil {
		return nil, nil, err
	}

	switch {
	case !mosfile.Handles(kind) && base == nil:
		return peft.ReadAlone(dir)
	case !mosfile.Handles(kind):
		return peft.ReadOn(dir, base.Modules, stored{base}.Values)
	case base != nil:
		a, err := mosfile.Read(dir, stored{base})
		return a, nil, err
	case kind != "MOS":
		return nil, nil, fmt.Errorf("%s: %w: the sizes of a %s adapter are those of its base (HINT: --model names it)",
			dir, ErrUnsupported, kind)
	}

	return loadPools(dir)
}

// loadPools reads a Mixture of Shards without its base.
func loadPools(dir string) (*adapter.Adapter, []string, error) {
	f, err := safetensors.Open(filepath.Join(dir, mosfile.ModelName))
	if err != nil {
		return nil, nil, err
	}

	modules, names, err := infer.Modules(f)
	closed := f.Close()
	if err == nil {
		err = closed
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dir, err)
	}

	a, err := mosfile.Read(dir, modules)
	if err != nil {
		return nil, nil, err
	}

	if a.Config.Layers != nil {
		return nil, nil, fmt.Errorf("%s: %w: it adapts some blocks only, which the files do not name (HINT: --model "+
			"names the base)", dir, ErrUnsupported)
	}

	return a, []string{fmt.Sprintf("module paths are those of %s (HINT: --model takes them from a base)", names)}, nil
}

// stored is a base in a folder as the readers of native adapters want it.
type stored struct{ *adapter.Checkpoint }

// Modules lists its matrices.
func (s stored) Modules() []adapter.Module { return s.Checkpoint.Modules }

// Shapes gives every parameter's name and shape.
func (s stored) Shapes() ([]string, map[string][]int64) {
	var names []string
	shapes := map[string][]int64{}
	for _, p := range s.Layout.Params {
		names = append(names, p.Name)
		shapes[p.Name] = p.Shape
	}
	return names, shapes
}

// Values reads a parameter in F32.
func (s stored) Values(name string) (kernels.Mat, error) {
	info, ok := s.Tensors.Info(name)
	if !ok || len(info.Shape) < 1 || len(info.Shape) > 2 {
		return kernels.Mat{}, fmt.Errorf("%s: %w: it has no matrix %.200q", s.Dir, ErrBase, name)
	}

	rows, cols := 1, int(info.Shape[len(info.Shape)-1])
	if len(info.Shape) == 2 {
		rows = int(info.Shape[0])
	}

	data, err := s.Tensors.Bytes(name)
	if err != nil {
		return kernels.Mat{}, err
	}

	p := adapter.NewParam(name, rows, cols)
	return p.Value, dtype.Decode(p.Data(), data, info.DType)
}

// ExtractOptions of [Extract].
type ExtractOptions struct {
	// of every matrix; at most what the largest can have, and one that is smaller is padded with zeros
	Rank      int
	Targets   []string          // names of matrices; nil: all linears of the blocks
	DType     safetensors.DType // of the factors; 0: F32
	Whole     bool              // other tensors that differ are kept whole, as modules_to_save
	Exact     bool              // whole decompositions instead of sketches
	Seed      uint64            // of the sketches
	Threads   int               // 0: all processors
	Overwrite bool              // replace an adapter that is there
	// Progress is told how many matrices are done; nil: nobody wants to know.
	Progress func(name string, done, total int64)
}

// Extract writes the LoRA that leads from one checkpoint to another of the same shape, as PEFT's folders are,
// to the folder out: each matrix' difference, cut to a rank by its singular values. One matrix is in memory at
// a time. The errors wrap this package's or those of package safetensors.
func Extract(ctx context.Context, base, tuned, out string, o ExtractOptions) (*ExtractReport, error) {
	b, err := adapter.OpenCheckpoint(base)
	if err != nil {
		return nil, err
	}
	defer b.Close()

	t, err := adapter.OpenCheckpoint(tuned)
	if err != nil {
		return nil, err
	}
	defer t.Close()

	r, err := extract.Run(ctx, b, t, out, extract.Options{
		Rank: o.Rank, Targets: adapter.Match{Names: o.Targets}, DType: o.DType, Whole: o.Whole, Exact: o.Exact,
		Seed: o.Seed, Threads: o.Threads,
		Overwrite: o.Overwrite, Base: base, Progress: o.Progress,
	})
	if err != nil {
		return nil, err
	}

	var chosen []adapter.Module
	for _, m := range r.Matrices {
		chosen = append(chosen, adapter.Module{Path: m.Path, Expert: -1})
	}

	notes := lostOn(b.Config.Arch, chosen).note(nil)
	if r.Rank < o.Rank {
		notes = append(notes,
			fmt.Sprintf("no matrix has a rank of %d: the adapter has %d, the most that one can have", o.Rank, r.Rank))
	}

	return extractReport(base, tuned, out, notes, r), nil
}

// CombineOptions of [Combine].
type CombineOptions struct {
	Method    string            // see [CombineMethods]
	Weights   []float64         // of the adapters; nil: 1 each
	Density   float64           // share of values that pruning keeps; 1: all; required where the method prunes
	Sign      string            // how ties elects signs: total (default) or frequency
	Rank      int               // of the methods that cut to a rank; 0: the largest of the adapters
	Seed      uint64            // of random pruning
	Threads   int               // 0: all processors
	DType     safetensors.DType // of the result; 0: F32
	Overwrite bool              // replace an adapter that is there
	Model     string            // folder of the base that the adapters must fit; "": they must fit each other
}

// CombineMethods lists the ways of combining adapters.
func CombineMethods() []string { return combine.Methods() }

// Combine writes one LoRA made of several adapters, of any kind, to the folder out: the combinations of PEFT,
// with its results. The result's scale is 1. One adapter with weight 1 comes back as it is. The errors wrap
// ErrMethod, ErrOption, ErrRanks, ErrRefused or this package's other ones.
func Combine(ctx context.Context, dirs []string, out string, o CombineOptions) (*CombineReport, error) {
	base, err := openBase(o.Model)
	if err != nil {
		return nil, err
	}
	defer closeBase(base)

	r := &CombineReport{Adapters: dirs, Out: out}
	var list []combine.Named
	for _, dir := range dirs {
		a, notes, err := load(dir, base)
		if err != nil {
			return nil, err
		}

		list = append(list, combine.Named{Name: dir, Adapter: a})
		for _, n := range notes {
			r.Notes = append(r.Notes, dir+": "+n)
		}
	}

	a, part, err := combine.Run(ctx, list, combine.Options{
		Method: o.Method, Weights: o.Weights, Density: o.Density, Sign: combine.Sign(o.Sign), Rank: o.Rank,
		Seed: o.Seed, Threads: o.Threads,
	})
	if err != nil {
		return nil, err
	}

	r.did(part)
	r.Notes = lostIn(base, a).note(r.Notes)
	if a.Config.KeepZeros {
		r.Notes = append(r.Notes, unmasked)
	}

	return r, peft.Write(out, a, peft.WriteOptions{DType: o.DType, Overwrite: o.Overwrite})
}

// openBase opens a base, nil where none is named.
func openBase(dir string) (*adapter.Checkpoint, error) {
	if dir == "" {
		return nil, nil
	}
	return adapter.OpenCheckpoint(dir)
}

func closeBase(c *adapter.Checkpoint) {
	if c != nil {
		c.Close()
	}
}

// ExportOptions of [Export].
type ExportOptions struct {
	Model     string            // folder of the base; "": modules as the files imply them
	DType     safetensors.DType // of the result; 0: F32
	Bake      bool              // the scale goes into B, for readers that do not scale as PEFT does
	Rank      int               // cut to a rank; 0: as it is
	Threads   int               // 0: all processors
	Overwrite bool              // replace an adapter that is there
	// WithExperts writes factors for experts also where PEFT passes over them; see [Export].
	WithExperts bool
}

// ExportReport says what [Export] wrote.
type ExportReport struct {
	Adapter    string           `json:"adapter"`
	Out        string           `json:"out"`
	Kind       string           `json:"kind"`
	Modules    int              `json:"modules"`
	Rank       int              `json:"rank"`
	Trained    int64            `json:"trained_parameters"`  // of the adapter
	Exported   int64            `json:"exported_parameters"` // of the factors that were written
	Exact      bool             `json:"exact"`               // factors and scale are the adapter's own
	Truncation []CombinedModule `json:"truncation,omitempty"`
	Notes      []string         `json:"notes,omitempty"`
}

// Export writes an adapter of any kind as a LoRA in PEFT's form to the folder out, with the keys only that
// every version knows. Without Rank nothing is lost: the factors of a Mixture of Shards are put together from
// its shards, which is copying. Factors for experts beside a shared expert, which PEFT does not load, are
// refused unless that is allowed; without Model a remark says so where the files do not tell. The errors wrap
// this package's.
func Export(ctx context.Context, dir, out string, o ExportOptions) (*ExportReport, error) {
	base, err := openBase(o.Model)
	if err != nil {
		return nil, err
	}
	defer closeBase(base)

	a, notes, err := load(dir, base)
	if err != nil {
		return nil, err
	}

	lost := lostIn(base, a)
	if lost.sure && !o.WithExperts {
		return nil, fmt.Errorf("%s: %w: %s (HINT: compress reads the adapter as it is, lora fold writes it into the "+
			"weights, and --with-experts exports it all the same)", dir, ErrUnsupported, lost.text)
	}

	notes = lost.note(notes)
	if a.Config.KeepZeros {
		notes = append(notes, unmasked)
	}

	r := &ExportReport{
		Adapter: dir, Out: out, Kind: string(a.Config.Kind), Modules: len(a.Low), Trained: a.Count(),
		Notes: notes, Exact: true,
	}
	if most := a.MaxRank(); o.Rank > most {
		return nil, fmt.Errorf("%w: rank %d to cut to, but the adapter has %d", ErrOption, o.Rank, most)
	}

	if o.Rank > 0 {
		cut, part, err := combine.Cut(ctx, combine.Named{Name: dir, Adapter: a}, o.Rank, o.Threads)
		if err != nil {
			return nil, err
		}
		a = cut
		r.Truncation = each(part.Modules, func(m combine.Module) CombinedModule { return CombinedModule(m) })
		r.Exact = false
	}

	for _, l := range a.Low {
		r.Rank = max(r.Rank, l.Rank)
		r.Exported += int64(l.Rank) * int64(l.Module.In+l.Module.Out)
	}

	if o.DType != 0 && o.DType != safetensors.F32 || o.Bake {
		r.Exact = false
	}

	return r, peft.Write(out, a, peft.WriteOptions{DType: o.DType, Bake: o.Bake, Overwrite: o.Overwrite})
}
