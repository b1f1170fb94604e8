package metric

import "testing"

func BenchmarkBootstrap(b *testing.B) {
	xs := make([]Item, 1000)
	for i := range xs {
		xs[i].X = -float64(i%17) / 3
	}

	ppl, err := FindAggregation("perplexity")
	if err != nil {
		b.Fatal(err)
	}

	for b.Loop() {
		ppl.Stderr(xs, 1000)
	}
}
