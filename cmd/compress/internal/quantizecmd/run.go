// Package quantizecmd runs the verb quantize: a model into a folder or a file of few bits.
package quantizecmd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize"
)

// Options are the settings of a run, as the command line has them.
type Options struct {
	To      string   // name of a scheme
	PPL     string   // data for a perplexity before and after; empty: none
	Memory  string   // for Hessians
	Shard   string   // largest file
	Imatrix string   // importance matrix for a GGUF file; empty: none
	Types   []string // PATTERN=TYPE
	Name    string   // general.name of a GGUF file; empty: the last part of the model's path
	Assign  Assign   // of a choice among several levels

	assigned *quantize.Assignment // what was chosen; nil: there is one scheme

	cli.Calibration
	Quantize quantize.Options
}

// Report is the library's report with what the command line adds.
type Report struct {
	*quantize.Report
	Out        string                  `json:"out"`
	Assignment *quantize.Assignment    `json:"assignment,omitempty"`
	Perplexity *perplexity.BeforeAfter `json:"perplexity,omitempty"`
}

// Check finds what is wrong with flags by themselves.
func Check(o Options) error {
	if o.several() {
		return o.assignable()
	}
	if err := o.checkSingle(); err != nil {
		return err
	}
	s, err := quantize.SchemeByName(o.To)
	if err != nil {
		return err
	}
	if s.File() {
		_, err = o.fileOptions(s)
		return err
	}
	_, err = o.options()
	return err
}

// options turns flags into the library's options.
func (o *Options) options() (quantize.Options, error) {
	q := o.Quantize
	var err error
	if o.assigned != nil {
		q = o.assigned.FolderOptions(q)
	} else if q.Scheme, err = quantize.SchemeByName(o.To); err != nil {
		return q, err
	}
	if q.HessianMemory, err = cli.Bytes("hessian-memory", o.Memory); err != nil {
		return q, err
	}
	if o.assigned == nil {
		if q.Types, err = o.rules("*.down_proj=w8a16"); err != nil {
			return q, err
		}
	}
	if o.Shard != "keep" {
		if q.MaxShardSize, err = cli.ShardLimit(o.Shard); err != nil {
			return q, err
		}
	}

	switch {
	case strings.HasSuffix(q.Out, ".gguf"):
		return q, cli.Usagef("--out %s: scheme %s writes a folder; leave .gguf out of its name", q.Out, o.To)
	case o.Imatrix != "":
		return q, cli.Usagef("--imatrix goes with the schemes of GGUF files (scheme %s)", o.To)
	}
	if err := o.CheckCalibration(); err != nil {
		return q, err
	}
	if err := q.Validate(); err != nil {
		return q, err
	}
	if o.Calib == "" && q.NeedsCalibration() {
		return q, cli.Usagef("%s: no calibration data (HINT: give --calib FILE, or use --method %s)", q.Measuring(),
			quantize.RTN)
	}
	return q, nil
}

// rules are the types of matrices that are not those of most.
func (o *Options) rules(example string) (list []quantize.TypeRule, err error) {
	for _, text := range o.Types {
		pattern, kind, ok := strings.Cut(text, "=")
		if !ok {
			return nil, cli.Usagef("--type %q: want PATTERN=TYPE, such as %s", text, example)
		}
		list = append(list, quantize.TypeRule{Pattern: pattern, Type: kind})
	}
	return list, nil
}

// Vacant looks at the place of the output before any work that comes before.
func Vacant(j *cli.Job, model string, o Options) error {
	file, err := o.intoFile()
	if err != nil {
		return err
	}

	q := o.Quantize
	if !file {
		return o.checkPlaces(j, model, q)
	}
	if err := errors.Join(cli.Apart([2]string{"out", q.Out}, [2]string{"report", j.ReportTo()}),
		stage.Apart(model, q.Out)); err != nil {
		return err
	}
	if _, err := os.Stat(q.Out); err == nil && !q.Overwrite && !q.Resume {
		return fmt.Errorf("%s: %w", q.Out, stage.ErrExists)
	}
	return replaceable(q.Out, q.Overwrite)
}

