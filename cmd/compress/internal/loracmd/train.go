// Package loracmd is the work of the verbs about adapters: training one, or a whole model, and what is done to
// adapters' files (folding, combining, exporting, extracting, inspecting).
package loracmd

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// Options are the flags of the verb.
type Options struct {
	lora.Options
	Data             Files  // to train on, as one set of data, or with DataWeights each as one of its own
	DataWeights      string // a weight for each of Data, separated by commas; empty: none
	Out, Start, Held string // files and folders: to write, to start from, to evaluate on
	SeqLen           int
	Kept             string // memory for activations: a size, none, or empty for half of what is free
	cli.Compute
	Teaching
	Preferring
	Logs
	Bits         int      // of the base's matrices while an adapter is trained: 0 (as stored), 8 or 4
	Template     string   // file with a chat template
	RankPattern  []string // REGEX=RANK, in the order in which they are tried
	AlphaPattern []string
	Overwrite    bool

	shares []float64 // of DataWeights
}

// Report is what the verb says.
type Report struct {
	Out string `json:"out"`
	*lora.Report
	BaseHash string          `json:"base_fingerprint"` // of the weights that were trained or adapted
	Inputs   Inputs          `json:"inputs"`
	Records  lora.DataCounts `json:"records"`
	Sources  []Source        `json:"sources,omitempty"` // where the data are those of several files
}

// run is one run of the verb.
type run struct {
	remark string // about the base of the adapter that the run starts with
	*cli.Job
	o       *Options
	model   *lm.Model
	base    string // the model's fingerprint
	inputs  Inputs
	data    corpus.Windows
	count   lora.DataCounts // of all files
	sources []Source
	bar     *cli.Progress
	done    *Report
	leave   []func() error // what is open beside the model
}

// Train trains an adapter, or with kind full the model, and writes it.
func Train(j *cli.Job, model string, o Options) (any, error) {
	r := &run{Job: j, o: &o}
	if err := r.check(model); err != nil {
		return nil, err
	}

	release, err := claim(r.o.StateDir)
	if err != nil {
		return nil, fmt.Errorf("--out %s: %w", o.Out, err)
	}
	defer release()

	load := o.Compute.Options()
	load.Bits = o.Bits
	if r.model, err = j.Load(model, load); err != nil {
		return nil, err
	}
	defer r.model.Close()

	if r.base, err = r.model.Fingerprint(j.Ctx); err != nil {
		return nil, err
	}
	if err := r.read(); err != nil {
		return nil, err
	}
	if done, err := r.earlier(); err != nil || done != nil {
		return done, err
	}
	defer r.end()

	defer func() {
		for _, leave := range r.leave {
			_ = leave()
		}
	}()
	if err := r.teach(); err != nil {
		return nil, err
	}

	if o.Kind == "full" {
		return r.tune()
	}

	return r.train()
}

// kept reads --memory: bytes for kept activations, 0 for half of what is free, -1 for none.
func kept(text string) (int64, error) {
	switch text {
	case "":
		return 0, nil
	case "none":
		return -1, nil
	}
	return cli.Bytes("memory", text)
}

// check looks at the flags before any work.
func (r *run) check(model string) error {
	o := r.o
	if len(o.Data) == 0 || o.Out == "" {
		return errNeeds
	}
	if err := errors.Join(cli.ModelFolder(model), openmodel.OnlyWeights(model)); err != nil {
		return err
	}

	for _, in := range []string{model, o.Start} {
		if in == "" {
			continue
		}
		if err := stage.Apart(in, o.Out); err != nil {
			return err
		}
	}

	replace := o.Resume || o.Overwrite
	if err := errors.Join(o.settle(), o.Teaching.apart(o.Out), o.Logs.apart(o.Out, replace)); err != nil {
		return err
	}
	if o.Teaching.Model != "" {
		if err := errors.Join(cli.ModelFolder(o.Teaching.Model), openmodel.OnlyWeights(o.Teaching.Model)); err != nil {
			return err
		}
	}

	o.Seed = r.Seed
	o.StateDir = state(o.Out)
	if o.Kind == "full" {
		return stage.Vacant(o.Out, r.replaceable(model))
	}

	return lora.Vacant(o.Out, o.Overwrite || o.Resume)
}

