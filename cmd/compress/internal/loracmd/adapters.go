package loracmd

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/quantizecmd"
	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/quantize"
)

// threads is how many the device may use.
func threads(j *cli.Job) (int, error) {
	dev, err := j.Device()
	if err != nil {
		return 0, err
	}
	return dev.Info().Threads, nil
}

// apart refuses an output that is one of the inputs, or holds one.
func apart(out string, inputs ...string) error {
	for _, in := range inputs {
		if in == "" {
			continue
		}
		if err := stage.Apart(in, out); err != nil {
			return err
		}
	}
	return nil
}

// notes prints what was accepted without effect.
func notes(j *cli.Job, list []string) {
	for _, n := range list {
		j.Note("%s", n)
	}
}

// FoldOptions are the flags of fold.
type FoldOptions struct {
	Adapter, Out, Shard     string
	Safe, Overwrite, Resume bool
	KeepZeros               bool // zeros of the base's matrices stay
	OtherBase               bool // take an adapter that was trained on other weights
	Tensors                 bool // print a line for each tensor

	To, Imatrix string // see foldInto; empty: the weights keep their types
	Group       int    // inputs that share a scale; 0: as the scheme has it
}

// Fold writes a model with an adapter in its weights.
func Fold(j *cli.Job, model string, o FoldOptions) (any, error) {
	if err := CheckFold(model, o); err != nil {
		return nil, err
	}
	if o.To != "" {
		return foldInto(j, model, o)
	}

	r, err := fold(j, model, o)
	if err != nil {
		return nil, err
	}
	return r, j.WriteCard(o.Out, model, foldCard(j, model, o.Adapter, r))
}

func fold(j *cli.Job, model string, o FoldOptions) (*lora.FoldReport, error) {
	if err := errors.Join(cli.ModelFolder(model), openmodel.OnlyWeights(model)); err != nil {
		return nil, err
	}
	if err := apart(o.Out, model, o.Adapter); err != nil {
		return nil, err
	}

	limit := int64(0)
	if o.Shard != "keep" {
		var err error
		if limit, err = cli.ShardLimit(o.Shard); err != nil {
			return nil, err
		}
		if limit == 0 { // a single file; the library's 0 is the source's files
			limit = math.MaxInt64
		}
	}

	threads, err := threads(j)
	if err != nil {
		return nil, err
	}

	bar := j.Bars()
	r, err := lora.Fold(j.Ctx, model, o.Adapter, o.Out, lora.FoldOptions{
		Overwrite: o.Overwrite, Resume: o.Resume, Safe: o.Safe, KeepZeros: o.KeepZeros, AllowOtherBase: o.OtherBase,
		MaxShardSize: limit, Threads: threads, Progress: bar.Show,
	})

	bar.End()
	if err != nil {
		return nil, err
	}

	notes(j, r.Notes)
	if z := r.Zeros; z != nil && !z.Kept && z.Pruned > 0 && z.After < z.Before {
		j.Note("--keep-zeros keeps zeros of the base; lora train --keep-zeros makes an adapter that loses nothing " +
			"by it")
	}

	// no stored value has changed: a head that has only become its own tensor, or a change that rounds to
	// nothing
	still := 0
	for _, x := range r.Tensors {
		if x.Moved == 0 {
			still++
		}
	}

	if len(r.Tensors) > 0 {
		j.Table(foldTable(r.Tensors, o.Tensors))
	}

	in := "; in " + r.Out
	if o.To != "" {
		in = "" // a folder that does not stay
	}
	j.Printf("%d tensors changed, %d as in %s%s\n", r.Edited-still, r.Copied+still, model, in)
	if z := r.Zeros; z != nil {
		j.Printf("zeros of the changed matrices: %d before, %d after\n", z.Before, z.After)
	}
	if r.Untied {
		j.Printf("the head is no longer the token table: the adapter changes one of them\n")
	}

	return r, nil
}

