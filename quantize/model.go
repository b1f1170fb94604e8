package quantize

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// Model quantises the matrices of a model's blocks into a folder, and reports what it did. calib may be empty if the
// method measures nothing. The context is looked at between matrices and batches of sequences. What an interrupted run
// has written can be continued with Resume; after a fault of the input it is removed. The model is left with the values
// of its files.
func Model(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (*Report, error) {
	start := time.Now()
	w, err := newWalk(ctx, m, calib, o)
	if err != nil {
		return nil, err
	}
	defer w.free()

	if err := w.begin(); err != nil {
		return nil, err
	}
	if err := w.run(ctx); err != nil {
		return nil, errors.Join(err, w.stop(ctx, err))
	}

	w.report.Times.Total = time.Since(start).Seconds()
	return w.report, nil
}

// Check returns what Model would refuse before it runs anything: faults of the options, calibration data that are
// missing or do not fit the model, and matrices that the scheme cannot hold.
func Check(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) error {
	w, err := newWalk(ctx, m, calib, o)
	if err != nil {
		return err
	}
	w.free()
	return nil
}

// walk is one run over a model.
type walk struct {
	m       *lm.Model
	dev     kernels.Device
	ops     *kernels.Ops
	host    bool // the device computes in host memory
	threads int
	o       Options
	calib   corpus.Windows
	report  *Report

	source *lm.Tensors
	output output
	states *actstats.States
	factor factor
	// chosen are the matrices to quantise, by block.
	chosen [][]lm.Linear
	rounds map[string]bool // the names of these
	// scaling is that of the block's inputs, nil without; inputs is what it was found by, which is also what is
	// measured besides Hessians.
	scaling  *scaling
	inputs   *actstats.Stats
	excerpts *excerpts // of what attention reads in a block, while its factors are looked for; nil otherwise
	folded   int       // blocks whose inputs can have factors
}

// newWalk checks what can be checked before anything runs.
func newWalk(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (*walk, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	o.setDefaults()
	var err error
	if o.Scheme, err = o.Scheme.withGroup(o.Group); err != nil {
		return nil, err
	}

	dev := m.Device()
	info := dev.Info()
	w := &walk{
		m: m, dev: dev, ops: dev.Ops(), host: info.Host, threads: info.Threads, o: o, calib: calib,
		rounds: map[string]bool{},
	}
	if m.Packed() {
		return nil, fmt.Errorf("%s: %w: its matrices are packed as bitmasks; compress convert unpacks them", m.Path(),
			ErrLayout)
	}
	if o.measures() {
		if err := w.checkCalibration(); err != nil {
			return nil, err
		}
	}

	fingerprint, err := m.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	w.report = &Report{
		Options: w.o.recorded(), Version: build.Version(), Device: info, Notes: []string{}, Matrices: []Matrix{},
		Model: ModelInfo{
			Path: origin(o.Origin, m.Path()), Type: m.Config().ModelType,
			Parameters: m.NumParameters(), Fingerprint: fingerprint,
		},
	}
	if o.measures() {
		w.report.Calibration = &calib // not a pointer into the walk, which holds the model
	}

	if err := w.choose(); err != nil {
		return nil, err
	}
	w.readers()
	if w.source, err = lm.OpenTensors(ctx, m.Path(), m.Config()); err != nil {
		return nil, err
	}
	if err := w.checkFolds(); err != nil {
		w.free()
		return nil, err
	}

	return w, nil
}

// ownClass lists the models whose matrices transformers has in a class of their own, which computes with a weight
// that the package compressed-tensors (0.15.0 and 0.20.0, targets "Linear" and the class) leaves out or does not
// restore.
var ownClass = map[string]string{"falcon": "FalconLinear"}

// stacked lists the schemes in which transformers (5.23.0) restores the matrices of experts, which it stacks as it
// opens a folder. It does not know where the others have their zero points, whole numbers, blocks or global scales.
var stacked = []string{"w4a16", "w8a16", "fp8_dynamic"}

// readers notes who does not read the folder.
func (w *walk) readers() {
	if w.o.Scheme.Layout == gptqLayout {
		return
	}
	if class := ownClass[w.m.Config().ModelType]; class != "" {
		w.report.Notes = append(w.report.Notes, fmt.Sprintf("transformers has the matrices of a %s in a class of its "+
			"own, %s, which the package compressed-tensors does not decompress: compress reads the folder, "+
			"transformers does not", w.m.Config().ModelType, class))
	}

	for _, lin := range slices.Concat(w.chosen...) {
		s := w.o.schemeOf(module(lin.Name))
		if lin.Expert >= 0 && !slices.Contains(stacked, s.Name) {
			w.report.Notes = append(w.report.Notes, fmt.Sprintf("transformers (5.23) restores the experts of mixtures "+
				"from %s alone: compress reads the experts in %s, transformers does not", strings.Join(stacked, ", "),
				s.Name))
			return
		}
	}
}

// origin is the path of a model, or what it is to be called instead.
func origin(name, path string) string {
	if name == "" {
		return path
	}
	return name
}

func (w *walk) checkCalibration() error {
	if len(w.calib.IDs) == 0 {
		return fmt.Errorf("%s: %w", w.o.Measuring(), ErrNoCalibration)
	}
	for i, row := range w.calib.IDs {
		if len(row) == 0 {
			return fmt.Errorf("%s: window %d: %w: it is empty", w.calib.Source, i, ErrNoCalibration)
		}
	}
	return w.calib.Check(w.m.Config().Vocab)
}

// choose lists the matrices to quantise, and checks that the scheme can hold them.
func (w *walk) choose() error {
	var faults []error
	used := make([]bool, len(w.o.Ignore))
	for l := range w.m.Blocks() {
		var list []lm.Linear
		for _, lin := range w.m.Linears(l) {
			if w.o.ignored(module(lin.Name)) {
				w.report.Total.Left++
				w.mark(used, lin)
				continue
			}

			if err := w.fits(lin); err != nil && len(faults) == 0 {
				faults = append(faults, fmt.Errorf("%s: tensor %q: %w", w.m.File(lin.Name), lin.Name, err))
			}
			list = append(list, lin)
			w.rounds[lin.Name] = true
		}
		w.chosen = append(w.chosen, list)
	}

	for i, ok := range used {
		if !ok {
			faults = append(faults, fmt.Errorf("%w: pattern %q names no matrix of a block", ErrOptions, w.o.Ignore[i]))
		}
	}
	for _, r := range w.o.Types {
		if !slices.ContainsFunc(slices.Concat(w.chosen...), func(lin lm.Linear) bool {
			return names(r.Pattern, module(lin.Name))
		}) {
			faults = append(faults, fmt.Errorf("%w: type %s: pattern %q names no matrix that is quantised", ErrOptions,
				r.Type, r.Pattern))
		}
	}
	return errors.Join(faults...)
}

// mark notes which patterns a matrix was left out by.
func (w *walk) mark(used []bool, lin lm.Linear) {
	for i, p := range w.o.Ignore {
		if names(p, module(lin.Name)) {
			used[i] = true
		}
	}
}

// fits reports why the scheme cannot hold a matrix.
func (w *walk) fits(lin lm.Linear) error {
	if lin.Transposed {
		return fmt.Errorf("%w: it is stored [in, out], as GPT-2's are, which no reader of the format expects",
			ErrLayout)
	}

	if a := w.m.Config().Arch; lin.Expert >= 0 && a.GGUF != nil && a.GGUF.Fused {
		return failure.Hinted(fmt.Errorf("%w: checkpoints of %s have all experts of a block in one tensor, which the "+
			"format does not know", ErrLayout, w.m.Config().ModelType), "--ignore experts leaves them as they are")
	}

	g, err := w.newGrid(lin)
	if err != nil {
		return err
	}
	_, err = g.form.parts(lin.Name, g)
	return err
}

// newGrid makes the grid of a matrix without room for its codes.
func (w *walk) newGrid(lin lm.Linear) (*grid, error) {
	return w.gridOf(lin, w.o.schemeOf(module(lin.Name)))
}

// gridOf is newGrid for a scheme that may be another than the matrix is to have.
func (w *walk) gridOf(lin lm.Linear, s Scheme) (*grid, error) {
	info, _ := w.m.Info(lin.Name)
	stored := info.DType
	switch {
	case s.Layout == gptqLayout:
		stored = safetensors.F16 // of its scales
	case stored == safetensors.F64:
		stored = safetensors.F32
	}
	g, err := newGrid(s.Weights, lin.Out, lin.In, stored)
	if err != nil {
		return nil, err
	}
	g.form = s
	g.foreign = s.Layout == gptqLayout
	return g, nil
}

// begin opens the output.
func (w *walk) begin() error {
	config, err := w.o.configuration(w.left(), w.others())
	if err != nil {
		return err
	}
	job, err := w.job()
	if err != nil {
		return err
	}
	return w.output.open(w, config, job)
}

// left lists the modules that stay floats, for readers that quantise everything else: matrices of blocks that were
// ignored, routers and other matrices beside them, and the head.
func (w *walk) left() []string {
	chosen := map[string]bool{}
	for _, list := range w.chosen {
		for _, lin := range list {
			chosen[lin.Name] = true
		}
	}

	// transformers calls every head lm_head, whatever the checkpoint does (GPT-NeoX': embed_out).
	const head = "lm_head"
	names := []string{head}
	outside := []arch.Role{arch.Head, arch.EmbedIn, arch.EmbedOut}
	for _, t := range w.m.Config().Arch.Tensors {
		stored := slices.Contains(w.m.Tensors(), t.Name)
		if stored && t.Part == "" && slices.Contains(outside, t.Role) && module(t.Name) != head {
			names = append(names, module(t.Name))
		}
	}
	for l, list := range w.chosen {
		for _, lin := range w.m.Linears(l) {
			if !chosen[lin.Name] {
				names = append(names, module(lin.Name))
			}
		}
		for _, p := range w.m.Params(l) {
			router := p.Role == arch.Router || p.Role == arch.SharedRouter
			if router && !p.Bias && len(list) > 0 {
				names = append(names, module(p.Name))
			}
		}
	}

	return names
}

// others are the matrices whose scheme is not the one of most, by the names of their modules.
func (w *walk) others() (list []typed) {
	for _, lins := range w.chosen {
		for _, lin := range lins {
			name := module(lin.Name)
			s := w.o.schemeOf(name)
			if s.Name == w.o.Scheme.Name {
				continue
			}
			i := slices.IndexFunc(list, func(t typed) bool { return t.scheme.Name == s.Name })
			if i < 0 {
				list = append(list, typed{scheme: s})
				i = len(list) - 1
			}
			list[i].modules = append(list[i].modules, name)
		}
	}
	return list
}

// job identifies the work by all that the output depends on.
func (w *walk) job() (string, error) {
	calibration := ""
	if w.o.measures() {
		calibration = w.calib.Hash
	}
	text, err := json.Marshal(struct {
		Work, Model, Calibration string
		Options                  Options
		Shard                    int64
	}{"quantize 2", w.report.Model.Fingerprint, calibration, w.o, w.o.MaxShardSize})
	if err != nil {
		return "", err
	}

	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// run does the work between the output's beginning and its end.
func (w *walk) run(ctx context.Context) error {
	if w.output.folder.Complete() {
		return w.finished(ctx)
	}

	if w.o.measures() {
		var err error
		if w.states, err = actstats.NewStates(ctx, w.m, w.calib.IDs, w.o.BatchTokens); err != nil {
			return err
		}
	}
	for l := range w.m.Blocks() {
		if err := w.block(ctx, l); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
	}

	return w.finish(ctx)
}

// finished describes an output that an earlier run of the same job has completed.
func (w *walk) finished(ctx context.Context) error {
	for l := range w.m.Blocks() {
		for _, lin := range w.chosen[l] {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.restore(lin, false); err != nil {
				return fmt.Errorf("block %d: %w", l, err)
			}
		}
		w.m.ReleaseBlock(l, false)
	}

	w.sizes()
	w.report.close()
	return w.asRecorded()
}

// asRecorded compares the record of a finished output with what this run says of it.
func (w *walk) asRecorded() error {
	want, err := w.record()
	if err != nil {
		return err
	}
	got, err := safefile.ReadIn(w.o.Out, RecordFile, int64(len(want))+1)
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New("it is not the record of this job")
	}
	if err != nil {
		return failure.Hinted(fmt.Errorf("%s: %w: %w", filepath.Join(w.o.Out, RecordFile), stage.ErrDamaged, err),
			"--overwrite without --resume starts anew")
	}
	return nil
}

// block quantises one block, or takes it from an interrupted run, and runs the next one's inputs through it.
func (w *walk) block(ctx context.Context, l int) error {
	linears := w.chosen[l]
	var err error
	if w.output.done(w.tensorsOf(l)) {
		w.report.Folds = append(w.report.Folds, w.output.folds[l]...)
		if w.o.measures() {
			err = w.restoreFloats(l)
		}
		for _, lin := range linears {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = w.restore(lin, w.o.measures())
			}
			if err != nil {
				return err
			}
		}
	} else if err = w.quantise(ctx, l, linears); err != nil {
		return err
	}

	// The next block is measured on what this one gives now: later blocks see, and can make up for, what earlier ones
	// lost.
	if w.o.measures() && l+1 < w.m.Blocks() {
		if err := w.propagate(ctx, l); err != nil {
			return err
		}
	}

	names := w.floatsOf(l)
	for _, lin := range linears {
		names = append(names, lin.Name)
	}
	if err := w.m.Restore(names...); err != nil {
		return err
	}
	w.m.ReleaseBlock(l, false)
	return nil
}

// quantise measures a block and rounds its matrices, in several passes where it has to.
func (w *walk) quantise(ctx context.Context, l int, linears []lm.Linear) error {
	folds := len(w.report.Folds)
	if w.o.measures() {
		if err := w.allFinite(linears); err != nil {
			return err
		}
	}
	if w.o.folds() && len(linears) > 0 {
		end, err := w.prepare(ctx, l)
		if err != nil {
			return err
		}
		defer end()
	}

	passes := [][]lm.Linear{linears}
	if w.o.measures() {
		passes = actstats.Plan{
			Needs: w.o.statistics(), Memory: w.o.HessianMemory, Refreshed: w.o.TrueSequential,
		}.Passes(linears)
	}

	largest, err := w.together(linears)
	if err != nil {
		return err
	}

	done := map[string]Matrix{}
	for _, part := range passes {
		if err := w.part(ctx, l, part, largest, done, len(linears)); err != nil {
			return err
		}
	}

	var found finding
	for _, lin := range linears { // in the block's order
		w.add(done[lin.Name])
		found.Matrices = append(found.Matrices, done[lin.Name])
	}
	if w.scaling != nil {
		found.Folds = w.report.Folds[folds:]
		if err := w.settle(l); err != nil {
			return err
		}
	}
	return w.output.commit(w.tensorsOf(l), found)
}

// prepare measures all of a block but its Hessians, and finds the factors of its inputs. They hold until end is called.
func (w *walk) prepare(ctx context.Context, l int) (end func(), err error) {
	w.excerpts = newExcerpts(w.dev, w.calib.IDs)
	defer func() { w.excerpts = nil }()
	stats, err := w.statistics(ctx, l, w.m.Linears(l), w.o.statistics()&^actstats.Hessian)
	if err != nil {
		return nil, err
	}
	defer since(&w.report.Times.Round, time.Now())

	if w.scaling, err = w.rescale(ctx, l, stats); err != nil {
		w.scaling = nil
		stats.Free()
		return nil, err
	}
	w.inputs = stats
	return func() {
		stats.Free()
		w.scaling, w.inputs = nil, nil
	}, nil
}

// tensorsOf lists the tensors of the output that come from a block's work.
func (w *walk) tensorsOf(l int) (names []string) {
	for _, lin := range w.chosen[l] {
		names = append(names, w.output.parts[lin.Name]...)
	}
	return append(names, w.floatsOf(l)...)
}

// part measures matrices of a block and rounds them.
func (w *walk) part(ctx context.Context, l int, part []lm.Linear, largest map[string]float32, done map[string]Matrix,
	of int,
) error {
	stats := w.inputs
	if stats == nil || w.o.sweeps() {
		needs := w.o.statistics()
		if w.inputs != nil {
			needs = actstats.Hessian
		}
		var err error
		if stats, err = w.statistics(ctx, l, part, needs); err != nil {
			return err
		}
		defer stats.Free()
	}
	defer w.factor.forget()
	defer since(&w.report.Times.Round, time.Now())

	for _, lin := range part {
		if err := ctx.Err(); err != nil {
			return err
		}

		w.step(Step{Stage: Round, Block: l, Done: len(done), Of: of})
		t, err := w.matrix(ctx, lin, largest[lin.Name], stats)
		if err != nil {
			return fmt.Errorf("%s: tensor %q: %w", w.m.File(lin.Name), lin.Name, err)
		}
		done[lin.Name] = t
	}

	return nil
}

// statistics runs the block for what reaches some of its matrices; nil without an error if nothing is measured.
func (w *walk) statistics(ctx context.Context, l int, linears []lm.Linear, needs actstats.Set) (
	*actstats.Stats, error,
) {
	if needs == 0 || len(linears) == 0 {
		return nil, nil
	}
	defer since(&w.report.Times.Statistics, time.Now())

	stats, err := actstats.New(w.dev, linears, needs, len(w.calib.IDs), w.o.Damping)
	if err != nil {
		return nil, err
	}

	stats.Stop = ctx.Err
	hooks := stats.Hooks()
	if w.excerpts != nil {
		hooks = w.excerpts.hooks(stats, linears)
	}
	err = w.states.Peek(ctx, l, hooks, func(done, of int) {
		w.step(Step{Stage: Statistics, Block: l, Done: done, Of: of})
	})
	if err == nil {
		err = stats.Err()
	}
	if err == nil && w.excerpts != nil {
		err = w.excerpts.err
	}
	if err != nil {
		stats.Free()
		return nil, err
	}
	return stats, nil
}

// propagate runs the rounded block in place.
func (w *walk) propagate(ctx context.Context, l int) error {
	defer since(&w.report.Times.Propagate, time.Now())
	return w.states.Advance(ctx, l, nil, func(done, of int) {
		w.step(Step{Stage: Propagate, Block: l, Done: done, Of: of})
	})
}

// finish writes everything else and the record, and gives the folder its name.
func (w *walk) finish(ctx context.Context) error {
	defer since(&w.report.Times.Save, time.Now())
	if err := w.output.rest(ctx, func(done, of int64) {
		const unit = 1 << 10 // so that the counts fit an int anywhere
		w.step(Step{Stage: Save, Block: w.m.Blocks(), Done: int(done / unit), Of: int(of / unit)})
	}); err != nil {
		return err
	}

	w.sizes()
	w.report.close()
	if n := w.report.Total.Unreached; n > 0 {
		w.report.Notes = append(w.report.Notes, fmt.Sprintf("%d matrices of experts that no calibration token came to "+
			"were rounded by themselves; the first is %q", n, w.firstUnreached()))
	}
	w.apart()
	w.raised()
	w.dead()
	if bad := w.output.folder.Damaged(); len(bad) > 0 {
		w.report.Notes = append(w.report.Notes, fmt.Sprintf("%d tensors of the interrupted run no longer had the "+
			"bytes that it wrote and were made again; the first is %q", len(bad), bad[0]))
	}

	record, err := w.record()
	if err != nil {
		return err
	}
	if err := w.output.folder.AddFile(RecordFile, record); err != nil {
		return err
	}
	return w.output.folder.Finish()
}

func (w *walk) firstUnreached() string {
	i := slices.IndexFunc(w.report.Matrices, func(m Matrix) bool { return m.Unreached })
	return w.report.Matrices[i].Name
}

// apart notes matrices of different schemes that runtimes run as one.
func (w *walk) apart() {
	var names []string
	for _, list := range w.chosen {
		first := map[joint]string{}
		for _, lin := range list {
			s := w.o.schemeOf(module(lin.Name)).Name
			if was, ok := first[jointOf(lin)]; ok && was != s {
				names = append(names, lin.Name)
			} else if !ok {
				first[jointOf(lin)] = s
			}
		}
	}
	if len(names) > 0 {
		w.report.Notes = append(w.report.Notes, fmt.Sprintf("%d matrices have another scheme than those that vLLM "+
			"runs as one with them (q, k and v; gate and up), which it refuses; the first is %q", len(names), names[0]))
	}
}

// dead notes inputs that were always 0, whose weights say nothing about outputs and became 0.
func (w *walk) dead() {
	var names []string
	inputs := 0
	for _, m := range w.report.Matrices {
		if m.Dead > 0 {
			names = append(names, m.Name)
			inputs += m.Dead
		}
	}
	if len(names) > 0 {
		w.report.Notes = append(w.report.Notes, fmt.Sprintf("%d inputs of %d matrices were 0 for every calibration "+
			"token, and their weights became 0; the first is of %q", inputs, len(names), names[0]))
	}
}

// raised notes Hessians that could not be factored with the damping that was asked for.
func (w *walk) raised() {
	var names []string
	for _, m := range w.report.Matrices {
		if m.Damping != nil && m.Damping.Tries > 1 {
			names = append(names, m.Name)
		}
	}
	if len(names) > 0 {
		w.report.Notes = append(w.report.Notes, fmt.Sprintf("the Hessians of %d matrices could not be factored with a "+
			"damping of %g, which was raised; the first is %q", len(names), w.o.Damping, names[0]))
	}
}

// record is what the folder keeps of the report: what the device, the time and interruptions have no part in, so that
// the same run gives the same bytes.
func (w *walk) record() ([]byte, error) {
	type entry struct {
		Name  string `json:"name"`
		Shape [2]int `json:"shape"`
	}
	r := w.report
	list := make([]entry, len(r.Matrices))
	for i, m := range r.Matrices {
		list[i] = entry{m.Name, m.Shape}
	}

	quantised, remarks := w.m.Quantised()
	text, err := json.MarshalIndent(struct {
		Format      string         `json:"format"`
		Version     int            `json:"format_version"`
		Options     Options        `json:"options"`
		Fingerprint string         `json:"model_fingerprint"`
		Calibration *calibrated    `json:"calibration,omitempty"`
		Weights     int64          `json:"weights"`
		Bits        float64        `json:"bits_per_weight"`
		Matrices    []entry        `json:"matrices"`
		Quantised   []lm.Quantised `json:"source_quantization,omitempty"`
		Remarks     []string       `json:"remarks,omitempty"`
	}{
		Format: "compress quantization", Version: 1, Options: r.Options, Fingerprint: r.Model.Fingerprint,
		Calibration: calibratedBy(r.Calibration), Weights: r.Total.Weights, Bits: r.Total.BitsPerWeight, Matrices: list,
		Quantised: quantised, Remarks: remarks,
	}, "", "  ")
	return append(text, '\n'), err
}

// calibrated says which token ids were run through the model, wherever they came from.
type calibrated struct {
	Hash    string `json:"hash"`
	Windows int    `json:"windows"`
	SeqLen  int    `json:"seqlen"`
}

func calibratedBy(c *corpus.Windows) *calibrated {
	if c == nil {
		return nil
	}
	return &calibrated{c.Hash, len(c.IDs), c.SeqLen}
}

// sizes sums up what was read and written.
func (w *walk) sizes() {
	w.report.Total.BytesIn = w.m.DataSize()
	w.report.Total.BytesOut = w.output.size
	w.report.Total.Bits = 8 * w.output.quantised
}

func (w *walk) add(m Matrix) {
	w.report.add(m)
	if w.o.Matrix != nil {
		w.o.Matrix(m)
	}
}

func (w *walk) step(s Step) {
	if w.o.Step != nil {
		w.o.Step(s)
	}
}

// stop ends the output of a failed run: what a later one can go on with is kept after an interrupt or a fault of the
// machine, and removed after a fault of the input.
func (w *walk) stop(ctx context.Context, why error) error {
	if stage.Resumable(ctx, why) {
		return w.output.folder.Suspend()
	}
	return w.output.folder.Abort()
}

func (w *walk) free() {
	w.states.Free()
	w.factor.forget()
	if w.source != nil {
		_ = w.source.Close()
	}
}

func since(total *float64, start time.Time) { *total += time.Since(start).Seconds() }
