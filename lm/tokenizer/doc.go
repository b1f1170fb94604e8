// Package tokenizer turns text into token ids and back, from the tokenizer.json file that stands beside a checkpoint
// in the Hugging Face layout.
//
// # Use
//
//	tok, err := tokenizer.Load("MODEL") // the folder of a model, or a tokenizer.json
//	ids, err := tok.Encode("The capital of France is", tokenizer.EncodeOptions{})
//	text := tok.Decode(ids, true) // true: without special tokens
//
// Load reads a folder or a file, Encode and Decode convert, StreamDecoder decodes a generation token by token. A
// Tokenizer never changes after Load and may be used by any number of goroutines.
//
// # What is supported
//
//   - models: BPE (byte-level, SentencePiece style with byte fallback, with word prefixes and suffixes), Unigram,
//     WordPiece, WordLevel;
//   - normalizers: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, BertNormalizer,
//     Nmt, Precompiled, ByteLevel;
//   - pre-tokenizers: Sequence, ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer,
//     Punctuation, Digits, CharDelimiterSplit, FixedLength, UnicodeScripts;
//   - post-processors: Sequence, TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing;
//   - decoders: Sequence, ByteLevel, Metaspace, WordPiece, BPEDecoder, ByteFallback, Fuse, Strip, Replace, CTC.
//
// Anything else in a file is an error that names the component and lists the known ones.
//
// # What differs from the reference implementation
//
// Ids are those of Hugging Face's tokenizers 0.23, with these exceptions:
//
//   - The sections "truncation" and "padding" are ignored: sequences keep their full length, and callers cut windows of
//     their own.
//   - A BPE "dropout" other than null or 0 is refused, since it makes encoding random.
//   - The ids of added tokens are those written in the file, also where the reference would number them anew.
//   - Text that is not valid UTF-8 is encoded as if each invalid sequence were U+FFFD.
//   - Categories, case and scripts of characters follow the Unicode version of Go's unicode package; where the
//     reference
//     uses an older version than that (punctuation, accents, compatibility forms), the difference is made up for, but
//     not in UnicodeScripts.
//   - A special token is left out by Decode whatever the normalizer makes of it.
//   - A Replace decoder takes plain text, no regular expression.
//
// As in the reference, a BPE model that has neither an unknown token nor byte fallback skips characters outside
// its vocabulary, a token that is added as "normalized" is known and decoded by its normalized text, and of two
// equal merges the later one counts.
//
// # Patterns
//
// Split patterns follow Oniguruma's Ruby syntax, which tokenizer.json files are written in. The patterns of GPT-2,
// Llama 3 and Qwen2 have scanners of their own; every other pattern runs on a matcher that counts its steps and fails
// with ErrPatternCost rather than run for ever. Back-references, recursion and a few rare escapes are refused.
//
// # Speed and memory
//
// Merging takes n log n steps for a word of n bytes, everything else is linear; there is no quadratic case for
// a text of one letter, of spaces or of noise. Each encoder that is in use at the same time keeps the ids of
// recent words in a cache of 512 KiB.
package tokenizer
