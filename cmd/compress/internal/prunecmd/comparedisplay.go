package prunecmd

import (
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// display is the progress of a comparison.
type display struct {
	job         *cli.Job
	model       *lm.Model
	list        []prune.Contender
	calib, test corpus.Windows

	bar       *cli.Bars
	steps     func(prune.Step) // of the run at hand
	measuring string           // what a perplexity is shown as: of the dense model, until a run begins
}

// newDisplay announces what the comparison consists of.
func newDisplay(j *cli.Job, m *lm.Model, list []prune.Contender, calib, test corpus.Windows) *display {
	d := &display{job: j, model: m, list: list, calib: calib, test: test, bar: j.Bars(), measuring: stageBefore}
	d.announce(-1)
	return d
}

// forecast says what all runs will take.
func (d *display) forecast() error {
	if len(d.calib.IDs) == 0 {
		return d.job.Forecast(d.model, d.test, cli.PassMemory(d.model, d.test.SeqLen, d.test.SeqLen), false)
	}
	need := int64(0)
	for i := range d.list {
		need = max(need, memory(d.model, d.list[i].Options, d.calib))
	}
	return d.job.Forecast(d.model, d.calib, need, true)
}

// events shows what the library tells.
func (d *display) events() prune.CompareEvents {
	return prune.CompareEvents{
		Run: func(i int) {
			d.bar.End()
			d.announce(i)
			d.job.Note("run %d of %d begins: %s, %s", i+1, len(d.list), d.list[i].Target, d.list[i].Method)
			d.steps, d.measuring = steps(d.bar, d.model.Blocks(), d.list[i].Options), stageAfter
		},
		Step:    func(s prune.Step) { d.steps(s) },
		Measure: func(done, of int64) { d.bar.Show(d.measuring, done, of) },
		Note:    func(text string) { d.job.Note("%s", text) },
	}
}

// announce says what runs from a given one on consist of; -1: and what comes before the first. Those that the
// journal has are passed over when the next one begins.
func (d *display) announce(from int) {
	var list []cli.Stage
	made := map[string]bool{}
	for k, r := range d.list {
		for _, s := range stages(d.model, r.Options, d.calib, d.test) {
			if s.Name == stageBefore && (k > 0 || from >= 0) { // the dense model is measured once, before all runs
				continue
			}

			key := s.Name
			if s.Name == stageAllocation {
				key += r.Options.Allocation.Name
			}
			if shared := s.Name == stageGradients || s.Name == stageAllocation; shared && made[key] {
				continue
			}

			made[key] = true
			if k >= from {
				list = append(list, s)
			}
		}
	}

	d.job.Announce(list...)
}