// foldTable shows what became of tensors, those of a kind on one line unless all are asked for.
func foldTable(list []lora.FoldedTensor, all bool) *report.Table {
	share := func(moved, elements int64) float64 { return 100 * float64(moved) / float64(max(elements, 1)) }
	name := func(x lora.FoldedTensor) string { return x.Name }
	groups, ok := cli.Grouped(list, all, name, nil)
	if !ok {
		t := &report.Table{Columns: report.Columns("tensor", "moved %|%.2f", "largest", "relative")}
		for _, x := range list {
			t.Add(x.Name, share(x.Moved, x.Elements), x.MaxAbs, x.Relative)
		}
		return t
	}

	t := &report.Table{
		Columns: report.Columns("tensors", "layers", "number", "moved %|%.2f", "largest", "relative up to"),
		Note:    cli.OnePerKind,
	}
	for _, g := range groups {
		moved, elements := int64(0), int64(0)
		largest, relative := 0.0, 0.0
		for _, x := range g.Items {
			moved += x.Moved
			elements += x.Elements
			largest = max(largest, x.MaxAbs)
			relative = max(relative, x.Relative)
		}
		t.Add(g.Kind, g.Where, len(g.Items), share(moved, elements), largest, relative)
	}
	return t
}

// FoldedReport is what became of a model that was folded and then quantised.
type FoldedReport struct {
	*lora.FoldReport
	Quantized any `json:"quantized"` // the report of compress quantize
}

// CheckFold finds what is wrong with flags by themselves.
func CheckFold(model string, o FoldOptions) error {
	switch {
	case o.To == "" && (o.Imatrix != "" || o.Group != 0):
		return cli.Usagef("--imatrix and --group-size have no effect without --to")
	case o.To == "":
		return nil
	}
	return quantizecmd.Check(o.quantised(model))
}

// quantised are the settings of what comes after folding.
func (o FoldOptions) quantised(model string) quantizecmd.Options {
	return quantizecmd.Options{
		To: o.To, Imatrix: o.Imatrix, Shard: o.Shard, Calibration: cli.Calibration{Samples: 1}, Memory: "2GiB",
		Name: strings.TrimSuffix(filepath.Base(filepath.Clean(model)), ".gguf"),
		Quantize: quantize.Options{
			Method: quantize.RTN, Group: o.Group, Origin: model, Out: o.Out, Overwrite: o.Overwrite, Resume: o.Resume,
		},
	}
}

// goneName is what the folded floats are called once they are of no use, so that a part of them is not taken for all.
func (o FoldOptions) goneName(floats, model string) string {
	o.Resume = false
	o.Overwrite = false
	o.Tensors = false
	job, err := stage.Fingerprint(model, o)
	if err != nil {
		job = "unknown"
	}
	return floats + ".gone-" + job[:min(len(job), 12)]
}

