// Package combine makes one adapter of several: the combinations of the PEFT library's add_weighted_adapter,
// with its results, and those of the common spaces of low-rank changes (Core Space, KnOTS).
//
// With w the weights, s the scales of the adapters and A, B their factors, a module that an adapter lacks
// counting for nothing:
//
//   - cat puts the factors side by side, A times w·s: exactly Σ w·s·B·A, of the sum of the ranks.
//   - linear adds factors, sign(w·s)·√|w·s|·A and √|w·s|·B, so that products of different adapters' factors come in.
//   - svd cuts Σ w·s·B·A to a rank, the best approximation there is.
//   - ties, dare_linear, dare_ties and magnitude_prune thin the factors of every adapter out before they add
//     them, as linear does; their _svd forms
//     thin the deltas s·B·A out, add them with the weights w and cut the sum to a rank.
//   - ties_core, dare_linear_core and dare_ties_core do so in the core space of the adapters, and tsv_core makes
//     their singular vectors orthogonal to each other's there; iso gives the singular values of the mix their mean.
//     ties_knots, dare_linear_knots and dare_ties_knots mix the right sides of a common decomposition. Ranks may
//     differ, and the result has their sum, or what Rank says.
//
// Magnitude pruning keeps the ⌊density·n⌋ largest values of a tensor by magnitude, of equal ones those that
// come first; random pruning (dare) keeps each with probability density and divides it by that. ties elects a
// sign for each element, that of the sum of the pruned values (or of their signs: [Frequency]), a tie being
// positive, and takes the mean of the weighted values that have it.
//
// The result has scale 1. An adapter that stands alone with weight 1 comes back as it is. What a sum of
// low-rank changes cannot say is refused: DoRA, trained biases, rows and modules.
package combine
