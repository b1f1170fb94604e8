// Package trim makes the vocabulary of a tokenizer smaller: it keeps the tokens that a text needs, gives them new ids,
// and writes the files of the tokenizer anew, so that text which needs no other tokens is encoded as before.
//
//	v, err := trim.Read(dir)                       // tokenizer.json and the files beside it
//	s, err := v.Select(counts, trim.Options{})     // counts[id]: how often the text has a token
//	files, left, err := v.Files(s)                 // tokenizer.json, config.json, … with the new ids
//
// # What is kept
//
//   - tokens that the text has at least Options.MinCount times;
//   - every added token, special or not, and what configurations and the post-processor name: the unknown token,
//     BOS, EOS, PAD;
//   - the alphabet, in which any text can still be written: the 256 bytes of a byte-level tokenizer, the pieces <0x00>
//     to <0xFF> of one with byte fallback, in others the ASCII characters and the space mark. ASCII characters stay
//     beside byte pieces too: a model that has the character has never seen its byte piece. Without bytes and without
//     an unknown token all characters stay, since the others would vanish from the text;
//   - of Unigram the piece with the lowest score, which an unknown character's score is derived from;
//   - for each kept token both parts of every merge that yields it, and so on down to the alphabet.
//
// Tokens keep their order, so that libraries which number added tokens themselves arrive at the same ids. The number of
// tokens is rounded up to a multiple of 64, which matrix kernels like, by further tokens rather than by rows without
// one: those that the text has, the most frequent first, then those with the lowest ids, which byte-pair encoding has
// learned first.
//
// # Why encoding stays the same
//
// Let a text have only kept tokens. Byte-pair encoding (Sennrich, Haddow, Birch 2016): each symbol that is formed on
// the way becomes part of a final token, so it is kept, by closure, and so is every merge that was applied. The merges
// that are left are in the same order, so that at every step the one that was applied still has the lowest rank, among
// fewer. With ignore_merges the whole word is looked up first: it is found as before, or is not there as before.
// Unigram (Kudo 2018): the best path is still there with the same score, and it competes with fewer. A new path through
// an unknown character, whose piece has gone, scores below the one through that piece, since every piece scores above
// an unknown character. WordPiece takes the longest piece first, and that is still there; only a word that became the
// unknown token because it could not be finished may now be finished in another way. That text is among what is
// counted as changed when two tokenizers are compared (see [Compare]).
package trim
