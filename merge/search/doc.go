// Package search finds the numbers that a merge recipe leaves open, by an evolution strategy with covariance matrix
// adaptation (CMA-ES; Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv 1604.00772), against a loss to be made
// small: [Run]. A candidate is merged, in memory where that is possible, and measured: [Judge], which may be in another
// process than the search.
//
// # Use
//
//	loss := func(ctx context.Context, m *lm.Model) (float64, error) {
//		r, err := m.Perplexity(ctx, windows, nil)
//		return r.NLL, err
//	}
//	o := search.Options{Device: dev, Aims: []search.Aim{{Name: "text", Hash: windows.Hash, Weight: 1, Loss: loss}}}
//	report, err := search.Run(ctx, "recipe.yaml", text, "found", o) // then merge found/best.yaml
//
// # Notation
//
// Wherever a recipe may have a number of a parameter, a map with the key "search" leaves it open:
//
//	weight: {search: [0, 1]}                         # between 0 and 1, starting in the middle
//	density: {search: [0.1, 0.9], start: 0.5}
//	t: [{search: [0, 1]}, {search: [0, 1]}]          # the points of a gradient
//	weight: {search: [0, 1], name: w}                # the same number wherever the name is w
//	lambda: {search: [0.1, 10], scale: log}          # steps are factors; both bounds positive
//
// # Course
//
// Bounds are mapped to 0 and 1, and what the strategy samples outside is mirrored back. Generation 0 is the starting
// point. Samples are a function of seed, generation and number, scores enter in the order of the numbers, and every
// score is written to the journal, so that an interrupted search continues to the same result, with any number of
// workers.
package search
