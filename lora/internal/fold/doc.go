// Package fold computes the weights of a base model with an adapter folded into them, tensor by tensor and in blocks
// of rows, so that memory does not depend on the size of the model.
//
// # Rounding
//
// The delta of a matrix is the product of the factors, summed in float64, rounded to F32 and multiplied by the
// scale in F32. It is added to the widened weight and the sum is rounded once to the element type of the base.
// With [Editor].Safe the delta is rounded to that type first, as PEFT's safe merge does; a quarter of the
// elements of a BF16 base then differ in the last bit. DoRA's norms are summed in float64.
//
// # Tied tables
//
// An adapter of the token table leaves a tied head on the table of the base, and the other way round. Folding
// then writes a head of its own and unties the configuration, unless both change alike (ensure_weight_tying).
// Trained rows of a table count for both uses.
package fold
