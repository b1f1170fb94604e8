// Package tokenizer turns text into token ids and back, from the tokenizer.json file that stands beside a checkpoint
// in the Hugging Face layout.
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
// # What differs from the file's own view
//
// The sections "truncation" and "padding" are ignored: sequences keep their full length, and callers cut windows of
// their own. A BPE "dropout" other than null or 0 is refused, since it makes encoding random. The ids of added tokens
// are those written in the file. Text that is not valid UTF-8 is encoded as if each invalid sequence were U+FFFD.
// A BPE model that has neither an unknown token nor byte fallback skips characters outside its vocabulary, as the
// format's reference implementation does.
//
// # Patterns
//
// Split patterns follow Oniguruma's Ruby syntax, which tokenizer.json files are written in. The patterns of GPT-2,
// Llama 3 and Qwen2 have scanners of their own; every other pattern runs on a small matcher (see the package internal/pattern) that
// counts its steps and fails with ErrPatternCost rather than run for ever.
package tokenizer
