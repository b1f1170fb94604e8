// Package corpus turns files into windows of token ids: the data that calibrates a pruning run, measures a
// perplexity or trains an adapter.
//
// # Use
//
//	tok, err := tokenizer.Load("MODEL")
//	calib, err := corpus.Sample(ctx, "calib.jsonl", tok, corpus.SampleOptions{Samples: 128, SeqLen: 2048}) // random
//	test, err := corpus.Cut(ctx, "test.txt", tok, corpus.CutOptions{SeqLen: 2048})                         // in order
//
// lm.Model's Sample and Cut do the same with the tokenizer of an open model.
//
// # Files
//
// What a file holds follows from its name, and by its first characters for ".json"; a further ".gz" is unpacked
// on the way.
//
//	.jsonl .ndjson   one record a line (below); blank lines are skipped and counted
//	.safetensors     token ids: an I64 or I32 tensor [n, t] (or [t]) called calib_ids, input_ids or eval_ids
//	.json            token ids, if it begins with "[[": an array of arrays; otherwise records, in a list or
//	                 one a line
//	.parquet         records, one a row
//	.arrow .feather  the same: streams, as the datasets library keeps its data, and files with a footer
//	a folder         the records of its .jsonl, .json, .parquet and .arrow files, in the order of their names, or
//	                 where it has no such files its .txt files, each a record; so is a pattern such as
//	                 data/train-*.parquet; of a folder that Dataset.save_to_disk wrote, the records of the data
//	                 set in their order
//	anything else    plain text
//
// A record is a JSON string, or an object with one of
//
//	"text": string
//	"prompt": string, "completion": string          the two one after the other, nothing between
//	"messages": [{"role": string, "content": …}]    one line "role: content" a message; content is a string or a
//	                                                list of {"type": "text", "text": string}
//	"instruction": string, "output": string         Alpaca's form, perhaps with "input": a message of the user, the
//	                                                input below the instruction, and one of the assistant
//	"conversations": [{"from": …, "value": …}]      ShareGPT's form: human, gpt and system are the roles
//
// looked for in this order; other keys are ignored. Messages are rendered plainly, whatever chat template the
// tokenizer may have, because a perplexity must not depend on a template language; for a calibration
// [SampleOptions].Render may do it otherwise.
//
// Text must be valid UTF-8: a stray byte is an error that names its place, not a replacement character, and in a table
// its column and row, though only where the table declares a column to be text. A byte order mark at the start is
// skipped. An escaped half of a surrogate pair in a record becomes U+FFFD, as encoding/json has it.
//
// # Windows
//
// [Sample] samples calibration windows the way the published pruning code does, bit for bit: the same file, tokenizer
// and seed give the windows that Python's random module gives there. [Cut] lays windows over a text for a perplexity.
// Token ids of a file are taken as they are by both. Every way leads to a [Windows], whose Hash identifies the tokens.
//
// # Memory
//
// Files are read piece by piece. Text longer than 16 MiB is tokenized in pieces that end at a line end (else a space)
// before something that is not white space; a tokenizer that looks across such a boundary, or one that marks the
// beginning of its input, gives a few other tokens there than it would for the text as a whole, always the same ones.
// Compressed records are unpacked to a temporary file, since drawing documents needs random access.
package corpus
