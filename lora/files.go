package lora

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/combine"
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
	ErrExtract = failure.Misuse("extraction option", "")
)

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
	path := dir // of an adapter in one file
	if !isFile(dir) {
		settings, err := peft.Settings(dir)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s\n", settings)
		path = filepath.Join(dir, peft.WeightsName)
	}

	f, err := safefile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()

	n, err := io.Copy(h, f)
	fmt.Fprintf(h, "\n%d\n", n)
	return hex.EncodeToString(h.Sum(nil)), err
}

// errFile: what is named as an adapter is a file that is none.
var errFile = failure.New("a file, where an adapter is wanted",
	"give the folder of an adapter, with adapter_config.json and adapter_model.safetensors, or a .gguf file")

// load reads an adapter of any kind for a base, with notes on what was accepted without effect. Without a base
// (nil), the modules are those that the files imply.
func load(dir string, base *adapter.Checkpoint) (*adapter.Adapter, []string, error) {
	if isFile(dir) {
		a, err := loadFile(dir, basisOf(base))
		return a, nil, err
	}

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
		return nil, nil, failure.Hinted(fmt.Errorf("%s: %w: the sizes of a %s adapter are those of its base", dir,
			ErrUnsupported, kind), "--model names it")
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

	// Without the base it is unknown how many blocks there are, so a list of some can't be placed.
	if a.Config.Layers != nil {
		return nil, nil, failure.Hinted(fmt.Errorf("%s: %w: it adapts some blocks only, which the files do not name",
			dir, ErrUnsupported), "--model names the base")
	}

	return a, []string{"no base is given, and the files do not say how it names its matrices; taken is what " +
		"fits them, the names of " + strings.Join(names, ", ")}, nil
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

// CombineOptions of [Combine].
type CombineOptions struct {
	Method    string            // see [CombineMethods]
	Weights   []float64         // of the adapters; nil: 1 each
	Density   float64           // fraction of values that pruning keeps; 1: all; required where the method prunes
	Sign      string            // how ties elects signs: total (default) or frequency
	Rank      int               // of svd, _svd (0: the largest of the adapters), _core and _knots (0: their sum)
	Seed      uint64            // of random pruning
	Threads   int               // CPU threads; 0: one for each processor
	DType     safetensors.DType // of the result; 0: F32
	Overwrite bool              // replace an adapter that is there
	Model     string            // folder of the base that the adapters must fit; "": they must fit each other
	// AllowOtherBase takes adapters whose files say that they were trained on different weights; the result says of no
	// base that it belongs to it.
	AllowOtherBase bool
}

// CombineMethods lists the ways of combining adapters.
func CombineMethods() []string { return combine.Methods() }

// CombineReport says what [Combine] did.
type CombineReport struct {
	Adapters []string `json:"adapters"`
	Out      string   `json:"out"`
	Notes    []string `json:"notes,omitempty"` // what was accepted without effect, and other bases

	Method  string           `json:"method"` // as computed: one adapter alone is linear, unless a rank is asked for
	Weights []float64        `json:"weights"`
	Rank    int              `json:"rank"`
	Exact   bool             `json:"exact"` // the result is the weighted sum of the changes, up to rounding
	Modules []CombinedModule `json:"modules"`
}

// CombinedModule says what became of one module.
type CombinedModule struct {
	Path     string   `json:"path"`
	Adapters int      `json:"adapters"`         // that change it
	Energy   *float64 `json:"energy,omitempty"` // fraction of the squared singular values that the rank keeps
}

// did fills in what the combination of some adapters came to.
func (r *CombineReport) did(list []combine.Named, c *combine.Result) {
	r.Method = c.Method
	r.Weights = c.Weights
	r.Rank = c.MaxRank()
	r.Exact = c.Exact
	r.Modules = combinedModules(list, c)
}

// combinedModules reports on the modules of a combination.
func combinedModules(list []combine.Named, c *combine.Result) []CombinedModule {
	modules := make([]CombinedModule, len(c.Low))
	for i, l := range c.Low {
		m := CombinedModule{Path: l.Module.Path, Energy: c.Energy[i]}
		for _, n := range list {
			if n.Adapter.Find(m.Path) != nil {
				m.Adapters++
			}
		}
		modules[i] = m
	}
	return modules
}

// Combine writes one LoRA made of several adapters, of any kind, to the folder out: the combinations of PEFT,
// with its results, and those in the common space of the changes (Core Space, KnOTS). The result's scale is 1. One
// adapter with weight 1 comes back as it is. Adapters that were trained on different weights are refused (ErrOtherBase)
// unless that is allowed. The errors wrap ErrMethod, ErrOption, ErrRanks, ErrRefused or this package's other ones.
func Combine(ctx context.Context, dirs []string, out string, o CombineOptions) (*CombineReport, error) {
	base, err := openBase(ctx, o.Model)
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

	remark, known := apartBases(list)
	if known && !o.AllowOtherBase {
		return nil, failure.Hinted(fmt.Errorf("%w: %s", ErrOtherBase, remark),
			"--allow-other-base takes them all the same")
	}

	c, err := combine.Run(ctx, list, combine.Options{
		Method: o.Method, Weights: o.Weights, Density: o.Density, Sign: combine.Sign(o.Sign), Rank: o.Rank,
		Seed: o.Seed, Threads: o.Threads,
	})
	if err != nil {
		return nil, err
	}

	r.did(list, c)
	if remark != "" {
		r.Notes = append(r.Notes, remark)
	}
	if o.Rank > 0 && c.Most < c.MaxRank() {
		r.Notes = append(r.Notes, fmt.Sprintf("rank %d is more than the combined changes can have, %d: the rest of "+
			"the factors is zeros", c.MaxRank(), c.Most))
	}
	r.Notes = lostIn(base, c.Adapter).note(r.Notes)
	// PEFT has no mask: zeros of the base would fill in where such an adapter is loaded.
	if c.Config.KeepZeros {
		r.Notes = append(r.Notes, unmasked)
	}

	return r, peft.Write(out, c.Adapter, peft.WriteOptions{DType: o.DType, Overwrite: o.Overwrite})
}

// openBase opens a base, nil where none is named.
func openBase(ctx context.Context, dir string) (*adapter.Checkpoint, error) {
	if dir == "" {
		return nil, nil
	}
	return adapter.OpenCheckpoint(ctx, dir)
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
	Threads   int               // CPU threads; 0: one for each processor
	Overwrite bool              // replace an adapter that is there
	// WithExperts writes all factors, also those of experts or beside them that PEFT passes over; see [Export].
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
// its shards, which is copying. Factors for a mixture's experts, or for what lies beside them, that PEFT does
// not load are refused unless that is allowed; without Model a remark says so where the files do not tell. The
// errors wrap this package's.
func Export(ctx context.Context, dir, out string, o ExportOptions) (*ExportReport, error) {
	base, err := openBase(ctx, o.Model)
	if err != nil {
		return nil, err
	}
	defer closeBase(base)

	a, notes, err := load(dir, base)
	if err != nil {
		return nil, err
	}

	lost := lostIn(base, a)
	// Refused, not only noted: PEFT would load the file without complaint and answer as the base.
	if lost.sure && !o.WithExperts {
		return nil, failure.Hinted(fmt.Errorf("%s: %w: %s", dir, ErrUnsupported, lost.text), "compress reads the "+
			"adapter as it is, lora fold writes it into the weights, and --with-experts exports it all the same")
	}

	notes = lost.note(notes)
	if a.Config.KeepZeros {
		notes = append(notes, unmasked)
	}

	r := &ExportReport{
		Adapter: dir, Out: out, Kind: string(a.Config.Kind), Modules: len(a.Low), Trained: a.Count(),
		Notes: notes, Exact: true,
	}
	if a, err = r.cut(ctx, a, o.Rank, o.Threads); err != nil {
		return nil, err
	}

	for _, l := range a.Low {
		r.Rank = max(r.Rank, l.Rank)
		r.Exported += int64(l.Rank) * int64(l.Module.In+l.Module.Out)
	}

	// Rounding to a narrower type, or of the scale into B, changes the last bits of the product.
	if o.DType != 0 && o.DType != safetensors.F32 || o.Bake {
		r.Exact = false
	}

	return r, peft.Write(out, a, peft.WriteOptions{DType: o.DType, Bake: o.Bake, Overwrite: o.Overwrite})
}