// discard removes the folded floats.
func (o FoldOptions) discard(floats, model string) error {
	gone := o.goneName(floats, model)
	if err := os.Rename(floats, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
}

// leftover removes what an interrupted run has left and this one does not go on with. A run that was stopped while it
// did so itself had finished: then there is a report.
func (o FoldOptions) leftover(floats, model string) (any, error) {
	gone := o.goneName(floats, model)
	_, was := os.Stat(gone)
	_, there := os.Stat(o.Out)
	if err := os.RemoveAll(gone); err != nil {
		return nil, err
	}
	if o.Resume && !o.Overwrite && was == nil && there == nil {
		return &FoldedReport{
			FoldReport: &lora.FoldReport{
				Model: model, Adapter: o.Adapter, Out: o.Out, Tensors: []lora.FoldedTensor{},
				Notes: []string{o.Out + " was finished already"},
			},
		}, nil
	}

	if o.Resume {
		return nil, nil
	}
	if err := scratch.Leftover(floats); err != nil {
		return nil, err
	}
	return nil, os.RemoveAll(floats)
}

// foldInto folds into a hidden folder beside the output and makes the output of that: sums are floats, and are rounded
// to few bits once. The hidden folder goes when the output is there, or cannot be made.
func foldInto(j *cli.Job, model string, o FoldOptions) (_ any, err error) {
	q := o.quantised(model)
	if err := errors.Join(apart(o.Out, model, o.Adapter), quantizecmd.Vacant(j, model, q)); err != nil {
		return nil, err
	}

	floats := o
	floats.Shard = "keep"
	floats.Overwrite = false
	floats.Out = filepath.Join(filepath.Dir(filepath.Clean(o.Out)), "."+filepath.Base(o.Out)+".folded")
	finished, err := o.leftover(floats.Out, model)
	if err != nil || finished != nil {
		return finished, err
	}
	defer func() {
		if err == nil || !stage.Resumable(j.Ctx, err) {
			err = errors.Join(err, o.discard(floats.Out, model))
		}
	}()

	r, err := fold(j, model, floats)
	if err != nil {
		return nil, err
	}
	r.Out = o.Out
	r.Notes = append(r.Notes, "folded in the types of the base, then quantised once")

	done, err := quantizecmd.Model(j, floats.Out, q)
	if err != nil {
		return nil, err
	}
	j.Note("%s", r.Notes[len(r.Notes)-1])
	return &FoldedReport{r, done}, nil
}

// CombineOptions are the flags of combine.
type CombineOptions struct {
	Method, Weights, Sign, Out, DType, Model string
	Density                                  float64
	Rank                                     int
	Overwrite, OtherBase                     bool
	Tensors                                  bool // print a line for each module
}

// Combine writes one adapter made of several.
func Combine(j *cli.Job, dirs []string, o CombineOptions) (any, error) {
	t, err := cli.DType("dtype", o.DType)
	if err != nil {
		return nil, err
	}

	weights, err := numbers("weights", o.Weights)
	if err != nil {
		return nil, err
	}

	if err := apart(o.Out, append(slices.Clone(dirs), o.Model)...); err != nil {
		return nil, err
	}

	threads, err := threads(j)
	if err != nil {
		return nil, err
	}

	r, err := lora.Combine(j.Ctx, dirs, o.Out, lora.CombineOptions{
		Method: o.Method, Weights: weights, Density: o.Density, Sign: o.Sign, Rank: o.Rank, Seed: j.Seed,
		Threads: threads, DType: t,
		Overwrite: o.Overwrite, Model: o.Model, AllowOtherBase: o.OtherBase,
	})
	if err != nil {
		return nil, err
	}

	if err := j.WriteCard(o.Out, "", combineCard(j, dirs, o.Model, r)); err != nil {
		return nil, err
	}
	notes(j, r.Notes)
	j.Table(combineTable(r.Modules, o.Tensors))
	exact := "not the weighted sum of the changes"
	if r.Exact {
		exact = "exactly the weighted sum of the changes"
	}

	j.Printf("%s of %d adapters, rank %d, %s; in %s\n", r.Method, len(dirs), r.Rank, exact, r.Out)
	return r, nil
}

// combineTable shows what became of modules, those of a kind on one line unless all are asked for.
func combineTable(list []lora.CombinedModule, all bool) *report.Table {
	cut := slices.ContainsFunc(list, func(m lora.CombinedModule) bool { return m.Energy != nil })
	last := func(name string) []string {
		if cut {
			return []string{name}
		}
		return nil
	}

	groups, ok := cli.Grouped(list, all, func(m lora.CombinedModule) string { return m.Path },
		func(m lora.CombinedModule) string { return strconv.Itoa(m.Adapters) })
	if !ok {
		columns := append([]string{"module", "adapters"}, last("energy kept|%.6f")...)
		t := &report.Table{Columns: report.Columns(columns...)}
		for _, m := range list {
			row := []any{m.Path, m.Adapters}
			if m.Energy != nil {
				row = append(row, *m.Energy)
			}
			t.Add(row...)
		}
		return t
	}

	columns := append([]string{"modules", "layers", "number", "adapters"}, last("energy kept, least|%.6f")...)
	t := &report.Table{Columns: report.Columns(columns...), Note: cli.OnePerKind}
	for _, g := range groups {
		row := []any{g.Kind, g.Where, len(g.Items), g.Items[0].Adapters}
		least := math.Inf(1)
		for _, m := range g.Items {
			if m.Energy != nil {
				least = min(least, *m.Energy)
			}
		}
		if cut && !math.IsInf(least, 1) {
			row = append(row, least)
		}
		t.Add(row...)
	}
	return t
}

// numbers reads the list of weights of a flag.
func numbers(flag, text string) ([]float64, error) {
	if text == "" {
		return nil, nil
	}

	var list []float64
	for field := range strings.SplitSeq(text, ",") {
		x, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, cli.Usagef("--%s %q: %q is no number", flag, text, field)
		}
		list = append(list, x)
	}

	return list, nil
}

// ExportOptions are the flags of export.
type ExportOptions struct {
	To, Out, DType, Model string
	Rank                  int
	Bake, Overwrite       bool
	WithExperts           bool
}

// intoGGUF is the form of llama.cpp's adapters.
const intoGGUF = "gguf"

