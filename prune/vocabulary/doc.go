// Package vocabulary makes a model smaller by its vocabulary: it keeps the tokens that a text needs, with their rows of
// the token table and of the head, and writes a checkpoint whose tokenizer has no others.
//
//	r, err := vocabulary.Trim(ctx, model, vocabulary.Options{From: []string{"text.txt"}, Out: "small"})
//
// Which tokens stay, and why text that needs no others is encoded as before, is the affair of package trim. Here the
// tokens are counted, in the text and in what the model's chat template writes around every conversation; what has a
// dimension "vocab" in the tables of package arch is gathered row by row; and the result is looked at: how many
// documents are encoded differently, and whether the logits of the tokens that stayed are the same.
//
// # What it changes
//
// Every row that stays has its bits, and so have the hidden states and the logits of text that is encoded as before.
// Probabilities are those given that the next token is one that stayed: p'(x) = p(x) / Σ_kept p, so that the loss of
// such text falls, by -log Σ_kept p. Text that needs other tokens is still written, in smaller parts: bytes or
// characters that the model has seen less often in such places. A perplexity by token cannot compare the two then,
// since they have different tokens; bits per byte can, -Σ log₂ p / bytes of the text.
//
// Other methods: lm-vocab-trimmer and TextPruner take rows out by the same idea; the rules of package trim, in
// particular closure under merges, are what makes the result exact.
package vocabulary
