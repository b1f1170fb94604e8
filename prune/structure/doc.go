// Package structure chooses what a model can do without as a whole: decoder layers, and of every layer as many
// neurons, heads, channels and experts. What is left is an ordinary smaller model of the same architecture, which every
// runtime loads and runs faster.
//
//	plan, err := structure.Choose(ctx, model, calib, structure.Options{Layers: structure.Share{Keep: 24}})
//	saver, err := model.NewSaver("smaller", lm.SaveOptions{Cut: plan.Cut})
//	err = structure.Restore(ctx, model, calib, plan, saver)
//	err = saver.Finish(ctx)
//
// # Layers
//
// Which layers go is decided by what the calibration text shows; s(l) is low for a layer that is little missed.
//
//	influence  1 - mean over tokens of cos(x_l, x_l+1), of the stream before and behind the layer (ShortGPT, Men et
//	           al., 2024, arXiv:2403.03853); the n lowest go
//	angular    arccos(cos(x_l, x_l+n))/π at the last token of each sequence: n layers in a row go, from the l where
//	           it is lowest (Gromov et al., 2024, arXiv:2403.17887)
//	taylor     Σ |w·g| over the weights of the layer, mean over sequences, g the gradient of a sequence's loss
//	           (Shortened LLaMA, Kim et al., 2024, arXiv:2402.02834, where the first four layers and the last two
//	           stay whatever their score); the n lowest go
//	greedy     the loss without the layer; the lowest goes, and all others are measured again without it (SLEB,
//	           Song et al., 2024, arXiv:2402.09025)
//	search     greedy's choice, then one layer for another wherever the model's predictions come nearer to those of
//	           the whole model, by KL divergence on the text (EvoPress, Sieberling et al., arXiv:2410.14649)
//
// [Options].DropLayers and KeepLayers name them instead; then no text is needed.
//
// Greedy keeps the stream before the layer that is left out: a round over K layers runs (K-1)·(K+2)/2 of them, not
// K·(K-1).
//
// # Neurons, heads, channels
//
// Every layer keeps as many, chosen in each by itself, since no runtime has other sizes in every layer. Shares are
// rounded to a multiple of 64 where there is enough of something, numbers have to be multiples of 32 (of neurons and
// channels; the blocks of quantised formats) and of the key/value heads (of heads).
//
//	minitron   of what flows into the matrix behind a neuron, head or channel: √Σ_n (mean over the tokens of sequence
//	           n of |x_j|)², for a head the norm over its channels, for a channel the sum over the inputs of all
//	           layers (Muralidharan et al., 2024, arXiv:2407.14679; the norm before the head is not measured)
//	wanda-sp   Σ_i |W_ij|·‖x_j‖ over the column of down, or the columns of o (An et al., 2023, arXiv:2312.11983); of a
//	           channel, over the rows of both
//	obs        neurons and heads one after another, always the one without which what the matrix behind them gives can
//	           be made up for best, by the least squares of Restore, on the text (ZipLM, OSSCAR)
//	others     any metric of package prune, summed over all weights that go with it: rows of gate and up and the
//	           column of down; rows of q, k and v and columns of o; of a channel, rows and columns of all matrices.
//	           LLM-Pruner's Σ|w·g| is expr:W*G but for the square root in which G sums sequences
//
// [Restore] then lets down and o make up for what they no longer read, drawn to the weights as they were as strongly as
// is best on every fourth sequence.
//
// # Experts
//
// Every mixture keeps as many experts, and every group of a router that chooses groups first. With X the tokens that
// reach an expert, g the weight with which its output f is added:
//
//	reap       (1/|X|)·Σ g·‖f‖ (Lasby et al., 2025, arXiv:2510.13999)
//	frequency  |X|
//	outputs    Σ ‖f‖
//	subsets    every choice of experts is tried, layer by layer: the one stays with which Σ ‖y - y'‖² is least, y what
//	           the layer gives with all experts and y' with these; where there are at most 13,000 choices (Lu et al.,
//	           2024, arXiv:2402.14800)
//	clusters   experts whose mean outputs over all tokens are near each other, by average linkage, become one, their
//	           mean by |X|, at the place of the one with most tokens ([Merge]; HC-SMoE, Chen et al., 2024,
//	           arXiv:2410.08589, where the router goes on to tell the members apart, which takes code of its own)
//
// # Memory
//
// Influence, angular, Minitron's activations and the scores of experts run the model once, layer by layer, with the
// stream of all sequences: 4 bytes a token and channel. A model that is streamed stays so. Taylor has the gradients of
// one layer at a time. Greedy and search run the layers again and again; they hold the stream of one batch of
// sequences, search that of all of them before the head. Scores and restoration run a layer at a time; restoration has
// two Hessians, of 8 bytes times the square of the neurons each, and as much to solve with.
package structure