// settle reads the flags that are texts.
func (o *Options) settle() (err error) {
	if o.Bits != 0 && (o.Kind == "full" || o.Bits != 4 && o.Bits != 8) {
		return cli.Usagef("--base-bits %d: 8 or 4, for a frozen base; 0 keeps it as stored", o.Bits)
	}
	if o.Memory, err = kept(o.Kept); err != nil {
		return err
	}
	if o.Options.RankPattern, err = patterns("rank-pattern", o.RankPattern); err != nil {
		return err
	}
	if o.Options.AlphaPattern, err = patterns("alpha-pattern", o.AlphaPattern); err != nil {
		return err
	}
	if o.Resume && o.Overwrite {
		return cli.Usagef("--resume continues an unfinished run, --overwrite begins a new one")
	}

	if o.shares, err = shares(o.DataWeights, o.Data); err != nil {
		return err
	}

	if o.Prefer, err = o.Preferring.settle(o.Teaching.on()); err != nil {
		return err
	}

	_, err = o.Teaching.settle()
	return err
}

// Check finds what is wrong with flags by themselves; what a file of settings says is not read.
func Check(o Options, config string) error {
	if (len(o.Data) == 0 || o.Out == "") && config == "" {
		return errNeeds
	}
	if err := o.settle(); err != nil {
		return err
	}
	o.Options.KeepBest = false // which depends on data and folders
	return cli.Usage(o.Options.Validate())
}

// errNeeds: there is nothing to train on, or no place to write to.
var errNeeds = cli.Usagef("--data and --out are needed, on the command line or in --config")

// patterns reads REGEX=VALUE.
func patterns(flag string, list []string) (out []lora.Pattern, err error) {
	for _, s := range list {
		i := strings.LastIndexByte(s, '=')
		if i < 1 {
			return nil, cli.Usagef("--%s %q: want REGEX=VALUE", flag, s)
		}

		v, err := strconv.ParseFloat(s[i+1:], 64)
		if err != nil || !(v > 0) || math.IsInf(v, 1) || flag == "rank-pattern" && v != float64(int(v)) {
			return nil, cli.Usagef("--%s %q: %q is no value for it", flag, s, s[i+1:])
		}

		out = append(out, lora.Pattern{Key: s[:i], Value: v})
	}

	return out, nil
}

// replaceable is the rule for a checkpoint in the place of the output.
func (r *run) replaceable(model string) func(dir string) error {
	if r.o.Overwrite || r.o.Resume {
		return stage.Replaceable(model)
	}
	return nil
}

// read reads the data.
func (r *run) read() error {
	tok, err := cli.Tokenizer(r.model)
	if err != nil {
		return err
	}

	o := lora.DataOptions{SeqLen: r.o.SeqLen}
	if r.o.Template != "" {
		if o.Template, err = small(r.o.Template, 1<<20); err != nil {
			return err
		}
	}

	var t lora.Tokenizer
	if tok != nil {
		t = tok
	}

	var parts []Source
	for _, path := range r.o.Data {
		w, good, counts, err := r.o.Preferring.read(r.Ctx, path, r.model, t, o)
		if err != nil {
			return err
		}
		parts = append(parts, Source{w, counts})
		if r.o.Prefer != nil {
			r.o.Prefer.Good = append(r.o.Prefer.Good, good...)
		}
	}

	r.join(parts)
	r.inputs.Labels = taught(r.data, r.o.Prefer)
	if err := r.steps(); err != nil {
		return err
	}

	if r.o.Held != "" {
		w, good, _, err := r.o.Preferring.read(r.Ctx, r.o.Held, r.model, t, o)
		if err != nil {
			return err
		}
		r.o.Eval = &w
		r.inputs.Eval = corpus.HashIDs(slices.Concat(w.IDs, w.Labels, marks(good)))
		if r.o.Prefer != nil {
			r.o.Prefer.EvalGood = good
		}
	}

	if r.o.Start != "" {
		if r.o.Init, err = lora.Open(r.o.Start, r.model); err != nil {
			return err
		}
		if r.inputs.Init, err = r.o.Init.Fingerprint(); err != nil {
			return err
		}
		if r.remark, err = r.o.Init.OtherBase(r.Ctx, r.model); err != nil {
			return err
		}
	}

	return cli.Usage(r.o.Options.Validate())
}

