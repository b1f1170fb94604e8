package prunecmd

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/quantize"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// importance reads the importance matrix that stands for calibration, and prepares for one that is written.
func (p *pruning) importance() error {
	if p.flags.ImatrixOut != "" {
		// Before the work: a model that no GGUF file holds has no names for it.
		if _, err := quantize.ImportanceOf(p.job.Ctx, p.model, nil, "", corpus.Windows{}); err != nil {
			return fmt.Errorf("--imatrix-out: %w", err)
		}
		p.inputs = map[string]quantize.Input{}
		p.opts.Squares = func(name string, s prune.Squares) {
			p.inputs[name] = quantize.Input{Squares: s.Sums, Tokens: s.Tokens}
		}
	}
	if p.flags.Imatrix == "" {
		return nil
	}

	file, err := imatrix.Read(p.flags.Imatrix)
	if err != nil {
		return err
	}
	inputs, err := quantize.InputsOf(p.job.Ctx, p.model, file)
	if err != nil {
		return fmt.Errorf("%s: %w", p.flags.Imatrix, err)
	}
	norms := &prune.Norms{From: p.flags.Imatrix, Sequences: file.Chunks, Inputs: map[string]prune.Squares{}}
	for name, in := range inputs {
		norms.Inputs[name] = prune.Squares{Sums: in.Squares, Tokens: in.Tokens}
	}
	p.opts.Norms = norms
	return nil
}

// writeImportance writes what was measured, if somebody asked for it.
func (p *pruning) writeImportance() error {
	if p.inputs == nil {
		return nil
	}
	file, err := quantize.ImportanceOf(p.job.Ctx, p.model, p.inputs, filepath.Base(p.flags.Calib), p.calib)
	if err != nil {
		return err
	}

	out := p.flags.ImatrixOut
	if strings.HasSuffix(out, ".dat") {
		return file.WriteLegacy(out)
	}
	return file.Write(out, true) // what may be replaced was looked at before
}
