package cli

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// plainEvery is how often progress is written where stderr is no terminal.
const plainEvery = 5 * time.Second

// Stage is a part of a job with a display of progress of its own. A job that announces its stages has the time
// of those to come in what is left.
type Stage struct {
	Name string  // of the display
	Work float64 // about how much it is, in any unit that the stages of a job share; 0: not known
}

// pace is how fast the stages of a job went so far.
type pace struct {
	ahead []Stage // announced, and not yet begun
	spent time.Duration
	work  float64 // done in that time
}

// Announce says which displays of progress follow, in their order, in place of what was announced before. One
// that does not come is passed over when the next one begins.
func (j *Job) Announce(stages ...Stage) { j.pace.ahead = stages }

// begin takes a stage and those before it from what is announced, and returns its work, 0 for one that nobody
// announced.
func (p *pace) begin(name string) float64 {
	for i, s := range p.ahead {
		if s.Name == name {
			p.ahead = p.ahead[i+1:]
			return s.Work
		}
	}
	return 0
}

// after is how long the stages to come take, if part of the present one's work took so long; false where that
// cannot be known.
func (p *pace) after(spent time.Duration, work float64) (time.Duration, bool) {
	sum := 0.0
	for _, s := range p.ahead {
		sum += s.Work
	}
	if sum == 0 || p.work+work <= 0 {
		return 0, false
	}
	return time.Duration(float64(p.spent+spent) * sum / (p.work + work)), true
}

// Progress shows how far a job is: a bar with the time left on a terminal, a plain line every few seconds elsewhere,
// nothing with --quiet. It is used by one goroutine.
type Progress struct {
	job   *Job
	name  string
	total int64
	from  int64 // steps that were done before
	done  int64
	work  float64 // of the stage, if it was announced
	start time.Time
	last  time.Time
	bytes bool // steps are bytes, so a rate is shown
	pool  *mpb.Progress
	bar   *mpb.Bar
	text  atomic.Pointer[string] // shown beside
	times atomic.Pointer[string] // what is left, as a bar shows it
}

// Progress starts a display of total steps.
func (j *Job) Progress(name string, total int64) *Progress { return j.progress(name, total, false) }

// ByteProgress starts a display of total bytes, with a rate.
func (j *Job) ByteProgress(name string, total int64) *Progress { return j.progress(name, total, true) }

func (j *Job) progress(name string, total int64, bytes bool) *Progress {
	name = ShownLine(name)
	now := time.Now()
	p := &Progress{job: j, name: name, total: total, start: now, last: now, bytes: bytes, work: j.pace.begin(name)}
	after := []decor.Decorator{decor.NewPercentage(" %d")}
	after = append(after, decor.Any(func(decor.Statistics) string { return text(&p.times) + p.said() }))
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

// Skip says that so many steps were done before this run: they say nothing about its pace.
func (p *Progress) Skip(done int64) { p.from, p.done = done, done }

// Set says that done steps are finished.
func (p *Progress) Set(done int64) {
	p.done = min(done, p.total)
	now := time.Now()
	if p.bar != nil {
		p.bar.SetCurrent(p.done)
		words := "  " + p.left(now) + p.inAll(now)
		p.times.Store(&words)
		return
	}

	if p.job.Quiet || now.Sub(p.last) < plainEvery {
		return
	}

	p.last = now
	rate := ""
	if p.bytes {
		rate = ", " + Size(int64(float64(p.done-p.from)/now.Sub(p.start).Seconds())) + "/s"
	}

	fmt.Fprintf(p.job.app.stderr, "%s: %d %%%s, %s%s%s\n", p.name, 100*p.done/max(p.total, 1), rate, p.left(now),
		p.inAll(now), p.said())
}

// left says how long the stage still takes: by its own pace, before it has one by that of the stages before it.
func (p *Progress) left(now time.Time) string {
	spent, fresh := now.Sub(p.start), p.done-p.from
	if fresh > 0 {
		return time.Duration(float64(spent)/float64(fresh)*float64(p.total-p.done)).Round(time.Second).String() +
			" left"
	}

	if before := p.job.pace; p.work > 0 && before.work > 0 {
		whole := time.Duration(float64(before.spent) * p.work / before.work)
		return "about " + max(0, whole-spent).Round(time.Second).String() + " left"
	}

	return spent.Round(time.Second).String() + " so far"
}

// inAll says how long the job still takes, with the stages to come; nothing where there are none, or nothing is known.
func (p *Progress) inAll(now time.Time) string {
	spent, fresh := now.Sub(p.start), p.done-p.from
	if fresh <= 0 || p.work == 0 {
		return ""
	}

	done := p.work * float64(fresh) / float64(max(p.total, 1))
	later, ok := p.job.pace.after(spent, done)
	if !ok {
		return ""
	}

	own := time.Duration(float64(spent) / float64(fresh) * float64(p.total-p.done))
	return fmt.Sprintf(", %v in all", (own + later).Round(time.Second))
}

// Say shows a few words, such as a loss, beside the progress from the next update on.
func (p *Progress) Say(words string) {
	words = ShownLine(words)
	p.text.Store(&words)
}

func (p *Progress) said() string {
	if words := text(&p.text); words != "" {
		return "  " + words
	}
	return ""
}

func text(p *atomic.Pointer[string]) string {
	if words := p.Load(); words != nil {
		return *words
	}
	return ""
}

// End removes the display; it may be called after a failure too.
func (p *Progress) End() {
	if p.work > 0 && p.done > p.from {
		p.job.pace.spent += time.Since(p.start)
		p.job.pace.work += p.work * float64(p.done-p.from) / float64(max(p.total, 1))
		p.work = 0 // a second call adds nothing
	}
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
