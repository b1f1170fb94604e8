package modelcmd

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// ForwardOptions are the settings of a pass from file to file.
type ForwardOptions struct {
	IDs, Out  string // .safetensors files: with input_ids and perhaps labels; to write
	Hidden    bool   // also write the hidden states
	Grad      bool   // also write the gradient of the loss for every parameter
	Overwrite bool   // replace an existing Out
	Adapter   string // folder of an adapter to apply first; empty: none
	Experts   string // which experts of a mediated folder answer

	cli.Compute
}

// ForwardReport is what forward says about a run.
type ForwardReport struct {
	Out       string   `json:"out"`
	Sequences int      `json:"sequences"`
	Length    int      `json:"length"`
	Counted   int      `json:"counted"` // positions in the loss
	Loss      *float64 `json:"loss"`    // null where no position counts
	Gradients int      `json:"gradients,omitempty"`
}

// Forward runs a model on the ids of a file and writes what it computes.
func Forward(j *cli.Job, path string, o ForwardOptions) (any, error) {
	if _, err := os.Stat(o.Out); err == nil && !o.Overwrite { // found again when it is written; this saves the work
		return nil, fmt.Errorf("%s: %w", o.Out, safetensors.ErrExists)
	}

	to, err := cli.Place{
		Flag: "out", Path: o.Out, What: "an output of forward", Own: isForward, Inputs: j.Inputs,
		Seeks: true,
	}.Target()
	if err != nil {
		return nil, err
	}

	in, err := safetensors.Open(o.IDs)
	if err != nil {
		return nil, err
	}
	defer in.Close()

	ids, err := readIDs(in, o.IDs, "input_ids")
	if err != nil {
		return nil, err
	}

	var labels [][]int32
	if _, ok := in.Info("labels"); ok {
		if labels, err = readIDs(in, o.IDs, "labels"); err != nil {
			return nil, err
		}
		if len(labels) != len(ids) || len(labels[0]) != len(ids[0]) {
			return nil, fmt.Errorf("%s: labels are [%d,%d], input_ids [%d,%d]", o.IDs, len(labels), len(labels[0]),
				len(ids), len(ids[0]))
		}
	}

	m, err := openmodel.Open(j, path, o.Compute.Options(),
		openmodel.Options{Adapter: o.Adapter, Experts: o.Experts})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	if err := inVocabulary(m.Model, o.IDs, "input_ids", ids, 0); err != nil {
		return nil, err
	}
	if err := inVocabulary(m.Model, o.IDs, "labels", labels, lm.IgnoreLabel); err != nil {
		return nil, err
	}

	pass := lm.ForwardOptions{Logits: true, Hidden: o.Hidden, Labels: labels}
	r, err := routed(j, m.Model, m.Experts, ids, pass, o.Grad)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.IDs, err)
	}

	if r.Counted == 0 {
		r.Loss = math.NaN() // the mean of nothing
	}
	if o.Grad && r.Counted == 0 {
		return nil, fmt.Errorf("%s: --grad: no position counts, so there is no loss to differentiate", o.IDs)
	}

	m.Detach() // the gradients are those of its own parameters
	bar := j.Bars()
	defer bar.End()

	p := Pass{
		Adapter: m.Adapter, Model: m.Model, Result: r, IDs: ids, Labels: labels, Grad: o.Grad, Progress: bar.Show,
	}
	gradients, err := p.Write(j.Ctx, to, o.Overwrite)
	if err != nil {
		return nil, err
	}

	bar.End()
	report := ForwardReport{
		Out: o.Out, Sequences: len(ids), Length: len(ids[0]), Counted: r.Counted, Gradients: gradients,
	}
	if r.Counted == 0 {
		j.Printf("no position counts, so there is no loss; written to %s\n", o.Out)
		return report, nil
	}

	loss := r.Loss // a copy: the result holds logits and hidden states
	report.Loss = &loss
	j.Printf("loss %.6f over %d positions, written to %s\n", r.Loss, r.Counted, o.Out)

	return report, nil
}

// inVocabulary refuses ids that the model does not have, but for one that has a meaning of its own.
func inVocabulary(m *lm.Model, file, tensor string, rows [][]int32, also int32) error {
	for i, row := range rows {
		for k, id := range row {
			if id != also && (id < 0 || int(id) >= m.Config().Vocab) {
				return fmt.Errorf("%s: tensor %q, element [%d %d]: %w: %d, the model has %d", file, tensor, i, k,
					lm.ErrVocabulary, id, m.Config().Vocab)
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
		return nil, fmt.Errorf("%s: tensor %q has the shape %v, want [batch, length] with something in it", path, name,
			info.Shape)
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

// isForward tells a file that forward wrote.
func isForward(path string) bool {
	f, err := safetensors.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	_, loss := f.Info("loss_per_token")
	_, logits := f.Info("logits")
	return loss && logits
}
