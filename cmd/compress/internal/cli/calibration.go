package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// Calibration says which text a verb runs through a model to measure it.
type Calibration struct {
	Calib   string // the file; empty: none
	Samples int    // windows to draw
	SeqLen  int    // tokens of a window; 0: the model's default
	Join    bool   // take the records of a JSONL file as one text
}

// AddCalibration defines the flags.
func (c *Calibration) AddCalibration(f *pflag.FlagSet) {
	f.StringVar(&c.Calib, "calib", "",
		"`FILE` calibration text: plain text, JSONL, Parquet, a folder of such, or token ids (.safetensors or .json); "+
			"or "+strings.Join(DatasetNames(), ", ")+" by name")
	f.IntVar(&c.Samples, "samples", 128, "`N` calibration sequences, chosen at random")
	f.IntVar(&c.SeqLen, "seqlen", 0,
		"`N` tokens per calibration sequence, also for --ppl (default: 2048 or the model's context, whichever "+
			"is smaller)")
	f.BoolVar(&c.Join, "join", false, "read the records of a JSONL file as one text")
}

// CheckCalibration looks at the ranges of the flags.
func (c *Calibration) CheckCalibration() error {
	switch {
	case c.Samples < 1:
		return Usagef("--samples %d: want 1 or more", c.Samples)
	case c.SeqLen < 0 || c.SeqLen == 1:
		return Usagef("--seqlen %d: want 2 or more, or 0 for the default", c.SeqLen)
	}
	return nil
}

// Windows draws the windows of the calibration data for a model.
func (c *Calibration) Windows(j *Job, m *lm.Model) (corpus.Windows, error) {
	return j.Sample(m, c.Calib, corpus.SampleOptions{Samples: c.Samples, SeqLen: c.SeqLen, Join: c.Join})
}