// CheckExport finds what is wrong with flags by themselves.
func CheckExport(o ExportOptions) error {
	file := strings.HasSuffix(o.Out, ".gguf")
	switch {
	case o.Rank < 0:
		return cli.Usagef("--rank %d; 0 keeps the rank", o.Rank)
	case o.To == intoGGUF && !file:
		return cli.Usagef("--out %s: --to gguf writes one file; give it a name that ends in .gguf", o.Out)
	case o.To == intoGGUF && o.Model == "":
		return cli.Usagef("--to gguf needs --model: the file has the names of its base's")
	case o.To == intoGGUF && (o.Bake || o.WithExperts):
		return cli.Usagef("--bake and --with-experts have no effect with --to gguf, which has room for both")
	case o.To != intoGGUF && file:
		return cli.Usagef("--out %s: a folder is written; --to gguf writes a file", o.Out)
	case o.To != intoGGUF && o.DType == "q8_0":
		return cli.Usagef("--dtype q8_0 goes with --to gguf")
	}
	return nil
}

// Export writes an adapter of any kind as a LoRA that other tools load.
func Export(j *cli.Job, dir string, o ExportOptions) (any, error) {
	if err := CheckExport(o); err != nil {
		return nil, err
	}
	if o.To == intoGGUF {
		return exportFile(j, dir, o)
	}

	t, err := cli.DType("dtype", o.DType)
	if err != nil {
		return nil, err
	}
	if err := apart(o.Out, dir, o.Model); err != nil {
		return nil, err
	}

	r, err := lora.Export(j.Ctx, dir, o.Out,
		lora.ExportOptions{
			Model: o.Model, DType: t, Bake: o.Bake, Rank: o.Rank, Overwrite: o.Overwrite,
			WithExperts: o.WithExperts,
		})
	if err != nil {
		return nil, err
	}

	if err := j.WriteCard(o.Out, dir, exportCard(j, dir, o.Model, r)); err != nil {
		return nil, err
	}
	exported(j, r)
	return r, nil
}

// exported says what became of an adapter.
func exported(j *cli.Job, r *lora.ExportReport) {
	notes(j, r.Notes)
	j.Printf("%s of %s parameters as a LoRA of rank %d on %d modules, %s parameters; in %s\n",
		r.Kind, cli.Thousands(r.Trained), r.Rank, r.Modules, cli.Thousands(r.Exported), r.Out)
}

// exportFile writes an adapter as the GGUF file that llama.cpp loads.
func exportFile(j *cli.Job, dir string, o ExportOptions) (any, error) {
	name := o.DType
	if name != "q8_0" {
		t, err := cli.DType("dtype", name)
		if err != nil {
			return nil, err
		}
		name = t.String()
	}
	as, err := gguf.ParseType(strings.ToUpper(name))
	if err != nil {
		return nil, err
	}

	if err := errors.Join(apart(o.Out, dir, o.Model),
		cli.Apart([2]string{"out", o.Out}, [2]string{"report", j.ReportTo()})); err != nil {
		return nil, err
	}
	place := cli.Place{Flag: "out", Path: o.Out, What: "an adapter", Own: cli.IsAdapter, Inputs: j.Inputs, Seeks: true}
	out, err := place.Target()
	if err != nil {
		return nil, err
	}
	threads, err := threads(j)
	if err != nil {
		return nil, err
	}

	r, err := lora.ExportGGUF(j.Ctx, dir, out, lora.GGUFOptions{
		Model: o.Model, Type: as, Rank: o.Rank, Threads: threads, Overwrite: o.Overwrite,
	})
	if err != nil {
		return nil, err
	}

	r.Out = o.Out
	exported(j, r)
	return r, nil
}

// ExtractOptions are the flags of extract.
type ExtractOptions struct {
	Out, DType       string
	Targets          []string
	Rank             int
	Whole            bool
	Exact, Overwrite bool
	Tensors          bool // print a line for each matrix
}