// Model quantises one model and prints what became of it.
func Model(j *cli.Job, path string, o Options) (any, error) {
	if err := Check(o); err != nil {
		return nil, err
	}
	if o.several() {
		return chosen(j, path, o)
	}
	if s, err := quantize.SchemeByName(o.To); err != nil {
		return nil, err
	} else if s.File() {
		return intoFile(j, path, o, s)
	}

	r, err := into(j, path, o)
	if err != nil {
		return nil, err
	}
	r.print(j)
	return r, nil
}

// chosen chooses what each matrix becomes, and makes it.
func chosen(j *cli.Job, path string, o Options) (any, error) {
	if err := o.assign(j, path); err != nil {
		return nil, err
	}
	r, err := o.make(j, path)
	if err == nil && o.assigned.Measured != nil {
		err = os.Remove(o.journalPath())
	}
	return r, err
}

// make makes what was chosen.
func (o *Options) make(j *cli.Job, path string) (any, error) {
	if f := o.assigned.FileOptions(quantize.FileOptions{}); f.Scheme.File() {
		return intoFile(j, path, *o, f.Scheme)
	}
	r, err := into(j, path, *o)
	if err != nil {
		return nil, err
	}
	r.print(j)
	return r, nil
}

func into(j *cli.Job, path string, o Options) (*Report, error) {
	q, err := o.options()
	if err != nil {
		return nil, err
	}
	if err := o.checkPlaces(j, path, q); err != nil {
		return nil, err
	}
	if err := openmodel.OnlyWeights(path); err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	var calib corpus.Windows
	if q.NeedsCalibration() {
		calib, err = o.Windows(j, m)
		if err != nil {
			return nil, err
		}
	}
	if err := quantize.Check(j.Ctx, m, calib, q); err != nil {
		return nil, err
	}

	r, err := o.run(j, m, calib, q)
	if err != nil {
		return nil, err
	}
	base := cmp.Or(q.Origin, path)
	return r, j.WriteCard(q.Out, base, r.card(base))
}

// checkPlaces looks at what the run will read and write, before the work.
func (o *Options) checkPlaces(j *cli.Job, model string, q quantize.Options) error {
	if err := errors.Join(cli.Apart([2]string{"out", q.Out}, [2]string{"report", j.ReportTo()}),
		stage.Apart(model, q.Out)); err != nil {
		return err
	}

	// with resume alone, what is there may be the finished output of this job, which the library knows
	if !q.Resume || q.Overwrite {
		var allow func(dir string) error
		if q.Overwrite {
			allow = stage.Replaceable(model, quantize.RecordFile)
		}
		if err := stage.Vacant(q.Out, allow); err != nil {
			return err
		}
	}

	if o.Calib == "" {
		return nil
	}
	if err := cli.DataThere(o.Calib); err != nil {
		return fmt.Errorf("--calib: %w", err)
	}
	return nil
}

// The displays of progress of a run, in their order.
const (
	stageBefore     = "perplexity before"
	stageQuantising = "quantising"
	stageAfter      = "perplexity after"
)

func (o *Options) run(j *cli.Job, m *lm.Model, calib corpus.Windows, q quantize.Options) (*Report, error) {
	cut := corpus.CutOptions{SeqLen: o.SeqLen}
	var before *perplexity.Report
	var windows corpus.Windows
	var err error
	if o.PPL != "" {
		if windows, err = j.Cut(m, o.PPL, cut); err != nil {
			return nil, err
		}
	}

	o.announce(j, m, calib, windows, q)
	if q.NeedsCalibration() && !q.Resume {
		if err := j.Forecast(m, calib, memory(m, q, calib), true); err != nil {
			return nil, err
		}
	}
	if o.PPL != "" {
		if before, _, err = perplexity.Windows(j, stageBefore, m, windows); err != nil {
			return nil, err
		}
	}

	bar := j.Bars()
	defer bar.End()
	q.Step = steps(bar, m.Blocks(), q)
	done, err := quantize.Model(j.Ctx, m, calib, q)
	bar.End()
	if err != nil {
		return nil, err
	}

	r := &Report{Report: done, Out: q.Out, Assignment: o.assigned}
	o.remarks(m, calib, q, r)
	if err := r.others(j, m); err != nil {
		return nil, err
	}
	if before != nil {
		after, err := perplexity.Folder(j, stageAfter, q.Out, o.PPL, cut)
		if err != nil {
			return nil, err
		}
		r.Perplexity = &perplexity.BeforeAfter{Before: before, After: after}
	}

	return r, nil
}

