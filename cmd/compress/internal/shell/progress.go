package shell

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/modelcompress/compress/cmd/compress/internal/terminal"
)

// plainEvery is how often progress is written where stderr is no terminal.
const plainEvery = 5 * time.Second

// Progress shows how far a job is: a bar with the time left on a terminal, a plain line every few seconds elsewhere,
// nothing with --quiet. It is used by one goroutine.
type Progress struct {
	job   *Job
	name  string
	total int64
	start time.Time
	last  time.Time
	bytes bool // steps are bytes, so a rate is shown
	pool  *mpb.Progress
	bar   *mpb.Bar
	text  atomic.Pointer[string] // shown beside
}

// Progress starts a display of total steps.
func (j *Job) Progress(name string, total int64) *Progress { return j.progress(name, total, false) }

func (j *Job) progress(name string, total int64, bytes bool) *Progress {
	name = terminal.Line(name)
	now := time.Now()
	p := &Progress{job: j, name: name, total: total, start: now, last: now, bytes: bytes}
	after := []decor.Decorator{decor.NewPercentage(" %d"), decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 8})}
	after = append(after, decor.Any(func(decor.Statistics) string { return p.said() }))
	if bytes {
		after = append(after, decor.AverageSpeed(decor.SizeB1000(0), " % .1f"))
	}
	if f, ok := j.app.stderr.(*os.File); ok && !j.Quiet && term.IsTerminal(f.Fd()) {
		p.pool = mpb.New(mpb.WithOutput(f), mpb.WithWidth(48), mpb.WithAutoRefresh())
		p.bar = p.pool.New(total, mpb.BarStyle().Lbound("").Filler("━").Tip("━").Padding(" ").Rbound(""),
			mpb.PrependDecorators(decor.Name(name+"  ")),
			mpb.AppendDecorators(after...),
			mpb.BarRemoveOnComplete())
	}
	return p
}

// Set says that done steps are finished.
func (p *Progress) Set(done int64) {
	if p.bar != nil {
		p.bar.SetCurrent(min(done, p.total))
		return
	}
	if now := time.Now(); !p.job.Quiet && now.Sub(p.last) >= plainEvery {
		p.last = now
		left := "unknown"
		if done > 0 {
			left = (now.Sub(p.start) * time.Duration(p.total-done) / time.Duration(done)).Round(time.Second).String()
		}
		rate := ""
		if p.bytes {
			rate = ", " + Size(int64(float64(done)/now.Sub(p.start).Seconds())) + "/s"
		}
		fmt.Fprintf(p.job.app.stderr, "%s: %d %%%s, %s left%s\n", p.name, 100*done/max(p.total, 1), rate, left, p.said())
	}
}

// Say shows a few words, such as a loss, beside the progress from the next update on.
func (p *Progress) Say(words string) {
	words = terminal.Line(words)
	p.text.Store(&words)
}

func (p *Progress) said() string {
	if words := p.text.Load(); words != nil {
		return "  " + *words
	}
	return ""
}

// End removes the display; it may be called after a failure too.
func (p *Progress) End() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.pool.Wait()
	}
}

// Bars shows work that reports name, position and total by a callback; a new name begins a new bar.
type Bars struct {
	job   *Job
	bytes bool
	name  string // as it was given, which may not be what is shown
	open  *Progress
}

// Bars makes a display for work that reports by callback: pass Show to the work, call End when it returns.
func (j *Job) Bars() *Bars { return &Bars{job: j} }

// ByteBars is Bars for work that counts bytes: the display has a rate.
func (j *Job) ByteBars() *Bars { return &Bars{job: j, bytes: true} }

// Show says how far the work is.
func (b *Bars) Show(name string, done, total int64) {
	if b.open == nil || b.name != name {
		b.End()
		b.name = name
		b.open = b.job.progress(name, total, b.bytes)
	}
	b.open.Set(done)
}

// End removes the display; it may be called twice, and after a failure.
func (b *Bars) End() {
	if b.open != nil {
		b.open.End()
		b.open = nil
	}
}
