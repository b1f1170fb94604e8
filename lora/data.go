package lora

import (
	"context"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lora/internal/dataset"
)

// Tokenizer is what reading text needs of one; *tokenizer.Tokenizer has it.
type Tokenizer interface {
	corpus.Tokenizer
	// EncodeOffsets also says which bytes of the text each token stands for.
	EncodeOffsets(text string, o tokenizer.EncodeOptions) ([]int32, []tokenizer.Span, error)
	// AddsEOS reports whether Encode ends a text with EOS by itself.
	AddsEOS() (add, known bool)
}

// DataOptions of [Read].
type DataOptions struct {
	// SeqLen is the longest sequence, in tokens; 0: 512, or the model's positions where they are fewer. Longer
	// documents are cut into several sequences, answers and conversations at their end.
	SeqLen int
	// Template overrides the chat template of the tokenizer's configuration.
	Template string
}

// DataCounts says what became of the records of a file.
type DataCounts struct {
	Records int `json:"records"`
	Blank   int `json:"blank"`          // lines without a record
	Cut     int `json:"cut"`            // answers and conversations that lost their ends
	Split   int `json:"split"`          // documents that became several sequences
	Empty   int `json:"empty"`          // completions without a token, which teach to stop at once
	Same    int `json:"same,omitempty"` // pairs of answers without a difference, which are left out
}

// Read reads training data for a model from a file of text, of records (one JSON string or object on a line:
// "text"; "prompt" and "completion"; or chat "messages") or of token ids (.safetensors with input_ids and, if
// present, labels, [n, t] or [steps, batch, t]). A trailing .gz is unpacked. Of prompts and conversations only
// the answers count: completions, or what the chat template puts after its prompt for the assistant, each with
// the token that ends it. Every record is a sequence of its own and sees no other.
func Read(ctx context.Context, path string, m *lm.Model, tok Tokenizer,
	o DataOptions,
) (corpus.Windows, DataCounts, error) {
	d, err := o.dataset(ctx, m)
	if err != nil {
		return corpus.Windows{}, DataCounts{}, err
	}

	w, counts, err := dataset.Read(ctx, path, tok, d)
	if err == nil {
		err = w.Check(m.Config().Vocab)
	}

	return w, DataCounts(counts), err
}

// dataset is how files are read for a model.
func (o DataOptions) dataset(ctx context.Context, m *lm.Model) (dataset.Options, error) {
	c := m.Config()
	seq := or(o.SeqLen, 512)
	if c.MaxPositions > 0 {
		seq = min(seq, c.MaxPositions)
	}

	render, err := chatOf(ctx, m.Path(), o.Template)
	return dataset.Options{SeqLen: seq, Vocab: c.Vocab, Chat: render}, err
}

// Join puts data after each other as one: the sequences of the first, then those of the second, and so on.
// Where one has no labels and another has, all its tokens count.
func Join(parts ...corpus.Windows) corpus.Windows {
	if len(parts) == 1 {
		return parts[0]
	}

	var ids, labels [][]int32
	var sources []string
	labelled := slices.ContainsFunc(parts, func(w corpus.Windows) bool { return w.Labels != nil })
	for _, w := range parts {
		ids = append(ids, w.IDs...)
		sources = append(sources, w.Source)

		switch {
		case w.Labels != nil:
			labels = append(labels, w.Labels...)
		case labelled:
			// A label is the token itself where it counts: unlabelled data trains on all of it.
			labels = append(labels, w.IDs...)
		}
	}

	all := corpus.New(ids, strings.Join(sources, ", "))
	all.Labels = labels

	all.Docs = 0
	for i, w := range parts {
		all.Docs += w.Docs
		all.Blank += w.Blank
		all.Dropped += w.Dropped
		all.Redrawn += w.Redrawn

		switch {
		case i == 0:
			all.Mode = w.Mode
		case all.Mode != w.Mode:
			all.Mode = corpus.Documents
		}
	}

	return all
}

// chatOf finds the chat template of a checkpoint: source, or what chat_template.jinja or tokenizer_config.json
// say; nil where there is none.
func chatOf(ctx context.Context, dir, source string) (dataset.Render, error) {
	found, err := chat.Default(dir)
	if err != nil {
		return nil, err
	}

	if source = or(source, found.Template); source == "" {
		return nil, nil
	}

	var t *chat.Template // read when the first conversation comes: plain documents need none
	return func(messages []dataset.Message) (string, [][2]int, error) {
		if t == nil {
			var err error
			if t, err = chat.Parse(source, found.Tokens, nil); err != nil {
				return "", nil, err
			}
		}

		list := make([]chat.Message, len(messages))
		for i, m := range messages {
			list[i] = chat.Message(m)
		}

		return t.Answers(ctx, list)
	}, nil
}

// StepBatch gives the batch of a file of token ids [steps, batch, t], whose batches are steps as they are; 0
// for other data.
func StepBatch(path string) (int, error) { return dataset.BatchOf(path) }
