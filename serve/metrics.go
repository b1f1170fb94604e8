package serve

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// watch counts what a server does, for Prometheus.
type watch struct {
	registry *prometheus.Registry

	requests  *prometheus.CounterVec   // by path and code
	prompt    *prometheus.CounterVec   // tokens, by model
	reused    *prometheus.CounterVec   // of these, those that were there
	generated *prometheus.CounterVec   // tokens, by model
	first     *prometheus.HistogramVec // seconds to the first token, by model
	steps     *prometheus.HistogramVec // seconds, by model
	preempted prometheus.Counter
	panicked  prometheus.Counter
	loads     *prometheus.HistogramVec // seconds that opening a model took, by model
	proposed  *prometheus.CounterVec   // tokens, by model
	accepted  *prometheus.CounterVec   // of these
	evictions *prometheus.CounterVec   // by model
	loaded    prometheus.Gauge         // bytes
	adapted   prometheus.Gauge         // of these

	counts struct{ requests, prompt, reused, generated atomic.Int64 }

	mu     sync.Mutex
	states map[*engine]state
}

// state is what a loop was at when it last looked.
type state struct{ running, waiting, used, kept, positions int }

func newWatch() *watch {
	w := &watch{registry: prometheus.NewRegistry(), states: map[*engine]state{}}
	w.registry.MustRegister(collectors.NewGoCollector()) // goroutines and memory
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "compress_" + name, Help: help}, labels)
		w.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "compress_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"model"})
		w.registry.MustRegister(h)
		return h
	}

	w.requests = counter("requests_total", "Answered requests.", "path", "code")
	w.prompt = counter("prompt_tokens_total", "Tokens of prompts.", "model")
	w.reused = counter("prompt_tokens_reused_total", "Tokens of prompts that had been computed before.", "model")
	w.generated = counter("generated_tokens_total", "Generated tokens.", "model")
	w.first = histogram("first_token_seconds", "Time from the arrival of a request to its first new token.")
	w.steps = histogram("step_seconds", "Time of a pass over the tokens of all requests that take part.")
	w.loads = histogram("model_load_seconds", "Time that it took to open a model, without what it waited for.")
	w.proposed = counter("draft_tokens_total", "Tokens that drafts have proposed.", "model")
	w.accepted = counter("draft_tokens_accepted_total", "Proposed tokens that were right.", "model")
	w.evictions = counter("model_evictions_total", "Models that were closed for others.", "model")
	w.loaded = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "compress_loaded_bytes",
		Help: "What models that are loaded on demand take: weights, keys and values, drafts and adapters.",
	})
	w.adapted = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "compress_adapter_bytes", Help: "What open adapters take.",
	})
	w.preempted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "compress_preemptions_total", Help: "Requests that gave up their keys and values for lack of memory.",
	})
	w.panicked = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "compress_panics_total", Help: "Faults of the program that ended the requests of a model.",
	})
	w.registry.MustRegister(w.preempted, w.panicked, w.loaded, w.adapted)

	for name, g := range map[string]struct {
		help string
		of   func(state) int
	}{
		"requests_running":   {"Prompts that are computed.", func(s state) int { return s.running }},
		"requests_waiting":   {"Prompts that wait.", func(s state) int { return s.waiting }},
		"positions_used":     {"Positions whose keys and values are in use.", func(s state) int { return s.used }},
		"positions_kept":     {"Positions whose keys and values are kept.", func(s state) int { return s.kept }},
		"positions_possible": {"Positions for which there is memory.", func(s state) int { return s.positions }},
	} {
		w.registry.MustRegister(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "compress_" + name, Help: g.help}, func() float64 { return w.sum(g.of) }))
	}

	return w
}

// sum adds up what the loops are at.
func (w *watch) sum(of func(state) int) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()

	n := 0
	for _, s := range w.states {
		n += of(s)
	}
	return float64(n)
}

// state takes what a loop is at.
func (w *watch) state(e *engine) {
	e.mu.Lock()
	waiting := len(e.waiting)
	e.mu.Unlock()

	use := e.batch.Use()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[e] = state{len(e.tasks), waiting, use.Used, use.Kept, use.Positions}
}

// forget leaves a loop out that has ended.
func (w *watch) forget(e *engine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.states, e)
}

// gone leaves out what was counted of an adapter that was unloaded: names that never come again would pile up.
func (w *watch) gone(name string) {
	for _, c := range []*prometheus.CounterVec{w.prompt, w.reused, w.generated, w.proposed, w.accepted} {
		c.DeleteLabelValues(name)
	}
	w.first.DeleteLabelValues(name)
}

// stepped counts a pass.
func (w *watch) stepped(p *plan, took time.Duration) {
	w.steps.WithLabelValues(p.e.name).Observe(took.Seconds())
	for i, work := range p.work {
		if work.Prompt {
			w.prompt.WithLabelValues(p.of[i].t.of.model.Name).Add(float64(len(work.IDs)))
			w.counts.prompt.Add(int64(len(work.IDs)))
		}
	}
}

// token counts a new token.
func (w *watch) token(t *task, c *choice) {
	w.generated.WithLabelValues(t.of.model.Name).Inc()
	w.counts.generated.Add(1)
	if len(c.ids) == 1 && c.index == t.first {
		w.first.WithLabelValues(t.of.model.Name).Observe(time.Since(t.began).Seconds())
		w.prompt.WithLabelValues(t.of.model.Name).Add(float64(t.reused))
		w.reused.WithLabelValues(t.of.model.Name).Add(float64(t.reused))
		w.counts.prompt.Add(int64(t.reused))
		w.counts.reused.Add(int64(t.reused))
	}
}

// drafted counts the tokens that a draft has proposed.
func (w *watch) drafted(t *task, right, proposed int) {
	w.proposed.WithLabelValues(t.of.model.Name).Add(float64(proposed))
	w.accepted.WithLabelValues(t.of.model.Name).Add(float64(right))
}

func (w *watch) gaveUp(*task) { w.preempted.Inc() }

// answered counts a request.
func (w *watch) answered(path string, code int) {
	w.requests.WithLabelValues(path, strconv.Itoa(code)).Inc()
	w.counts.requests.Add(1)
}

// Counts is what a server has done.
type Counts struct {
	Requests        int64 `json:"requests"` // that were answered, with faults too
	PromptTokens    int64 `json:"prompt_tokens"`
	ReusedTokens    int64 `json:"reused_tokens"` // of these, those that had been computed before
	GeneratedTokens int64 `json:"generated_tokens"`
}

// Counts tells what the server has done so far.
func (s *Server) Counts() Counts {
	c := &s.watch.counts
	return Counts{
		c.requests.Load(), c.prompt.Load(), c.reused.Load(), c.generated.Load(),
	}
}

// page is what Prometheus reads.
func (w *watch) page() http.Handler { return promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{}) }
