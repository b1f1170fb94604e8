package router

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/linalg"
)

// Nearest is the classifier that compares a prompt with those it was trained on, token by token, and adds what a linear
// head says of its feature.
const Nearest = "nearest"

// Prompt is what the classifier by nearest prompts sees of one.
type Prompt struct {
	Feature []float64 // of length 1
	Grams   []uint32  // from [Grams]
}

// Grams are the tokens of a prompt and its pairs of neighbours, hashed: ascending, each once. What tells experts apart
// that are asked in the same words is often one name, a pair of rare tokens that a mean over the prompt drowns.
func Grams(ids []int32) []uint32 {
	list := make([]uint32, 0, 2*len(ids))
	for i, id := range ids {
		list = append(list, mixed(0, id))
		if i > 0 {
			list = append(list, mixed(uint64(ids[i-1])+1, id))
		}
	}

	slices.Sort(list)
	return slices.Compact(list)
}

// mixed hashes a pair (multiplication and shifts, as in the finaliser of SplitMix64).
func mixed(before uint64, id int32) uint32 {
	h := (before<<32 | uint64(uint32(id))) + 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return uint32(h >> 32)
}

// shelf is the prompts that others are compared with.
type shelf struct {
	grams []uint32 // of one prompt after the other
	ends  []uint32 // of the prompts in grams
	class []uint32

	index   map[uint32][]int32 // prompts that hold a gram
	rare    map[uint32]float64 // the square of a gram's weight, ln(prompts/those with it)
	length  []float64          // of the prompts under these weights
	unknown float64            // the square of the weight of a gram that no prompt holds
}

func (s *shelf) add(grams []uint32, class int) {
	s.grams = append(s.grams, grams...)
	s.ends = append(s.ends, uint32(len(s.grams)))
	s.class = append(s.class, uint32(class))
}

// prepare weighs the grams.
func (s *shelf) prepare() {
	s.index, s.rare = map[uint32][]int32{}, map[uint32]float64{}
	start := uint32(0)
	for i, end := range s.ends {
		for _, g := range s.grams[start:end] {
			s.index[g] = append(s.index[g], int32(i))
		}
		start = end
	}

	n := float64(len(s.ends))
	for g, list := range s.index {
		w := math.Log(n / float64(len(list)))
		s.rare[g] = w * w
	}
	s.unknown = math.Log(n) * math.Log(n)

	s.length = make([]float64, len(s.ends))
	start = 0
	for i, end := range s.ends {
		sum := 0.0
		for _, g := range s.grams[start:end] {
			sum += s.rare[g]
		}
		s.length[i], start = math.Sqrt(sum), end
	}
}

// similar is the largest cosine to a prompt of each class.
func (s *shelf) similar(grams []uint32, classes int) []float64 {
	shared := make([]float64, len(s.ends))
	own := 0.0
	for _, g := range grams {
		list, ok := s.index[g]
		if !ok {
			own += s.unknown
			continue
		}

		w := s.rare[g]
		own += w
		for _, i := range list {
			shared[i] += w
		}
	}

	out := make([]float64, classes)
	for i, v := range shared {
		if v > 0 {
			out[s.class[i]] = max(out[s.class[i]], v/(s.length[i]*math.Sqrt(own)))
		}
	}

	return out
}

// cosine is what a cosine of 1 counts among the scores, in nats before the temperature.
const cosine = 10

// mixes are the weights of the head that are tried, from the least on.
func mixes() []float64 { return []float64{0, 0.025, 0.05, 0.1, 0.2, 0.4} }

// headSteps is how often the gradient of a head is followed. Its penalty settles it long before that of a classifier
// which has nothing beside it.
const headSteps = 150