// others notes what is not finite in tensors that stay as they are.
func (r *Report) others(j *cli.Job, m *lm.Model) error {
	quantised := map[string]bool{}
	for i := range r.Matrices {
		quantised[r.Matrices[i].Name] = true
	}
	bad, err := checkpoint.NonFinite(j.Ctx, m.Source(), quantised, m.Device())
	if err == nil && len(bad) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d tensors that are not quantised hold NaN or infinities and were "+
			"copied as they are; the first is tensor %q, element %s", len(bad), bad[0].Tensor, bad[0].Element))
	}
	return err
}

// remarks notes what was not as one may think.
func (o *Options) remarks(m *lm.Model, calib corpus.Windows, q quantize.Options, r *Report) {
	if o.Calib != "" && !q.NeedsCalibration() && o.assigned == nil {
		r.Notes = append(r.Notes, fmt.Sprintf("--calib %s was not used: method %s measures nothing", o.Calib, q.Method))
	}
	if text := cli.Beyond(m, calib.SeqLen); text != "" {
		r.Notes = append(r.Notes, text)
	}
	if left := stage.NotCopied(m.Path(), q.Out); len(left) > 0 {
		r.Notes = append(r.Notes,
			fmt.Sprintf("%d files beside the weights were not copied: %s", len(left), strings.Join(left, ", ")))
	}
}

// announce says what a run consists of, in passes of a token through a block.
func (o *Options) announce(j *cli.Job, m *lm.Model, calib, ppl corpus.Windows, q quantize.Options) {
	tokens := cli.Tokens(calib)

	// A matrix is rounded and written in about the time in which so many tokens pass it; what makes up for errors takes
	// as long as some more.
	const rounding, sweeping = 200, 2000
	work := float64(rounding * m.Blocks())
	if q.NeedsCalibration() {
		work = float64((2*tokens + sweeping) * m.Blocks())
		if q.Method == quantize.GPTQ || q.Method == quantize.AWQGPTQ {
			work += cli.HessianWork(m, float64(tokens))
		}
	}

	var list []cli.Stage
	if len(ppl.IDs) > 0 {
		list = append(list, cli.Stage{Name: stageBefore, Work: float64(m.LossWork(ppl))})
	}
	list = append(list, cli.Stage{Name: stageQuantising, Work: work})
	if len(ppl.IDs) > 0 {
		list = append(list, cli.Stage{Name: stageAfter, Work: float64(m.LossWork(ppl))})
	}
	j.Announce(list...)
}

// memory is about how much a run with calibration takes, in bytes.
func memory(m *lm.Model, q quantize.Options, calib corpus.Windows) int64 {
	need := cli.PassMemory(m, cli.Tokens(calib), cmp.Or(q.BatchTokens, 8192))
	if q.Method == quantize.GPTQ || q.Method == quantize.AWQGPTQ {
		need += cli.HessianMemory(m, q.HessianMemory)
	}
	return need
}

// blockSteps is into how many steps of progress a block is divided.
const blockSteps = 1000

// steps shows the steps of a run.
func steps(bar *cli.Bars, layers int, q quantize.Options) func(quantize.Step) {
	blocks := int64(layers)
	at := int64(0) // a block that is run several times goes back and forth
	return func(s quantize.Step) {
		from, to := int64(0), int64(blockSteps)
		switch {
		case s.Stage == quantize.Save:
			at = blocks * blockSteps
		case !q.NeedsCalibration():
		case s.Stage == quantize.Statistics:
			to = 350
		case s.Stage == quantize.Round:
			from, to = 350, 650
		case s.Stage == quantize.Propagate:
			from = 650
		}

		if s.Stage != quantize.Save {
			at = max(at, int64(s.Block)*blockSteps+from+(to-from)*int64(s.Done)/int64(max(s.Of, 1)))
		}
		bar.Show(stageQuantising, at, blocks*blockSteps)
	}
}
