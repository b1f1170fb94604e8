package lora

import (
	"github.com/modelcompress/compress/lora/internal/combine"
	"github.com/modelcompress/compress/lora/internal/extract"
	"github.com/modelcompress/compress/lora/internal/fold"
)

// FoldOptions of [Fold].
type FoldOptions struct {
	Overwrite bool // replace a checkpoint that is there
	Resume    bool // continue an interrupted run of the same work
	Safe      bool // round the delta to the base's element type before it is added
	// KeepZeros leaves zeros of the base's matrices alone: what the adapter would put there is lost, and the
	// report says how much that is.
	KeepZeros      bool
	MaxShardSize   int64 // bytes per file; 0: files as in the base
	Threads        int   // 0: all processors
	AllowOtherBase bool  // take an adapter that says it was trained on other weights
	// Progress is told how many bytes of the output are there; nil: nobody wants to know.
	Progress func(name string, done, total int64)
}

// of is what the engine needs of the options.
func (o FoldOptions) of(job string) fold.Options {
	return fold.Options{
		Overwrite: o.Overwrite, Resume: o.Resume, Safe: o.Safe, KeepZeros: o.KeepZeros, MaxShardSize: o.MaxShardSize,
		Threads: o.Threads, Job: job, Progress: o.Progress,
	}
}

// FoldReport says what [Fold] did.
type FoldReport struct {
	Model   string   `json:"model"`
	Adapter string   `json:"adapter"`
	Notes   []string `json:"notes,omitempty"` // what was accepted without effect

	Out     string         `json:"out"`
	Edited  int            `json:"edited"`          // tensors that the adapter changes
	Copied  int            `json:"copied"`          // tensors that stay as they are
	Resumed int            `json:"resumed"`         // edited tensors that an interrupted run had finished; not in Tensors
	Bytes   int64          `json:"bytes"`           // of the output's weights
	Untied  bool           `json:"untied"`          // the head is no longer the token table
	Zeros   *FoldedZeros   `json:"zeros,omitempty"` // of the tensors; nil where none has any before or after
	Tensors []FoldedTensor `json:"tensors"`
}

// FoldedTensor says how a tensor has changed.
type FoldedTensor struct {
	Name     string  `json:"name"`
	Elements int64   `json:"elements"`
	Moved    int64   `json:"moved"`    // elements whose stored value has changed
	MaxAbs   float64 `json:"max_abs"`  // largest change
	Relative float64 `json:"relative"` // norm of the change by the norm of what was there

	Before int64 `json:"zeros_before"`
	After  int64 `json:"zeros_after"`
	// norm of the change that keeping zeros left out, by the norm of the whole change
	Lost float64 `json:"lost,omitempty"`
}

// FoldedZeros counts the elements that are zero in the matrices that the adapter changes.
type FoldedZeros struct {
	Kept     bool  `json:"kept"`   // where the base has them
	Pruned   int   `json:"pruned"` // matrices with at least 30 % zeros before
	Elements int64 `json:"elements"`
	Before   int64 `json:"before"`
	After    int64 `json:"after"`
	// norm of the change that keeping zeros left out, by the norm of the whole change
	Lost float64 `json:"lost,omitempty"`
}

func foldReport(model, adapter string, notes []string, r *fold.Report) *FoldReport {
	return &FoldReport{
		Model: model, Adapter: adapter, Notes: notes, Out: r.Out, Edited: r.Edited, Copied: r.Copied,
		Resumed: r.Resumed, Bytes: r.Bytes, Untied: r.Untied, Zeros: (*FoldedZeros)(r.Zeros),
		Tensors: each(r.Tensors, func(t fold.Tensor) FoldedTensor {
			return FoldedTensor{
				Name: t.Name, Elements: t.Elements, Moved: t.Moved, MaxAbs: t.MaxAbs, Relative: t.Relative,
				Before: t.Before, After: t.After, Lost: t.Lost,
			}
		}),
	}
}

// ExtractReport says what [Extract] kept.
type ExtractReport struct {
	Base  string   `json:"base"`
	Tuned string   `json:"tuned"`
	Out   string   `json:"out"`
	Notes []string `json:"notes,omitempty"` // what others may not read

	Rank     int               `json:"rank"`   // of the adapter
	Energy   float64           `json:"energy"` // fraction of the squares of all the matrices' differences in the factors
	Matrices []ExtractedMatrix `json:"matrices"`
	LeftOut  []LeftOut         `json:"left_out"` // other tensors that differ; the adapter does not hold them
	Kept     []LeftOut         `json:"whole"`    // other tensors that differ; the adapter holds them as they are
}

// ExtractedMatrix says what was kept of one matrix.
type ExtractedMatrix struct {
	Path     string  `json:"path"`
	Norm     float64 `json:"norm"`     // Frobenius norm of the difference
	Relative float64 `json:"relative"` // by the norm of the base's matrix
	Energy   float64 `json:"energy"`   // fraction of the squares of its singular values; 1 where nothing differs
}

// LeftOut is a tensor that differs and that no factor has.
type LeftOut struct {
	Tensor   string  `json:"tensor"`
	Norm     float64 `json:"norm"`     // Frobenius norm of the difference
	Relative float64 `json:"relative"` // by the norm of the base's tensor
}

func extractReport(base, tuned, out string, notes []string, r *extract.Report) *ExtractReport {
	rest := func(t extract.Rest) LeftOut { return LeftOut(t) }
	return &ExtractReport{
		Base: base, Tuned: tuned, Out: out, Notes: notes, Rank: r.Rank, Energy: r.Energy,
		Matrices: each(r.Matrices, func(m extract.Matrix) ExtractedMatrix { return ExtractedMatrix(m) }),
		LeftOut:  each(r.LeftOut, rest),
		Kept:     each(r.Kept, rest),
	}
}

// CombineReport says what [Combine] did.
type CombineReport struct {
	Adapters []string `json:"adapters"`
	Out      string   `json:"out"`
	Notes    []string `json:"notes,omitempty"` // what was accepted without effect

	Method  string           `json:"method"` // as computed: one adapter alone is always linear
	Weights []float64        `json:"weights"`
	Rank    int              `json:"rank"`
	Exact   bool             `json:"exact"` // the result is the weighted sum of the changes, up to rounding
	Modules []CombinedModule `json:"modules"`
}

// CombinedModule says what became of one module.
type CombinedModule struct {
	Path     string   `json:"path"`
	Adapters int      `json:"adapters"`         // that change it
	Energy   *float64 `json:"energy,omitempty"` // fraction of the squared singular values that the rank keeps
}

// did fills in what the engine reports.
func (r *CombineReport) did(part *combine.Report) {
	r.Method = part.Method
	r.Weights = part.Weights
	r.Rank = part.Rank
	r.Exact = part.Exact
	r.Modules = each(part.Modules, func(m combine.Module) CombinedModule { return CombinedModule(m) })
}

// each converts a list; nil stays nil, which JSON tells from an empty list.
func each[A, B any](list []A, convert func(A) B) []B {
	if list == nil {
		return nil
	}

	out := make([]B, len(list))
	for i, v := range list {
		out[i] = convert(v)
	}

	return out
}