// FitNearest trains a router on prompts of experts and on others that are none of theirs. Everything that has to be
// chosen comes from five parts, each judged by what the other four give: the weight of the head, which is the smallest
// that serves as well as the best does; the temperature; and the bound from which on a prompt is foreign, which 97 of
// 100 prompts of the experts stay below.
func FitNearest(prompts [][]Prompt, others []Prompt, o Options) (*Router, Quality, error) {
	experts := len(prompts)
	var all []Prompt
	var class []int
	var part []int
	for t, list := range append(slices.Clone(prompts), others) {
		if len(list) == 0 && t < experts {
			return nil, Quality{}, fmt.Errorf("expert %d has no prompts: %w", t, ErrPrompts)
		}
		for i, p := range list {
			all, class, part = append(all, p), append(class, t), append(part, i%folds)
		}
	}

	pick := func(yes func(i int) bool) (list []Prompt, t []int) {
		for i, p := range all {
			if yes(i) {
				list, t = append(list, p), append(t, class[i])
			}
		}
		return list, t
	}

	heads, cosines := make([][]float64, len(all)), make([][]float64, len(all))
	var held []int
	for fold := range folds {
		list, t := pick(func(i int) bool { return part[i] != fold })
		if !covers(t, experts) {
			continue
		}

		one := &Router{Classifier: Nearest, Temperature: 1}
		if err := one.fitNearest(list, t, experts); err != nil {
			return nil, Quality{}, err
		}
		for i, p := range all {
			if part[i] == fold {
				heads[i], cosines[i] = one.linear.scores(p.Feature), one.shelf.similar(p.Grams, experts+1)
				held = append(held, i)
			}
		}
	}

	r := &Router{Classifier: Nearest, Temperature: 1, Mix: mixes()[1]}
	var q Quality
	if slices.ContainsFunc(held, func(i int) bool { return class[i] < experts }) {
		slices.Sort(held)
		q = r.choose(heads, cosines, class, held, experts)
	} else {
		q.Seen = true // the bound stays at even odds
	}

	return r, q, r.fitNearest(all, class, experts)
}

// covers reports whether every class has a prompt.
func covers(t []int, experts int) bool {
	for k := range experts {
		if !slices.Contains(t, k) {
			return false
		}
	}
	return len(t) > 0
}

// fitNearest fits head and shelf.
func (r *Router) fitNearest(list []Prompt, t []int, experts int) error {
	r.shelf = &shelf{}
	var s sample
	for i, p := range list {
		if len(p.Feature) != len(list[0].Feature) {
			return fmt.Errorf("features of %d and %d elements: %w", len(list[0].Feature), len(p.Feature), ErrFeature)
		}
		s.add(p.Feature, t[i])
		r.shelf.add(p.Grams, t[i])
	}

	r.shelf.prepare()
	r.experts = experts
	// An expert with many prompts is not asked more often for that: classes count alike.
	r.linear = fitHead(s, experts+1, headSteps, true)
	return nil
}

// choose finds weight of the head, temperature and bound by held-out scores, and says how good they are.
func (r *Router) choose(heads, cosines [][]float64, class, held []int, experts int) Quality {
	type result struct {
		Quality
		mix, bound, temperature float64
	}

	var tried []result
	for _, mix := range mixes() {
		x := result{mix: mix}
		var own, others []float64
		var scores [][]float64
		var t []int
		for _, i := range held {
			s := fused(heads[i], cosines[i], mix)
			odds := s[experts] - slices.Max(s[:experts])
			if class[i] == experts {
				others = append(others, odds)
				continue
			}

			own = append(own, odds)
			scores, t = append(scores, s[:experts]), append(t, class[i])
			if best(s[:experts]) == class[i] {
				x.Accuracy++
			}
		}

		x.HeldOut, x.Others = len(own), len(others)
		x.Accuracy /= float64(len(own))
		x.bound = quantile(own, 0.97)
		// Where the two lie apart, what experts are asked next may differ more from their prompts than those among
		// themselves: as much room as tells 97 of 100 foreign ones.
		if len(others) > 0 {
			x.bound = max(x.bound, quantile(others, 0.03))
		}
		x.Told, x.Lost = above(others, x.bound), above(own, x.bound)

		loss := func(log float64) float64 { return logLoss(scores, t, math.Exp(log)) }
		x.temperature = math.Exp(golden(loss, math.Log(coldest), math.Log(hottest)))
		if x.temperature < 1.01*coldest {
			x.temperature = 1
		}
		x.LogLoss = logLoss(scores, t, x.temperature)
		tried = append(tried, x)
	}

	// A tie within what chance does to so many prompts goes to the least weight: what the head has learnt of the
	// prompts' form does not carry over to other forms as names do.
	value := func(x result) float64 { return x.Accuracy + x.Told - x.Lost }
	top := math.Inf(-1)
	for _, x := range tried {
		top = max(top, value(x))
	}
	at := slices.IndexFunc(tried, func(x result) bool { return value(x) >= top-0.02 })
	x := tried[at]
	r.Mix = x.mix
	r.Outside = x.bound
	r.Temperature = x.temperature
	return x.Quality
}

// fused adds the scores of head and cosines.
func fused(head, similar []float64, mix float64) []float64 {
	out := make([]float64, len(head))
	for k := range out {
		out[k] = mix*head[k] + cosine*similar[k]
	}
	return out
}

