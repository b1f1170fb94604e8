// Package vocab gives a merge one vocabulary: it builds the output's tokenizer from those of the models, and says for
// every row of the output's token table and head which rows of a model it is made of.
//
// # Vocabularies
//
// "base" takes the base's tokens without those whose row the model does not have. A model's name takes that
// model's. "union" begins with the base's tokens under their ids; then come the other models' tokens in the
// order of the recipe, each model's by id, as added tokens; then their added tokens, the first definition of
// each. Rules of single tokens add those that are still missing. New ids follow the largest one.
//
// # Rows
//
// A model that has a token keeps its own row, unless the token's rule says force. Any other row is, for all
// models alike, what the token's rule names; without a rule the row of the only model that has the token, zeros
// if none has it, the base's row, or the mean over the models that have it. Rows beyond the tokens, up to the
// multiple that the recipe asks for, are the mean of the model's others.
//
// A token whose id lies beyond a model's rows counts as absent there.
package vocab