// train trains an adapter.
func (r *run) train() (any, error) {
	r.watch()
	a, err := lora.Train(r.Ctx, r.model, r.data, r.o.Options)
	r.end()
	if err != nil {
		return nil, flags(err)
	}

	r.done = r.reported(a.Report())
	if err := a.Save(r.o.Out, r.o.Overwrite || r.o.Resume); err != nil {
		return nil, err
	}

	if n := r.done.DeadShards; n > 0 {
		r.Note("shards of the pools that no block uses: %d; they are stored, but never trained (HINT: --sampling "+
			"balanced uses all)", n)
	}

	if text := a.Unread(r.model.Config().Arch); text != "" {
		r.Note("%s: compress reads the adapter as it is, and lora fold writes it into the weights", text)
	}

	if err := r.record(func(name string, data []byte) error {
		return cli.WriteFile(filepath.Join(r.o.Out, name),
			data)
	}); err != nil {
		return nil, err
	}

	if err := r.WriteCard(r.o.Out, "", r.card()); err != nil {
		return nil, err
	}
	err = r.finish()
	if a.Native() {
		base := "" // a Mixture of Shards alone says how large it is
		if r.done.Options.Kind != "mos" {
			base = " --model " + cli.ShellLine([]string{r.model.Path()})
		}
		r.Printf("PEFT does not load %s; compress lora export %s%s --out DIR makes a LoRA of it, which PEFT does\n",
			r.done.Options.Kind, r.o.Out, base)
	}

	return r.done, err
}

// flags makes errors about what the flags ask for ones about the command line.
func flags(err error) error {
	for _, e := range []error{
		lora.ErrConfig, lora.ErrTarget, lora.ErrOtherRun, lora.ErrUnsupported, lora.ErrTeacher,
	} {
		if errors.Is(err, e) {
			return cli.Usage(err)
		}
	}
	return err
}

// tune trains the whole model.
func (r *run) tune() (any, error) {
	r.watch()
	report, err := lora.Tune(r.Ctx, r.model, r.data, r.o.Options)
	r.end()
	if err != nil {
		return nil, flags(err)
	}

	r.done = r.reported(report)
	s, err := r.model.NewSaver(r.o.Out, lm.SaveOptions{Overwrite: r.o.Overwrite || r.o.Resume})
	if err != nil {
		return nil, err
	}

	if err := r.record(s.AddFile); err != nil {
		return nil, errors.Join(err, s.Abort())
	}
	if err := s.AddFile(card.Name, r.Card(r.model.Path(), r.card())); err != nil {
		return nil, errors.Join(err, s.Abort())
	}
	if err := s.Finish(r.Ctx); err != nil {
		return nil, errors.Join(err, s.Abort())
	}

	return r.done, r.finish()
}

// record gives the report and the page with the curves to what puts files into the output.
func (r *run) record(put func(name string, data []byte) error) error {
	text, err := r.Record(r.done)
	if err != nil {
		return err
	}
	page, err := Page(r.done, r.model.Path(), r.SourceRemarks())
	if err != nil {
		return err
	}
	return errors.Join(put("training.json", text), put("training.html", page))
}

// summary says what was trained and what came of it.
func (r *run) summary() string {
	d := r.done
	last := d.Steps[len(d.Steps)-1]
	steps := "one step"
	if n := len(d.Steps); n > 1 {
		steps = fmt.Sprintf("%d steps", n)
	}

	text := fmt.Sprintf("%s of %s parameters trained in %s, %.0f tokens/s; loss %.4f → %.4f",
		cli.Thousands(d.Trainable), cli.Thousands(d.Base), steps, d.PerSecond, d.Steps[0].Loss, last.Loss)

	if n := len(d.Evals); n > 0 {
		text += fmt.Sprintf("; held out %.4f", d.Evals[n-1].Loss)
		if d.Best > 0 {
			text += fmt.Sprintf(", kept that of step %d", d.Best)
		}
	}

	if last.Rewards != nil {
		text += fmt.Sprintf("; in the last step %s in %.0f %%", r.o.Preferring.right(), 100*last.Rewards.Accuracy)
	}
	return text
}

// finish says what was done and removes the state.
func (r *run) finish() error {
	d := r.done
	r.Printf("%s; in %s\n", r.summary(), d.Out)
	for i, u := range d.Sets {
		r.Printf("%s: %s %s (%.1f %%), %.2f epochs\n", d.source(i), cli.Thousands(int64(u.Drawn)), r.drawn(),
			100*u.Share, u.Epochs)
	}

	return errors.Join(os.RemoveAll(r.o.StateDir), remove(spoken(r.o.Out)))
}

