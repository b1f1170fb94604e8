package main

import (
	"fmt"
	"os"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// plainEvery is how often progress is written where stderr is no terminal.
const plainEvery = 5 * time.Second

// progress shows how far a job is: a bar with the time left on a terminal, a plain line every few seconds elsewhere,
// nothing with --quiet. It is used by one goroutine.
type progress struct {
	job   *job
	name  string
	total int64
	start time.Time
	last  time.Time
	pool  *mpb.Progress
	bar   *mpb.Bar
}

// progress starts a display of total steps.
func (j *job) progress(name string, total int64) *progress {
	now := time.Now()
	p := &progress{job: j, name: name, total: total, start: now, last: now}
	if f, ok := j.stderr.(*os.File); ok && !j.quiet && term.IsTerminal(f.Fd()) {
		p.pool = mpb.New(mpb.WithOutput(f), mpb.WithWidth(48), mpb.WithAutoRefresh())
		p.bar = p.pool.New(total, mpb.BarStyle().Lbound("").Filler("━").Tip("━").Padding(" ").Rbound(""),
			mpb.PrependDecorators(decor.Name(name+"  ")),
			mpb.AppendDecorators(decor.NewPercentage(" %d"), decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 8})),
			mpb.BarRemoveOnComplete())
	}
	return p
}

// set says that done steps are finished.
func (p *progress) set(done int64) {
	if p.bar != nil {
		p.bar.SetCurrent(min(done, p.total))
		return
	}
	if now := time.Now(); !p.job.quiet && now.Sub(p.last) >= plainEvery {
		p.last = now
		left := "unknown"
		if done > 0 {
			left = (now.Sub(p.start) * time.Duration(p.total-done) / time.Duration(done)).Round(time.Second).String()
		}
		fmt.Fprintf(p.job.stderr, "%s: %d %%, %s left\n", p.name, 100*done/max(p.total, 1), left)
	}
}

// end removes the display; it may be called after a failure too.
func (p *progress) end() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.pool.Wait()
	}
}

// bars shows work that reports name, position and total by a callback; a new name begins a new bar.
type bars struct {
	job  *job
	open *progress
}

func (j *job) bars() *bars { return &bars{job: j} }

func (b *bars) show(name string, done, total int64) {
	if b.open == nil || b.open.name != name {
		b.end()
		b.open = b.job.progress(name, total)
	}
	b.open.set(done)
}

func (b *bars) end() {
	if b.open != nil {
		b.open.end()
		b.open = nil
	}
}
