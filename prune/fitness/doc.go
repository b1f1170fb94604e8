// Package fitness judges expressions of package gp as pruning metrics, on real models, cheap means first.
//
// # Use
//
//	open := func(ctx context.Context) (*lm.Model, error) { return lm.Load(ctx, "MODEL", dev, lm.Options{}) }
//	sets, err := fitness.Divide(heldout, 64, 16, 48, 0) // for search, selection and test
//	judge, err := fitness.NewJudge(ctx, []fitness.Subject{{
//		Name: "MODEL", Open: open, Calib: calib, Search: sets[0], Select: sets[1], Test: sets[2],
//	}}, fitness.Options{Settings: []fitness.Setting{{Sparsity: 0.6}}})
//	ladder, err := fitness.NewLadder(ctx, judge.ID(), judge.All, fitness.LadderOptions{})
//	result, err := gp.Search(ctx, gp.PaperGrammar(), ladder, gp.Options{FitnessID: judge.ID(), Probe: judge.Probe()})
//
// # Rungs
//
// A [Judge] holds the models with what the expressions look at: weights, and gradients and activation
// statistics of the dense model, gathered once and shared by everything that is measured at the same time. It
// answers a [Task]: one metric at one rung.
//
//	layers   ‖Δ‖²/‖Y‖² of what leaves a few blocks whose matrices are pruned, one block at a
//	         time, statistics of the dense model                                               a few blocks
//	few      loss of the whole model on a few windows, the same statistics                     a forward pass
//	full     loss on all search windows of the model as prune.Model makes it, statistics
//	         measured anew behind every pruned block                                           a pruning run
//	select   the same on the selection windows, with calibration data of its own
//	test     the same on the test windows, with calibration data of its own
//
// A [Ladder] is a fitness for gp.Search: all candidates of a generation climb the rung layers, the best of them
// the rung few, the best of those the rung full (successive halving). Nothing of it touches the selection and
// test windows.
//
// # Quality
//
// With several models, sparsities or patterns, each combination is a case. A quality is relative to Wanda's
// metric |W|·√X under the same conditions, averaged over the cases: at the rung layers the mean of
// error/Wanda's error (of a case with several blocks, the geometric mean), above it the mean of
//
//	(loss - dense loss) / (Wanda's loss - dense loss)
//
// so that 1 is as good as Wanda and 0 as good as the dense model. A candidate that is left behind in its
// generation gets the worst quality of those that went further, plus how much worse than the last of them it
// was on the rung that stopped it: within a generation the order is that of the ladder.
//
// # How well rungs order
//
// A rung is only worth its place if it orders candidates as the rungs above it do. Over random legal trees it
// does (Spearman 0.98 between the rungs layers and full on a small and on a middling model), over the seeds of
// a search too (0.97). Among metrics that are nearly as good as Wanda's the cheap rung tells less (0.43 over
// the best third of the seeds), so the correlations that a search reports, over the candidates that reached
// both rungs, are lower than these: they are restricted to the better part.
//
// # Data
//
// The rungs select and test prune with calibration data of their own, and so with gradients of their own: with
// those of the search, a metric that suits one sample of calibration data would look better than it is. One set
// of gradients lies on the disk at a time, F16, which is what metrics get of gradients wherever they come from;
// see [Options].Dir.
//
// [Divide] deals the windows of one text out to search, selection and test; [Overlap] measures how much of one
// set of windows another one contains.
package fitness
