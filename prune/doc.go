// Package prune sets the least useful weights of a language model's linear layers to zero.
//
// [Model] walks over the blocks once, in order. For each block it measures what flows into its matrices (if the
// options want to know), ranks the weights by a [Metric], chooses which go by [Pattern], [Group], [Allocation]
// and [Override], zeroes them, lets an [Update] make up for them, and runs the pruned block to get the inputs
// of the next one. Embeddings, the output head, norms, biases and the routers of mixtures are left alone.
//
// # Use
//
//	o := prune.Options{Metric: prune.Wanda(), Sparsity: 0.5}
//	report, err := prune.Folder(ctx, "MODEL", "pruned", dev, o, prune.FolderOptions{Calib: "calib.txt"})
//
// That is a folder into a folder. A model that is open already, and may stay in memory, goes through [Model]:
//
//	o.Out, err = model.NewSaver("pruned", lm.SaveOptions{}) // nil: in memory alone
//	report, err := prune.Model(ctx, model, calib, o)
//
// The model is changed in place. The [Report] has each matrix with its zeros and what its outputs lost, totals,
// notes, hashes and times.
//
// [Compare] prunes a model in several ways and measures the perplexity of each, with paired tests; finished runs are
// noted, so that a comparison can be interrupted and extended. [Contenders] makes its runs of two lists.
//
// # Metrics
//
// Masks of the published methods agree with their code bit by bit, except where scores tie to within rounding.
// With s_j = (1/N)·Σ x_j² over all tokens that reach input j of the matrix, N the number of calibration
// sequences (not tokens), G = 100·√(Σ_n g²) over the gradients of the sequences' mean losses in the dense
// model, R = 100·√((1/N)·Σ_n g²) over the gradients of the norm of a block's output, and H = (2/N)·Σ x xᵀ:
//
//	magnitude      |W|                                         over the layer
//	wanda          |W|·√s                                      in rows
//	wanda-variant  |W|·√s                                      by shares of the rows' scores
//	ria            (|W|/Σ_column|W| + |W|/Σ_row|W|)·s^¼        over the layer
//	gblm           |W|·√s + |W|·G                              in rows
//	pruner-zero    |W·W|·(G - min G)/(max G - min G)           in rows
//	wanda++        |W|·√s + |W|·R                              in rows
//	oats           |W·√s - L|, L of low rank                   in rows
//	sparsegpt      w²/[H⁻¹]_jj as it is when its turn comes    over 128 columns
//	expr:…, tree:… any formula of package gp that uses W       in rows
//
// Scores that are not finite, and scores that are all the same, are errors (but for a matrix of zeros, which
// loses nothing): they would choose a mask without meaning.
//
// # Which weights go
//
// With rows as groups, exactly trunc(inputs·sparsity) weights of every output neuron go; of equal scores the
// lower column goes first. With the whole layer as a group, everything goes that scores no more than the score
// of rank trunc(weights·sparsity), which is one weight more than the share, and more on ties: that is how the
// published magnitude baseline counts. A sparsity of 0 prunes nothing in either case.
//
// A pattern N:M prunes the N lowest of every M consecutive inputs of a neuron. Mind the meaning of N: it counts
// the weights that go, as in the published code of SparseGPT and Wanda. 2:4 and 4:8 mean the same either way,
// but 1:4 here removes one weight of four (sparsity 0.25), where hardware vendors' notation would keep one.
// Reports carry the number that is pruned in words. If the inputs are not a multiple of M, N of the shorter
// last group go, or all of it; M exceeds them nowhere.
//
// Options.MasksFrom takes the masks from a file instead, as [Masks] writes them; SparseGPTUpdate, ADMM and Exact work
// with them as with those of a metric.
//
// # Updates
//
// Options.Swaps refines the mask of any metric before the update: passes of exchanges between kept and pruned weights
// of a row, each of which lowers the squared error of its output, within the pattern (SparseSwaps). With
// Options.SwapDiagonal they trust the calibration text less, and the norms of the inputs more.
//
// SparseGPTUpdate, ADMM and Exact change the weights that stay so that outputs over the calibration data change less.
// Exact solves the least squares of each row, which takes a third of the cube of what the row loses or keeps, whichever
// is less: wide matrices take long. All work with the mask of any metric, need the Hessian of every input (8 bytes
// times the square of its width), and drop the weights of inputs that are always 0. Where the Hessians of a block take
// more than Options.HessianMemory it is run once for every input, from its end to its beginning, to the same result.
// Options.TrueSequential measures matrices after those before them in the block are pruned, in the order of SparseGPT's
// code for Llama.
//
// DSnoT exchanges weights of the mask instead. Its defaults, 50 exchanges a row and a threshold of 0.1, are the
// published ones, made for rows of thousands of inputs: with a hundred inputs that is more exchanges than the
// row has pruned weights, and since the rule looks at the mean of an output alone, its error grows. The report
// notes blocks in which an update raised the error of the outputs of their matrices, and Update.Guard leaves
// such matrices without it; fewer Cycles help too.
//
// [Alpha] follows the published rule as well: small models have spectra of too few values for a steady fit.
//
// [Search] measures allocations of sparsity on the calibration data instead of following a rule. It loads the model a
// second time, which stays in memory, with a byte for every weight beside it.
//
// # Sparse and low-rank
//
// The metric OATS divides a matrix into a sparse and a low-rank part, as Options.LowRank says. With Options.Factors
// the sparse part is what is written, and the factors of the other go to a file, from which a caller makes an adapter;
// later blocks see the sums. Without it the sums are written, or stay in the model.
//
// # Mixtures of experts
//
// Each expert has statistics of its own, over the tokens routed to it. A matrix of an expert that no
// calibration token reached cannot be told apart by its inputs: it is ranked by |W| alone, within the same
// groups, and the report counts it.
//
// # Memory and interruption
//
// A metric without statistics needs no calibration data. With Options.Out it holds one matrix at a time, at its
// peak twice: as mapped and as copied, then the copy, its mask (a byte a weight) and up to 200 MiB of scratch.
// That stays below 1 GiB for models whose largest matrix is below 470 MB, which is Llama of 70B in BF16,
// whatever the size of the checkpoint. With statistics, one block and the activations of all calibration tokens
// (4 bytes · tokens · hidden size) are held, besides what a batch needs while it runs. Gradients that are
// computed take 2 bytes for every weight of all blocks (4 with GradientOptions.Exact, and while they are summed
// over more sequences than GradientOptions.Memory has room for), unless GradientOptions.Keep names a file for
// them.
//
// With Options.Out finished matrices go to disk at once: one by one without statistics, block by block with
// them. After an interruption at any point, the same call with a resumed saver gives the same bytes; finished
// blocks are read back, and only run, not measured, again.
package prune
