package router

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/linalg"
)

// Options of [Fit].
type Options struct {
	Classifier string  // lda, logistic or mlp
	Shrinkage  float64 // of the covariance towards a multiple of the identity
	Seed       uint64  // of the network's start
}

// Quality is how a router does on prompts that it was not trained on.
type Quality struct {
	HeldOut  int     // how many there were; 0: too few prompts, so that nothing else is known
	Accuracy float64 // fraction whose expert is the most likely one
	Others   int     // foreign prompts that were held out; 0: the classifier has none
	Told     float64 // fraction of those that are told
	Lost     float64 // fraction of the experts' prompts that are taken for foreign
	LogLoss  float64 // nats
	// Seen reports that the threshold is that of the prompts that the router was trained on, as there are too few
	// others.
	Seen bool
}

// Warning says what is not known; empty if all is.
func (q Quality) Warning() string {
	switch {
	case q.Seen:
		return "router: too few prompts to hold some out: its accuracy is not known, its temperature is 1, and what " +
			"is like no expert's is judged by the prompts it was trained on"
	case q.HeldOut == 0:
		return "router: too few prompts to hold some out: its accuracy is not known, its temperature is 1"
	}
	return ""
}

// folds is into how many parts the prompts of an expert are dealt.
const folds = 5

// Fit trains a router on normalised features, x[t] those of expert t. Every fifth prompt of an expert is held
// out for the temperature and the quality; then the router is trained again on all of them, with that
// temperature. Without held-out prompts the temperature is 1. The threshold is a distance that 95 of 100
// prompts do not reach, each from what the other four fifths give.
func Fit(x [][][]float64, o Options) (*Router, Quality, error) {
	train, held := deal(x, folds-1)
	all, _ := deal(x, -1)

	q := Quality{HeldOut: len(held.x)}
	r := &Router{Classifier: o.Classifier, Temperature: 1}
	if q.HeldOut > 0 {
		if err := r.train(train, len(x), o); err != nil {
			return nil, q, err
		}
		if err := r.calibrate(held, &q); err != nil {
			return nil, q, err
		}
	}

	if err := r.train(all, len(x), o); err != nil {
		return nil, q, err
	}

	return r, q, r.bound(x, all, o, &q)
}

// deal holds the prompts of one fold out.
func deal(x [][][]float64, fold int) (train, held sample) {
	for t, list := range x {
		for i, f := range list {
			if i%folds == fold {
				held.add(f, t)
			} else {
				train.add(f, t)
			}
		}
	}

	return train, held
}

// bound finds the threshold. Folds whose other prompts cannot train are left out.
func (r *Router) bound(x [][][]float64, all sample, o Options, q *Quality) error {
	// Distances of prompts that a fold's classes were fitted to are too short; only held-out ones say what is
	// usual.
	var list []float64
	for fold := range folds {
		train, held := deal(x, fold)
		var one Router
		if len(held.x) == 0 || one.discriminants(train, len(x), o.Shrinkage) != nil {
			continue
		}
		if err := one.distances(held, &list); err != nil {
			return err
		}
	}

	// Too few prompts for folds: distances of the training prompts are better than no threshold, and the quality
	// says so.
	if q.Seen = len(list) == 0; q.Seen {
		if err := r.distances(all, &list); err != nil {
			return err
		}
	}

	slices.Sort(list)
	at := 0.95 * float64(len(list)-1)
	i := int(at)
	j := min(i+1, len(list)-1)
	r.Outside = list[i] + (at-float64(i))*(list[j]-list[i])

	return nil
}

// distances appends those of a sample.
func (r *Router) distances(s sample, list *[]float64) error {
	for _, x := range s.x {
		d, err := r.distance(x)
		if err != nil {
			return err
		}
		*list = append(*list, d)
	}
	return nil
}

// train fits the classifier and what distances need.
func (r *Router) train(s sample, experts int, o Options) error {
	if err := r.discriminants(s, experts, o.Shrinkage); err != nil {
		return err
	}

	var err error
	switch o.Classifier {
	case "lda":
	case "logistic":
		r.linear = fitLinear(s, experts)
	case "mlp":
		r.network, err = fitNetwork(s, experts, o.Seed)
	default:
		err = fmt.Errorf("classifier %.40q: want lda, logistic or mlp: %w", o.Classifier, ErrPrompts)
	}

	return err
}

