package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Calibration says which text a verb runs through a model to measure it.
type Calibration struct {
	Calib   string // the file; empty: none
	Samples int    // windows to draw
	SeqLen  int    // tokens of a window; 0: the model's default
	Join    bool   // take the records of a JSONL file as one text
	Chat    string // renders messages: a chat template of the model by name, or ownChat; empty: plainly

	flags *pflag.FlagSet
}

// AddCalibration defines the flags.
func (c *Calibration) AddCalibration(f *pflag.FlagSet) {
	c.flags = f
	f.StringVar(&c.Calib, "calib", "",
		"`FILE` calibration text: plain text, JSONL, Parquet, Arrow, a folder of such, or token ids "+
			"(.safetensors or .json); or "+strings.Join(DatasetNames(), ", ")+" by name")
	f.IntVar(&c.Samples, "samples", 128, "`N` calibration sequences, chosen at random")
	f.IntVar(&c.SeqLen, "seqlen", 0,
		"`N` tokens per calibration sequence, also for --ppl (default: 2048 or the model's context, whichever "+
			"is smaller)")
	f.BoolVar(&c.Join, "join", false, "read the records of a JSONL file as one text")
	f.StringVar(&c.Chat, "apply-chat-template", "",
		"`NAME` render records with messages (also Alpaca's and ShareGPT's) by the model's chat template, or "+
			"the one of this name, as an instruct model sees them; without it they are lines \"role: content\"")
	f.Lookup("apply-chat-template").NoOptDefVal = ownChat
}

// CheckCalibration looks at the ranges of the flags.
func (c *Calibration) CheckCalibration() error {
	switch {
	case c.Samples < 1:
		return Usagef("--samples %d: want 1 or more", c.Samples)
	case c.SeqLen < 0 || c.SeqLen == 1:
		return Usagef("--seqlen %d: want 2 or more, or 0 for the default", c.SeqLen)
	case c.Chat != "" && c.Calib == "":
		return Usagef("--apply-chat-template is about records with messages, and there is no --calib FILE")
	}
	return nil
}

// Windows draws the windows of the calibration data for a model.
func (c *Calibration) Windows(j *Job, m *lm.Model) (corpus.Windows, error) {
	o := corpus.SampleOptions{Samples: c.Samples, SeqLen: c.SeqLen, Join: c.Join}
	if c.Chat != "" {
		var err error
		if o.Render, err = chatRender(j.Ctx, m, c.Chat); err != nil {
			return corpus.Windows{}, err
		}
	}

	w, err := j.Sample(m, c.Calib, o)
	if err == nil {
		c.idle(j, w)
	}
	return w, err
}

// idle says which flags say nothing to token ids, whose rows are the sequences.
func (c *Calibration) idle(j *Job, w corpus.Windows) {
	if w.Mode != corpus.IDs || c.flags == nil {
		return
	}
	for _, f := range []struct {
		name      string
		asked, is int
	}{{"samples", c.Samples, w.Count}, {"seqlen", c.SeqLen, w.SeqLen}} {
		if c.flags.Changed(f.name) && f.asked != f.is {
			j.Remark("--%s %d has no effect: %s has token ids, which are taken as they are, %d sequences of %d",
				f.name, f.asked, c.Calib, w.Count, w.SeqLen)
		}
	}
}

// ownChat stands for a model's own chat template where a name is wanted.
const ownChat = "default"

// chatRender renders conversations by a chat template of a model.
func chatRender(ctx context.Context, m *lm.Model, name string) (func([]corpus.Turn) (string, error), error) {
	read := chat.Default
	if name != ownChat {
		read = func(dir string) (chat.Source, error) { return chat.Read(dir, name) }
	}
	source, err := read(m.Path())
	if err != nil {
		return nil, fmt.Errorf("--apply-chat-template: %w", err)
	}
	if source.Template == "" {
		return nil, Usagef("--apply-chat-template: %s has no chat template (HINT: without the flag messages are lines "+
			"\"role: content\")", m.Path())
	}

	t, err := chat.Parse(source.Template, source.Tokens, nil)
	if err != nil {
		return nil, fmt.Errorf("--apply-chat-template: %w", err)
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}

	// A template often writes the start token, which the tokenizer would put before the text once more.
	start := source.Tokens["bos_token"]
	ids, err := tok.Encode("", tokenizer.EncodeOptions{})
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		start = ""
	}

	return func(turns []corpus.Turn) (string, error) {
		list := make([]chat.Message, len(turns))
		for i, turn := range turns {
			list[i] = chat.Message(turn)
		}

		text, err := t.Render(ctx, list, false)
		return strings.TrimPrefix(text, start), err
	}, nil
}