// quantile of a list, interpolated.
func quantile(list []float64, p float64) float64 {
	s := slices.Sorted(slices.Values(list))
	at := p * float64(len(s)-1)
	i := int(at)
	return s[i] + (at-float64(i))*(s[min(i+1, len(s)-1)]-s[i])
}

// above is the fraction beyond a bound.
func above(list []float64, bound float64) float64 {
	n := 0
	for _, v := range list {
		if v > bound {
			n++
		}
	}
	return float64(n) / float64(max(1, len(list)))
}

// JudgePrompt is [Router.Judge] for a prompt whose tokens are known. Of a router by nearest prompts the distance is the
// log odds of a foreign prompt against the likeliest expert, before the temperature.
func (r *Router) JudgePrompt(x []float64, ids []int32) (p []float64, energy, distance float64, err error) {
	if r.Classifier != Nearest {
		return r.Judge(x)
	}
	if len(x) != r.Dim() {
		return nil, 0, 0, fmt.Errorf("length %d, the router's is %d: %w", len(x), r.Dim(), ErrFeature)
	}

	s := fused(r.linear.scores(x), r.shelf.similar(Grams(ids), r.experts+1), r.Mix)
	own := s[:r.experts]
	distance = s[r.experts] - slices.Max(own)
	for i := range own {
		own[i] /= r.Temperature
	}

	top, sum := slices.Max(own), 0.0
	for _, v := range own {
		sum += math.Exp(v - top)
	}
	softmax(own)
	if sum-sum != 0 || distance-distance != 0 {
		return nil, 0, 0, fmt.Errorf("what it makes of a prompt is not finite: %w", ErrFile)
	}

	return own, -r.Temperature * (top + math.Log(sum)), distance, nil
}

// nearestFields is the layout of a router's file by nearest prompts; sizes are those of grams and prompts.
func (r *Router) nearestFields(experts, d, grams, prompts int) []field {
	l, s := r.linear, r.shelf
	return []field{
		{name: "linear.weight", rows: experts + 1, cols: d, data: l.weight.Data},
		{name: "linear.bias", rows: -1, cols: experts + 1, data: l.bias},
		{name: "centre", rows: -1, cols: d, data: l.centre},
		{name: "scale", rows: -1, cols: 1, data: []float64{l.scale}},
		{name: "mix", rows: -1, cols: 1, data: []float64{r.Mix}},
		{name: "temperature", rows: -1, cols: 1, data: []float64{r.Temperature}},
		{name: "foreign_bound", rows: -1, cols: 1, data: []float64{r.Outside}},
		{name: "grams", rows: -1, cols: grams, whole: s.grams, count: true},
		{name: "ends", rows: -1, cols: prompts, whole: s.ends, count: true},
		{name: "class", rows: -1, cols: prompts, whole: s.class, count: true},
	}
}

// fillNearest checks and takes what was read.
func (r *Router) fillNearest(v map[string][]float64, w map[string][]uint32, experts, d int) error {
	*r.linear = linear{
		weight: linalg.Of(v["linear.weight"], experts+1, d), bias: v["linear.bias"], centre: v["centre"],
		scale: v["scale"][0],
	}
	*r.shelf = shelf{grams: w["grams"], ends: w["ends"], class: w["class"]}
	r.experts, r.Mix, r.Temperature, r.Outside = experts, v["mix"][0], v["temperature"][0], v["foreign_bound"][0]
	if !(r.Temperature > 0) || !(r.linear.scale > 0) || !(r.Mix >= 0) {
		return fmt.Errorf("temperature %v, scale %v, mix %v", r.Temperature, r.linear.scale, r.Mix)
	}

	// Every prompt's grams ascend, and they follow each other to the end.
	start := uint32(0)
	for i, end := range r.shelf.ends {
		if end < start || int64(end) > int64(len(r.shelf.grams)) || int(r.shelf.class[i]) > experts {
			return fmt.Errorf("prompt %d of class %d ends at gram %d of %d", i, r.shelf.class[i], end,
				len(r.shelf.grams))
		}
		for k := start + 1; k < end; k++ {
			if r.shelf.grams[k] <= r.shelf.grams[k-1] {
				return fmt.Errorf("prompt %d: its grams do not ascend", i)
			}
		}
		start = end
	}
	if int(start) != len(r.shelf.grams) {
		return fmt.Errorf("the last prompt ends at gram %d of %d", start, len(r.shelf.grams))
	}

	r.shelf.prepare()
	return nil
}