// sample is features with their experts.
type sample struct {
	x [][]float64
	t []int
}

func (s *sample) add(x []float64, t int) { s.x, s.t = append(s.x, x), append(s.t, t) }

// discriminants are means, priors and the pooled covariance, shrunk: (1-s)·S + s·(tr S/d)·I.
func (r *Router) discriminants(train sample, experts int, shrinkage float64) error {
	counts := make([]float64, experts)
	for _, t := range train.t {
		counts[t]++
	}

	for t, n := range counts {
		if n < 1 {
			return fmt.Errorf("expert %d has no prompts: %w", t, ErrPrompts)
		}
	}

	d := len(train.x[0])
	r.Mean, r.Prior = linalg.New(experts, d), make([]float64, experts)
	for i, x := range train.x {
		row := r.Mean.Row(train.t[i])
		for j, v := range x {
			row[j] += v / counts[train.t[i]]
		}
	}

	centred := linalg.New(len(train.x), d)
	for i, x := range train.x {
		for j, v := range x {
			centred.Set(i, j, v-r.Mean.At(train.t[i], j))
		}
	}

	for t := range counts {
		r.Prior[t] = counts[t] / float64(len(train.x))
	}

	r.Chol = linalg.New(d, d)
	solver := linalg.Solver{}
	solver.Mul(r.Chol, centred, centred, linalg.Product{TransA: true})
	r.Chol.Scale(1 / float64(max(1, len(train.x)-experts)))
	trace := 0.0
	for i := range d {
		trace += r.Chol.At(i, i)
	}
	if !(trace > 0) {
		return fmt.Errorf("all prompts of an expert have the same feature: %w", ErrPrompts)
	}

	// With fewer prompts than dimensions S is singular; the shrunk one is not.
	r.Chol.Scale(1 - shrinkage)
	for i := range d {
		r.Chol.Set(i, i, r.Chol.At(i, i)+shrinkage*trace/float64(d))
	}

	if err := solver.Cholesky(r.Chol, false); err != nil {
		return fmt.Errorf("covariance of %d prompts in %d dimensions, shrinkage %v: %w: %w", len(train.x), d, shrinkage,
			ErrPrompts, err)
	}

	return r.prepare()
}

// The temperatures that are tried. Held-out prompts that are all routed rightly want none at all, and say nothing about
// it.
const (
	coldest = 1e-3
	hottest = 1e3
)

// calibrate finds the temperature that gives held-out prompts the least loss; 1 if that is none.
func (r *Router) calibrate(held sample, q *Quality) error {
	scores := make([][]float64, len(held.x))
	for i, x := range held.x {
		var err error
		if scores[i], err = r.scores(x); err != nil {
			return err
		}
		if best(scores[i]) == held.t[i] {
			q.Accuracy += 1 / float64(len(held.x))
		}
	}

	loss := func(log float64) float64 { return logLoss(scores, held.t, math.Exp(log)) }
	if r.Temperature = math.Exp(golden(loss, math.Log(coldest), math.Log(hottest))); r.Temperature < 1.01*coldest {
		r.Temperature = 1
	}

	q.LogLoss = logLoss(scores, held.t, r.Temperature)
	return nil
}

// logLoss is the mean of -log softmax(scores/temperature) at the right expert.
func logLoss(scores [][]float64, t []int, temperature float64) float64 {
	sum := 0.0
	for i, s := range scores {
		top := slices.Max(s)
		z := 0.0
		for _, v := range s {
			z += math.Exp((v - top) / temperature)
		}
		sum += math.Log(z) - (s[t[i]]-top)/temperature
	}

	return sum / float64(len(scores))
}

// golden is the place of a minimum between two bounds, by golden sections.
func golden(f func(float64) float64, lo, hi float64) float64 {
	ratio := (math.Sqrt(5) - 1) / 2
	a, b := hi-ratio*(hi-lo), lo+ratio*(hi-lo)
	fa, fb := f(a), f(b)
	for range 80 {
		if fa <= fb {
			hi, b, fb = b, a, fa
			a = hi - ratio*(hi-lo)
			fa = f(a)
		} else {
			lo, a, fa = a, b, fb
			b = lo + ratio*(hi-lo)
			fb = f(b)
		}
	}

	return (lo + hi) / 2
}

