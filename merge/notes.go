package merge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcompress/compress/merge/internal/stream"
)

// Ties counts the elements that equal a threshold, of which the rule for ties keeps some: no magnitude tells them
// apart.
type Ties struct {
	Rule     TieBreak `json:"rule"`
	Elements int64    `json:"elements"` // of all inputs, that were compared with a threshold
	Tied     int64    `json:"tied"`
	Kept     int64    `json:"kept"`
	// that have some; those of thresholds over the whole model stand with its first tensor
	Tensors []TensorTies `json:"tensors,omitempty"`
}

// TensorTies are those of one tensor.
type TensorTies struct {
	Tensor   string `json:"tensor"`
	Elements int64  `json:"elements"`
	Tied     int64  `json:"tied"`
	Kept     int64  `json:"kept"`
}

// Zeros says what became of elements that are 0.
type Zeros struct {
	From     string      `json:"from,omitempty"` // the model whose zeros are kept
	Kept     int64       `json:"kept"`           // elements that are 0 there, and so in the output
	Restored int64       `json:"restored"`       // of these, those that the method had given another value
	Lost     []LostZeros `json:"lost,omitempty"`
}

// LostZeros are matrices of a model of which zeros are a good part, and most of these are gone in the output.
// Fractions are estimates from a sample of the elements.
type LostZeros struct {
	Model    string  `json:"model"`
	Matrices int     `json:"matrices"`
	Before   float64 `json:"before"` // zeros among the elements of the model's matrices
	After    float64 `json:"after"`  // and among those of the output's
}

// A pattern of zeros is lost if that fraction of a matrix is 0 and less than half as much of the merged one.
const pattern = 0.3

// noted puts what was noted of all tensors into the report.
func (w *work) noted(report *Report, notes map[string]json.RawMessage) error {
	ties, zeros := &Ties{Rule: cmp.Or(w.o.Ties, TieDraw)}, &Zeros{}
	lost := map[string]*LostZeros{}
	weight := map[string]float64{}
	report.NonFinite = nil
	for _, name := range slices.Sorted(maps.Keys(notes)) {
		var n stream.Note
		if err := json.Unmarshal(notes[name], &n); err != nil {
			return fmt.Errorf("what is noted of tensor %q: %w", name, err)
		}

		for _, x := range n.NonFinite {
			report.NonFinite = append(report.NonFinite, NonFinite(x))
		}

		if t := n.Ties; t != nil {
			ties.Elements += t.Elements
			ties.Tied += t.Tied
			ties.Kept += t.Kept
			if t.Tied > 0 {
				ties.Tensors = append(ties.Tensors, TensorTies{name, t.Elements, t.Tied, t.Kept})
			}
		}

		if z := n.Zeros; z != nil {
			zeros.Kept += z.Kept
			zeros.Restored += z.Restored
			lose(lost, weight, z)
		}
	}

	if ties.Tied > 0 {
		report.Ties = ties
	}

	for _, name := range slices.Sorted(maps.Keys(lost)) {
		l := lost[name]
		l.Before /= weight[name]
		l.After /= weight[name]
		zeros.Lost = append(zeros.Lost, *l)
	}

	if w.o.KeepZeros {
		zeros.From = w.zerosOf()
	}
	if w.o.KeepZeros || len(zeros.Lost) > 0 {
		report.Zeros = zeros
	}

	report.Warnings = append(slices.Clip(report.Warnings), w.lostWarnings(zeros.Lost)...)
	return nil
}

// lose adds the zeros of a matrix that are gone, by the models that had them.
func lose(lost map[string]*LostZeros, weight map[string]float64, z *stream.Zeros) {
	if z.Sampled == 0 {
		return
	}

	after := float64(z.Output) / float64(z.Sampled)
	for i, name := range z.Models[:min(len(z.Models), len(z.Inputs))] {
		before := float64(z.Inputs[i]) / float64(z.Sampled)
		if before < pattern || after >= before/2 {
			continue
		}

		l := lost[name]
		if l == nil {
			l = &LostZeros{Model: name}
			lost[name] = l
		}

		n := float64(z.Elements)
		l.Matrices++
		l.Before += before * n
		l.After += after * n
		weight[name] += n
	}
}

// zerosOf is the model whose zeros Options.KeepZeros keeps.
func (w *work) zerosOf() string {
	if w.plan.Base >= 0 {
		return w.plan.Models[w.plan.Base].String()
	}
	for i := range w.plan.Models {
		return w.plan.Models[i].String()
	}
	return ""
}

// lostWarnings tells of patterns of zeros that are gone, and how they could have stayed.
func (w *work) lostWarnings(lost []LostZeros) (list []string) {
	for _, l := range lost {
		hint := "--keep-zeros keeps the zeros of " + w.zerosOf()
		if w.zerosOf() != l.Model {
			hint += " alone"
		}

		list = append(list, fmt.Sprintf(
			"the zeros of %s are lost: of %d of its matrices about %.1f %% are 0, of the merged ones %.1f %% "+
				"(HINT: %s)",
			l.Model, l.Matrices, 100*l.Before, 100*l.After, hint))
	}

	return list
}