// Extract writes the LoRA that leads from one model to another.
func Extract(j *cli.Job, base, tuned string, o ExtractOptions) (any, error) {
	t, err := cli.DType("dtype", o.DType)
	if err != nil {
		return nil, err
	}

	for _, dir := range []string{base, tuned} {
		if err := errors.Join(cli.ModelFolder(dir), openmodel.OnlyWeights(dir)); err != nil {
			return nil, err
		}
	}

	if err := apart(o.Out, base, tuned); err != nil {
		return nil, err
	}

	threads, err := threads(j)
	if err != nil {
		return nil, err
	}

	bar := j.Bars()
	r, err := lora.Extract(j.Ctx, base, tuned, o.Out, lora.ExtractOptions{
		Rank: o.Rank, Targets: names(o.Targets), DType: t, Whole: o.Whole, Exact: o.Exact, Seed: j.Seed,
		Threads: threads, Overwrite: o.Overwrite, Progress: bar.Show,
	})

	bar.End()
	if err != nil {
		return nil, err
	}

	if err := j.WriteCard(o.Out, "", extractCard(j, base, tuned, r)); err != nil {
		return nil, err
	}
	j.Table(extractTable(r.Matrices, o.Tensors))
	notes(j, r.Notes)
	for _, x := range r.LeftOut {
		j.Printf("differs and is left out: %s (relative %.3g)\n", x.Tensor, x.Relative)
	}
	for _, x := range r.Kept {
		j.Printf("kept whole: %s (relative %.3g)\n", x.Tensor, x.Relative)
	}

	j.Printf("rank %d keeps %.4f %% of the energy of all differences; in %s\n", r.Rank, 100*r.Energy, r.Out)
	return r, nil
}

// extractTable shows what was kept of matrices, those of a kind on one line unless all are asked for.
func extractTable(list []lora.ExtractedMatrix, all bool) *report.Table {
	const note = "change: norm of the difference; relative: by that of the base's matrix"
	groups, ok := cli.Grouped(list, all, func(m lora.ExtractedMatrix) string { return m.Path }, nil)
	if !ok {
		t := &report.Table{Columns: report.Columns("module", "change", "relative", "energy kept|%.6f"), Note: note}
		for _, m := range list {
			t.Add(m.Path, m.Norm, m.Relative, m.Energy)
		}
		return t
	}

	t := &report.Table{
		Columns: report.Columns("modules", "layers", "number", "change", "relative up to", "energy kept|%.6f"),
		Note:    note + "; " + cli.OnePerKind,
	}
	for _, g := range groups {
		squares, kept := 0.0, 0.0
		relative := 0.0
		for _, m := range g.Items {
			squares += m.Norm * m.Norm
			kept += m.Norm * m.Norm * m.Energy
			relative = max(relative, m.Relative)
		}
		energy := 1.0 // where nothing differs
		if squares > 0 {
			energy = kept / squares
		}
		t.Add(g.Kind, g.Where, len(g.Items), math.Sqrt(squares), relative, energy)
	}
	return t
}

// names reads a list of names.
func names(fields []string) []string {
	var list []string
	for _, field := range fields {
		if field = strings.TrimSpace(field); field != "" {
			list = append(list, field)
		}
	}
	return list
}

// Inspect shows what an adapter's folder holds.
func Inspect(j *cli.Job, dir, model string) (any, error) {
	r, err := lora.Inspect(j.Ctx, dir, model)
	if err != nil {
		return nil, err
	}

	for _, n := range r.Notes {
		j.Note("%s: %s", dir, n)
	}

	j.Printf("%s adapter of %q: %s parameters, %s, rank %d on %d modules\n", r.Kind, r.Base, cli.Thousands(r.Trained),
		cli.Size(r.Bytes), r.Rank, len(r.Modules))
	t := &report.Table{Columns: report.Columns("type", "modules", "ranks", "change")}
	for _, x := range r.Types {
		t.Add(x.Name, x.Modules, strings.Trim(fmt.Sprint(x.Ranks), "[]"), x.Norm)
	}

	t.Note = "change: root of the mean square of the norms of scale·B·A"
	j.Table(t)
	for _, w := range r.Whole {
		j.Printf("whole tensor %s %v, %s\n", w.Tensor, w.Shape, w.SavedFor)
	}

	j.Printf("in memory %s, plain factors of the same ranks %s\n", cli.Size(r.Memory.Bytes), cli.Size(r.Memory.LoRA))

	if s := r.Shards; s != nil {
		j.Printf("equivalent rank %d, %d shards a vector, private rank %d, sampling %s, %d dead shards\n",
			s.EquivalentRank, s.Shards, s.Private, s.Sampling, s.Dead)
	}

	if r.Checked != "" {
		j.Printf("fits %s\n", r.Checked)
	}

	return r, nil
}
