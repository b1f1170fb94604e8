package lora

import (
	"context"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/dataset"
)

// Tokenizer is what reading text needs of one; *tokenizer.Tokenizer has it.
type Tokenizer = dataset.Tokenizer

// DataOptions of [Read].
type DataOptions struct {
	// SeqLen is the longest sequence, in tokens; 0: 512, or the model's positions where they are fewer. Longer texts are cut into
	// several sequences, answers and conversations at their end.
	SeqLen int
	// Template overrides the chat template of the tokenizer's configuration.
	Template string
}

// DataCounts says what became of the records of a file.
type DataCounts = dataset.Counts

// Read reads training data for a model from a file of text, of records (one JSON string or object on a line: "text"; "prompt" and
// "completion"; or chat "messages") or of token ids (.safetensors with input_ids and, if present, labels, [n, t] or [steps, batch, t]). A
// trailing .gz is unpacked. Of prompts and conversations only the answers count: completions, or what the chat template puts after
// its prompt for the assistant, each with the token that ends it. Every record is a sequence of its own and sees no other.
func Read(ctx context.Context, path string, m *lm.Model, tok Tokenizer, o DataOptions) (corpus.Windows, DataCounts, error) {
	c := m.Config()
	seq := or(o.SeqLen, 512)
	if c.MaxPositions > 0 {
		seq = min(seq, c.MaxPositions)
	}
	d := dataset.Options{SeqLen: seq, Vocab: c.Vocab}
	w, counts, err := dataset.Read(ctx, path, tok, d)
	if err != nil {
		return w, counts, err
	}
	return w, counts, w.Check(c.Vocab)
}

// StepBatch gives the batch of a file of token ids [steps, batch, t], whose batches are steps as they are; 0 for other data.
func StepBatch(path string) (int, error) { return dataset.BatchOf(path) }
