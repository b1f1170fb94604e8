package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/passes"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

type forwardFlags struct {
	ids, out     string
	hidden, grad bool
	overwrite    bool
}

func (a *app) forwardCmd() *cobra.Command {
	var o forwardFlags
	cmd := a.newVerb("forward MODEL --ids IN.safetensors --out OUT.safetensors", "Run a model on token ids and write what it computes",
		"Reads input_ids (I64 or I32, [B,T]) and, if present, labels of the same shape: aligned with input_ids, shifted by one for "+
			"the loss, -100 skipped. Writes loss [1] (mean over all counted positions), logits [B,T,V] and loss_per_token [B,T-1] "+
			"(0 where skipped), all F32. --hidden adds hidden.0 (embeddings) and hidden.i (output of block i, before the final norm). --grad adds grad.NAME, "+
			"the gradient of the loss, for every parameter, shaped as in the checkpoint; a tied table has one. Gradients go to the "+
			"file block by block.",
		"compress forward testdata/nano/base --ids IN.safetensors --out logits.safetensors --hidden --grad", cobra.ExactArgs(1),
		func(j *job, args []string) (any, error) { return forward(j, args[0], o) })
	f := cmd.Flags()
	f.StringVar(&o.ids, "ids", "", ".safetensors file with input_ids")
	f.StringVar(&o.out, "out", "", ".safetensors file to write")
	f.BoolVar(&o.hidden, "hidden", false, "also write the hidden states")
	f.BoolVar(&o.grad, "grad", false, "also write the gradient of the loss for every parameter")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace an existing --out")
	require(cmd, "ids")
	require(cmd, "out")
	return cmd
}

// forwardReport is what forward says about a run.
type forwardReport struct {
	Out       string   `json:"out"`
	Sequences int      `json:"sequences"`
	Length    int      `json:"length"`
	Counted   int      `json:"counted"` // positions in the loss
	Loss      *float64 `json:"loss"`    // null where no position counts
	Gradients int      `json:"gradients,omitempty"`
}

func forward(j *job, path string, o forwardFlags) (any, error) {
	if _, err := os.Stat(o.out); err == nil && !o.overwrite { // found again when it is written; this saves the work
		return nil, fmt.Errorf("%s: %w", o.out, safetensors.ErrExists)
	}
	if err := (place{flag: "out", path: o.out, what: "an output of forward", own: isForward, inputs: j.inputs}).check(); err != nil {
		return nil, err
	}
	in, err := safetensors.Open(o.ids)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	ids, err := readIDs(in, o.ids, "input_ids")
	if err != nil {
		return nil, err
	}
	var labels [][]int32
	if _, ok := in.Info("labels"); ok {
		if labels, err = readIDs(in, o.ids, "labels"); err != nil {
			return nil, err
		}
		if len(labels) != len(ids) || len(labels[0]) != len(ids[0]) {
			return nil, fmt.Errorf("%s: labels are [%d,%d], input_ids [%d,%d]", o.ids, len(labels), len(labels[0]), len(ids), len(ids[0]))
		}
	}
	m, err := j.load(path, lm.Options{})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := inVocabulary(m, o.ids, "input_ids", ids, 0); err != nil {
		return nil, err
	}
	if err := inVocabulary(m, o.ids, "labels", labels, lm.IgnoreLabel); err != nil {
		return nil, err
	}
	r, err := m.Forward(j.ctx, ids, lm.ForwardOptions{Logits: true, Hidden: o.hidden, Labels: labels})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.ids, err)
	}
	if r.Counted == 0 {
		r.Loss = math.NaN() // the mean of nothing
	}
	if o.grad && r.Counted == 0 {
		return nil, fmt.Errorf("%s: --grad: no position counts, so there is no loss to differentiate", o.ids)
	}
	bar := j.bars()
	defer bar.end()
	p := passes.Pass{Model: m, Result: r, IDs: ids, Labels: labels, Grad: o.grad, Progress: bar.show}
	gradients, err := p.Write(j.ctx, o.out, o.overwrite)
	if err != nil {
		return nil, err
	}
	bar.end()
	report := forwardReport{Out: o.out, Sequences: len(ids), Length: len(ids[0]), Counted: r.Counted, Gradients: gradients}
	if r.Counted == 0 {
		fmt.Fprintf(j.out(), "no position counts, so there is no loss; written to %s\n", o.out)
		return report, nil
	}
	report.Loss = &r.Loss
	fmt.Fprintf(j.out(), "loss %.6f over %d positions, written to %s\n", r.Loss, r.Counted, o.out)
	return report, nil
}

// inVocabulary refuses ids that the model does not have, but for one that has a meaning of its own.
func inVocabulary(m *lm.Model, file, tensor string, rows [][]int32, also int32) error {
	for i, row := range rows {
		for k, id := range row {
			if id != also && (id < 0 || int(id) >= m.Config().Vocab) {
				return fmt.Errorf("%s: tensor %q, element [%d %d]: %w: %d, the model has %d", file, tensor, i, k, lm.ErrVocabulary, id, m.Config().Vocab)
			}
		}
	}
	return nil
}

// readIDs reads an I64 or I32 matrix of token ids.
func readIDs(in *safetensors.File, path, name string) ([][]int32, error) {
	info, ok := in.Info(name)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s: no tensor %q", path, name)
	case info.DType != safetensors.I64 && info.DType != safetensors.I32:
		return nil, fmt.Errorf("%s: tensor %q is %s, want I64 or I32", path, name, info.DType)
	case len(info.Shape) != 2 || info.Shape[0] == 0 || info.Shape[1] == 0:
		return nil, fmt.Errorf("%s: tensor %q has the shape %v, want [batch, length] with something in it", path, name, info.Shape)
	}
	data, err := in.Bytes(name)
	if err != nil {
		return nil, err
	}
	rows := make([][]int32, info.Shape[0])
	width := info.DType.Bits() / 8
	for i := range rows {
		rows[i] = make([]int32, info.Shape[1])
		for k := range rows[i] {
			v := int64(int32(binary.LittleEndian.Uint32(data)))
			if width == 8 {
				v = int64(binary.LittleEndian.Uint64(data))
			}
			if v < math.MinInt32 || v > math.MaxInt32 {
				return nil, fmt.Errorf("%s: tensor %q, element [%d %d]: %d is not a token id", path, name, i, k, v)
			}
			rows[i][k], data = int32(v), data[width:]
		}
	}
	return rows, nil
}