// watch shows how far the run is.
func (r *run) watch() {
	o := &r.o.Options
	spent, tokens := 0.0, 0
	o.Remark = func(s string) { r.Note("%s", s) }
	o.Plan = func(p lora.RunPlan) {
		if p.Done == 0 {
			r.forecast(p.Steps)
		}
		r.bar = r.Progress("training", int64(p.Steps))
		if p.Done == 0 && o.Steps == 0 {
			passes := "one pass"
			if o.Epochs > 1 {
				passes = fmt.Sprintf("%d passes", o.Epochs)
			}
			r.Note("%d steps: %s over %d sequences", p.Steps, passes, len(r.data.IDs)-p.Dropped)
		}
		if p.Done > 0 {
			r.Note("%d of %d steps were done by the earlier run", p.Done, p.Steps)
		}

		if p.Zeros != nil && p.Zeros.Pruned > 0 && !p.Zeros.Kept {
			r.Note("--keep-zeros keeps the zeros of pruned matrices")
		}

		if r.count.Cut > 0 {
			r.Note("%d of %d records are longer than --seqlen %d: their ends were cut off", r.count.Cut,
				r.count.Records, r.o.SeqLen)
		}

		if r.remark != "" {
			r.Note("%s: %s", r.o.Start, r.remark)
		}

		if rank, all := o.AllPrivate(); all {
			r.Note(
				"--private: every rank is private to its block, so that nothing is shared: this is a LoRA of rank %d",
				rank)
		}

		if r.count.Empty > 0 {
			r.Note("%d of %d records have an empty completion: they teach to stop at once", r.count.Empty,
				r.count.Records)
		}

		if most := r.model.Config().MaxPositions; most > 0 && r.o.SeqLen > most {
			r.Note("--seqlen %d: the model has %d positions, so sequences have at most that many tokens", r.o.SeqLen,
				most)
		}

		if r.count.Same > 0 {
			r.Note("%d of %d records prefer an answer to itself, as far as --seqlen goes, and are left out",
				r.count.Same, r.count.Records)
		}

		switch {
		case p.Dropped > 0 && o.Prefer != nil:
			r.Note("%d preferences have an answer without a token within --seqlen %d, and are left out", p.Dropped,
				r.o.SeqLen)
		case p.Dropped > 0:
			r.Note("%d sequences have no token that counts and are left out", p.Dropped)
		}

		r.log(func() error { return r.o.Logs.open(p) })
	}

	o.Each = func(s lora.Step) {
		spent, tokens = spent+s.Seconds, tokens+s.Tokens
		r.bar.Say(fmt.Sprintf("loss %.4f, %.0f tokens/s", s.Loss, float64(tokens)/max(spent, 1e-9)))
		r.bar.Set(int64(s.Step + 1))
		r.log(func() error { return r.o.Logs.step(s) })
	}

	o.Note = func(e lora.Eval) {
		text := fmt.Sprintf("after step %d: held-out loss %.4f", e.Step, e.Loss)
		if e.Step == 0 {
			text = fmt.Sprintf("before training: held-out loss %.4f", e.Loss)
		}
		if e.Rewards != nil {
			text += fmt.Sprintf(", %s in %.1f %%", r.o.Preferring.right(), 100*e.Rewards.Accuracy)
		}
		r.Note("%s", text)
		r.log(func() error { return r.o.Logs.eval(e) })
	}
}

// forecast says what the training will take. A step goes forward, and back through products with the weights; what is
// learned is little beside them, unless it is the model.
func (r *run) forecast(steps int) {
	const forwardAndBack, full = 3, 1.3
	tokens := int64(cli.Tokens(r.data)) * int64(steps*r.o.Batch) / int64(max(1, len(r.data.IDs)))
	if r.o.Pack > 0 {
		tokens = int64(steps * r.o.Pack)
	}
	work := forwardAndBack * float64(tokens) * float64(int64(r.model.Blocks())+r.model.HeadBlocks())
	if r.o.Kind == "full" {
		work *= full
	}
	r.Announce(cli.Stage{Name: "training", Work: work})
	if err := r.Forecast(r.model, r.data, 0, false); err != nil {
		r.Note("how long it takes is not known: %v", err)
	}
}

// log writes logs; the first thing that goes wrong is said, and ends them: a full disk is no reason to lose a training.
func (r *run) log(write func() error) {
	if err := write(); err != nil {
		r.Note("the logs end here: %v", err)
		r.o.Logs.stop()
	}
}

func (r *run) end() {
	r.log(r.o.Logs.close)

	if r.bar != nil {
		r.bar.End()
		r.bar = nil
	}
}

// small reads a text file of limited size.
func small(path string, most int64) (string, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s: larger than %d bytes", path, most)
	}

	return string(text), err
}