// linear is W·(x-centre)/scale + b.
type linear struct {
	weight linalg.Matrix // [T, d]
	bias   []float64
	centre []float64
	scale  float64
}

func (l *linear) scores(x []float64) []float64 {
	out := slices.Clone(l.bias)
	for t := range out {
		row := l.weight.Row(t)
		for i, v := range x {
			out[t] += row[i] * (v - l.centre[i]) / l.scale
		}
	}
	return out
}

// spread are the mean of features and the root of their mean variance.
func spread(x [][]float64) (centre []float64, scale float64) {
	centre = make([]float64, len(x[0]))
	for _, f := range x {
		for i, v := range f {
			centre[i] += v / float64(len(x))
		}
	}

	for _, f := range x {
		for i, v := range f {
			scale += (v - centre[i]) * (v - centre[i])
		}
	}

	return centre, math.Sqrt(scale / float64(len(x)*len(centre)))
}

// ridge is the penalty on squared weights of the logistic regression, and steps how often its gradient is followed.
const (
	ridge = 1e-3
	steps = 600
)

// fitLinear is multinomial logistic regression with a ridge penalty, by accelerated gradients (Nesterov) with
// the step that the largest eigenvalue of the features allows: half of it bounds the curvature.
func fitLinear(s sample, experts int) *linear { return fitHead(s, experts, steps, false) }

// fitHead is fitLinear in so many steps, with or without classes that count alike, however many features they have.
func fitHead(s sample, experts, steps int, alike bool) *linear {
	centre, scale := spread(s.x)
	n, d := len(s.x), len(centre)
	x := linalg.New(n, d+1)
	for i, f := range s.x {
		for j, v := range f {
			x.Set(i, j, (v-centre[j])/scale)
		}
		x.Set(i, d, 1)
	}

	// Step 1/L with L the bound on the curvature: that of the softmax is at most ½ of ‖X‖²/n. The 10 % more make up for
	// the norm's being found iteratively.
	solver := linalg.Solver{}
	norm, err := solver.SpectralNorm(x, 1e-3)
	if err != nil {
		norm = x.Norm() // an upper bound
	}

	share, most := shares(s.t, experts, alike)
	step := 1 / (0.55*norm*norm*most + ridge)
	w, ahead := linalg.New(d+1, experts), linalg.New(d+1, experts)
	p, g := linalg.New(n, experts), linalg.New(d+1, experts)
	momentum := 1.0
	for range steps {
		solver.Mul(p, x, ahead, linalg.Product{})

		for i := range n {
			softmax(p.Row(i))
			p.Row(i)[s.t[i]]--
			for k := range p.Row(i) {
				p.Row(i)[k] *= share[i]
			}
		}

		solver.Mul(g, x, p, linalg.Product{TransA: true})
		next := (1 + math.Sqrt(1+4*momentum*momentum)) / 2
		for k := range w.Data {
			penalty := ridge * ahead.Data[k]
			if k >= d*experts {
				penalty = 0 // the bias
			}

			// The gradient is taken ahead of w, where the momentum is about to carry it.
			v := ahead.Data[k] - step*(g.Data[k]+penalty)
			ahead.Data[k] = v + (momentum-1)/next*(v-w.Data[k])
			w.Data[k] = v
		}

		momentum = next
	}

	l := &linear{weight: w.Sub(0, d, 0, experts).T(), bias: slices.Clone(w.Row(d)), centre: centre, scale: scale}
	return l
}

// shares are what features count, 1 together, and the most that one does.
func shares(t []int, classes int, alike bool) (list []float64, most float64) {
	counts, present := make([]float64, classes), 0.0
	for _, k := range t {
		if counts[k]++; counts[k] == 1 {
			present++
		}
	}

	list = make([]float64, len(t))
	for i, k := range t {
		list[i] = 1 / float64(len(t))
		if alike {
			list[i] = 1 / (present * counts[k])
		}
		most = max(most, list[i])
	}

	return list, most
}

func softmax(x []float64) {
	top, sum := slices.Max(x), 0.0
	for i, v := range x {
		x[i] = math.Exp(v - top)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}
