// Package prune sets the least useful weights of a language model's linear layers to zero.
//
// [Model] walks over the blocks once, in order. For each block it measures what flows into its matrices (if the metric
// wants to know), ranks the weights by a [Metric], chooses which go by [Pattern] and [Group], zeroes them, and runs the
// pruned block to get the inputs of the next one. Embeddings, the output head, norms, biases and the routers of
// mixtures are left alone.
//
// # Metrics
//
// Magnitude ranks by |W|. Wanda ranks by |W|·√s, where s_j = (1/N)·Σ x_j² over all tokens that reach input j of the matrix
// and N is the number of calibration sequences (not tokens): formulas and data handling are those of the published
// code (arXiv:2306.11695), and masks agree with it bit by bit except where scores tie to within rounding.
//
// # Which weights go
//
// With rows as groups, exactly trunc(inputs·sparsity) weights of every output neuron go; of equal scores the lower column
// goes first. With the whole layer as a group, everything goes that scores no more than the score of rank
// trunc(weights·sparsity), which is one weight more than the share, and more on ties: that is how the published magnitude
// baseline counts. A sparsity of 0 prunes nothing in either case.
//
// A pattern N:M prunes the N lowest of every M consecutive inputs of a neuron. Mind the meaning of N: it counts the weights
// that go, as in the published code of SparseGPT and Wanda. 2:4 and 4:8 mean the same either way, but 1:4 here removes one
// weight of four (sparsity 0.25), where hardware vendors' notation would keep one. Reports carry the number that is pruned
// in words. If the inputs are not a multiple of M, N of the shorter last group go, or all of it.
//
// # Mixtures of experts
//
// Each expert has statistics of its own, over the tokens routed to it. A matrix of an expert that no calibration token
// reached cannot be told apart by its inputs: it is ranked by |W| alone, within the same groups, and the report counts it.
//
// # Memory and interruption
//
// A metric without statistics needs no calibration data. With Options.Out it holds one matrix at a time, at its peak twice:
// as mapped and as copied, then the copy, its mask (a byte a weight) and up to 200 MiB of scratch. That stays below 1 GiB for
// models whose largest matrix is below 470 MB, which is Llama of 70B in BF16, whatever the size of the checkpoint. With
// statistics, one block and the activations of all calibration tokens (4 bytes · tokens · hidden size) are held, besides
// what a batch needs while it runs.
//
// With Options.Out finished matrices go to disk at once: one by one without statistics, block by block with them. After
// an interruption at any point, the same call with a resumed saver gives the same bytes; finished blocks are read back,
// and only run, not measured, again.
package prune
