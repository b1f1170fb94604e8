package stats

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/pyrandom"
)

// McNemar is the two-sided exact probability of a split of b+c discordant pairs at least as uneven as b to c
// where both sides are equally likely (McNemar, "Note on the sampling error of the difference between
// correlated proportions or percentages", 1947).
func McNemar(b, c int) float64 {
	n, k := b+c, min(b, c)
	if n == 0 {
		return 1
	}

	all, _ := math.Lgamma(float64(n + 1))
	p := 0.0
	for i := 0; i <= k; i++ {
		x, _ := math.Lgamma(float64(i + 1))
		y, _ := math.Lgamma(float64(n - i + 1))
		p += math.Exp(all - x - y - float64(n)*math.Ln2)
	}

	return min(1, 2*p)
}

// PairedBootstrap resamples n pairs, at least one, with replacement, and takes the difference of two figures
// over the pairs that were picked, which are named by their index. It gives the percentiles of a 95 % interval
// and the two-sided probability of no difference. The random numbers are of Python's generator with the seed.
func PairedBootstrap(n, draws int, seed uint64, difference func(picked []int) float64) (low, high, p float64) {
	random := pyrandom.NewRandom(seed)
	picked, differences := make([]int, n), make([]float64, draws)
	below, above := 0, 0

	for i := range differences {
		for j := range picked {
			picked[j] = int(random.Float64() * float64(n))
		}

		d := difference(picked)
		differences[i] = d
		if !(d > 0) { // a difference that is not a number speaks for neither side
			below++
		}
		if !(d < 0) {
			above++
		}
	}

	slices.Sort(differences)
	at := func(q float64) float64 { return differences[int(q*float64(draws-1)+0.5)] }
	return at(0.025), at(0.975), min(1, 2*float64(min(below, above)+1)/float64(draws+1))
}

// bootstrapChunk is how many resamples one seed gives.
const bootstrapChunk = 1000

// BootstrapStderr is the standard deviation of a figure over resamples, of which each call of resample fills a
// list. As in lm-evaluation-harness, the k-th thousand comes from Python's Random(k), and what is left over of
// draws beyond 1000 is not drawn. Calls run at the same time.
func BootstrapStderr(draws int, resample func(random *pyrandom.Random, figures []float64)) float64 {
	size := min(bootstrapChunk, draws)
	figures := make([]float64, draws/size*size)

	mmapsafe.Each(0, draws/size, func(k int) {
		resample(pyrandom.NewRandom(uint64(k)), figures[k*size:(k+1)*size])
	})
	return Deviation(figures)
}
