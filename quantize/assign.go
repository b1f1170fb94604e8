package quantize

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// The ways to choose what each matrix becomes.
const (
	// BySensitivity adds up what predictions lose by the errors of single matrices, to second order: one pass of the
	// calibration text through the model and back.
	BySensitivity = "sensitivity"
	// BySearch begins there and measures whole assignments, by their divergence from the model on the calibration text.
	BySearch = "search"
)

// Ways lists the ways to choose.
var Ways = []string{BySensitivity, BySearch}

// Keep is the level of matrices of a folder that stay as they are.
const Keep = "keep"

// ErrBudget: even the smallest levels do not fit.
var ErrBudget = failure.Misuse("too small for any assignment", "")

// AssignOptions says what may become of the matrices of a model, and how much room there is.
type AssignOptions struct {
	// Levels are what matrices may become: types of GGUF files (q4_k, q6_k, …), where those whose rows a type does not
	// divide get the one that llama.cpp takes in its place, or schemes of folders and [Keep].
	Levels []string `json:"levels"`
	// Bytes is the largest sum of the sizes of all tensors; 0: BitsPerWeight counts.
	Bytes int64 `json:"bytes,omitempty"`
	// BitsPerWeight is the largest mean: of all tensors of a GGUF file, of the matrices of blocks in a folder.
	BitsPerWeight float64 `json:"bits_per_weight,omitempty"`

	By     string     `json:"by"`               // BySensitivity or BySearch; empty: BySensitivity
	Fixed  []TypeRule `json:"fixed,omitempty"`  // matrices that are not chosen for
	Group  int        `json:"group,omitempty"`  // see [Options]
	Ignore []string   `json:"ignore,omitempty"` // matrices of a folder that stay as they are whatever they weigh
	// Importance weighs the errors of columns where GGUF's types are rounded to; nil: all count alike.
	Importance *imatrix.File `json:"-"`

	// Of a search: generations (0: 30), offspring of each (0: 8), and what they are drawn by.
	Generations int    `json:"generations,omitempty"`
	Offspring   int    `json:"offspring,omitempty"`
	Seed        uint64 `json:"seed,omitempty"`

	// Known gives a figure that an interrupted search has measured, Note takes a new one; nil: nothing is known, nobody
	// is told. Key is one of the search's own.
	Known func(key string) (float64, bool)       `json:"-"`
	Note  func(key string, figure float64) error `json:"-"`
	// Step is told how far the work is; nil: nobody is.
	Step func(AssignStep) `json:"-"`
}

// AssignStep is a point of the work: Done of Of sequences in gradients, parts in losses, generations in a search.
type AssignStep struct {
	Stage string // AssignGradients, AssignLosses, AssignSearch
	Done  int
	Of    int
	Score float64 // of the best assignment of a search so far, nats a token
}

// The stages of an assignment.
const (
	AssignGradients = "gradients"
	AssignLosses    = "losses"
	AssignSearch    = "search"
)

// Assignment is what each matrix becomes.
type Assignment struct {
	Options AssignOptions `json:"options"`
	Bytes   int64         `json:"bytes"`           // of all tensors
	Bits    float64       `json:"bits_per_weight"` // of a GGUF file's tensors, or of the matrices of a folder
	// Predicted is what the levels cost by sensitivities, Measured by a search, in nats a token.
	Predicted float64  `json:"predicted_kl"`
	Measured  *float64 `json:"measured_kl,omitempty"`
	// Start is what the search began with.
	Start *float64       `json:"start_kl,omitempty"`
	Parts []AssignedPart `json:"parts"`
	// Uniform is what each level would take and cost alone, where all parts have it.
	Uniform []UniformLevel `json:"uniform"`

	main Scheme // of a folder: that of most
}

// AssignedPart is a tensor of a GGUF file, or the matrices of a folder that runtimes run as one.
type AssignedPart struct {
	Names   []string `json:"names"` // of tensors in the file, or of modules in the folder
	Level   string   `json:"level"`
	Bytes   int64    `json:"bytes"`
	Loss    float64  `json:"predicted_kl"`
	Members []string `json:"members"` // tensors of the model
}

// UniformLevel is one level for everything.
type UniformLevel struct {
	Level     string  `json:"level"`
	Bytes     int64   `json:"bytes"`
	Bits      float64 `json:"bits_per_weight"`
	Predicted float64 `json:"predicted_kl"`
}

// Assign chooses what each matrix of a model becomes, so that predictions suffer least within a size. The model is left
// as it was. Memory holds one matrix and the sums of gradients; a search holds the whole model, which it changes.
func Assign(ctx context.Context, m *lm.Model, calib corpus.Windows, o AssignOptions) (*Assignment, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()

	if len(calib.IDs) == 0 {
		return nil, fmt.Errorf("assignment: %w", ErrNoCalibration)
	}
	if err := calib.Check(m.Config().Vocab); err != nil {
		return nil, err
	}

	c, err := newCandidates(ctx, m, o)
	if err != nil {
		return nil, err
	}
	defer c.close()

	if err := c.feasible(); err != nil {
		return nil, err
	}
	if err := c.weigh(ctx, calib); err != nil {
		return nil, err
	}
	choice, err := c.problem.Solve()
	if err != nil {
		return nil, c.short(err)
	}

	a := c.assignment()
	if o.By == BySearch {
		found, err := c.search(ctx, calib, choice)
		if err != nil {
			return nil, err
		}
		choice = found.choice
		a.Measured = &found.score
		a.Start = &found.start
	}

	c.describe(a, choice)
	return a, nil
}

// Validate returns every fault of the options, joined; nil if there is none.
func (o AssignOptions) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}

	if len(o.Levels) < 2 {
		fault("%d levels to choose from; want two or more", len(o.Levels))
	}
	seen := map[string]bool{}
	for _, name := range o.Levels {
		if seen[name] {
			fault("level %s given twice", name)
		}
		seen[name] = true
	}
	if _, err := o.IntoFile(); err != nil {
		faults = append(faults, err)
	}

	if (o.Bytes > 0) == (o.BitsPerWeight > 0) || o.Bytes < 0 || !(o.BitsPerWeight >= 0) ||
		math.IsInf(o.BitsPerWeight, 0) {
		fault("%d bytes and %g bits a weight; want one of them", o.Bytes, o.BitsPerWeight)
	}
	if o.By != "" && !slices.Contains(Ways, o.By) {
		fault("%q; known ways to choose: %s", o.By, strings.Join(Ways, ", "))
	}
	if o.Generations < 0 || o.Offspring < 0 {
		fault("%d generations of %d", o.Generations, o.Offspring)
	}
	if o.By != BySearch && (o.Generations != 0 || o.Offspring != 0) {
		fault("generations and offspring belong to %s", BySearch)
	}
	return failure.Join(faults...)
}

func (o *AssignOptions) setDefaults() {
	if o.By == "" {
		o.By = BySensitivity
	}
	if o.By == BySearch && o.Generations == 0 {
		o.Generations = 30
	}
	if o.By == BySearch && o.Offspring == 0 {
		o.Offspring = 8
	}
	if o.Known == nil {
		o.Known = func(string) (float64, bool) { return 0, false }
	}
	if o.Note == nil {
		o.Note = func(string, float64) error { return nil }
	}
	if o.Step == nil {
		o.Step = func(AssignStep) {}
	}
}

// IntoFile reports whether the levels are types of GGUF files, and not schemes of folders. The error names a level that
// is neither, or that does not go with the others.
func (o AssignOptions) IntoFile() (bool, error) {
	files := 0
	for _, name := range o.Levels {
		_, _, err := typeNamed(name)
		s, unknown := SchemeByName(name)
		folder := name == Keep || unknown == nil && !s.File()
		switch {
		case err == nil:
			files++
		case !folder:
			return false, fmt.Errorf("%w: level %q; known: %s, or of a folder %s, %s", ErrOptions, name,
				strings.Join(TypeNames(), ", "), strings.Join(folderNames(), ", "), Keep)
		case s.Layout == gptqLayout:
			return false, fmt.Errorf("%w: level %s: the layout of GPTQ has one scheme for all matrices", ErrOptions,
				name)
		}
	}
	if files > 0 && files < len(o.Levels) {
		return false, fmt.Errorf("%w: levels %s: types of GGUF files and schemes of folders", ErrOptions,
			strings.Join(o.Levels, ", "))
	}
	return files > 0, nil
}

func folderNames() (names []string) {
	for _, s := range schemes {
		if s.Layout != gptqLayout {
			names = append(names, s.Name)
		}
	}
	return names
}

// FileOptions puts the assignment into the options of a GGUF file.
func (a *Assignment) FileOptions(o FileOptions) FileOptions {
	o.Scheme = a.main
	o.Types = nil
	for _, p := range a.Parts {
		for _, name := range p.Names {
			o.Types = append(o.Types, TypeRule{Pattern: name, Type: p.Level})
		}
	}
	o.Types = append(o.Types, a.Options.Fixed...)
	return o
}

// FolderOptions puts the assignment into the options of a folder.
func (a *Assignment) FolderOptions(o Options) Options {
	o.Scheme = a.main
	o.Group = a.Options.Group
	o.Types = nil
	o.Ignore = slices.Clone(a.Options.Ignore)
	for _, p := range a.Parts {
		for _, name := range p.Names {
			switch p.Level {
			case Keep:
				o.Ignore = append(o.Ignore, name)
			case a.main.Name:
			default:
				o.Types = append(o.Types, TypeRule{Pattern: name, Type: p.Level})
			}
		}
	}
	o.Types = append(o.Types, a.Options.Fixed...)
	return o
}

// short says in the terms of the options that a budget is too small.
func (c *candidates) short(err error) error {
	var e *levels.BudgetError
	if !errors.As(err, &e) {
		return err
	}
	least := e.Smallest + c.rest
	if c.o.Bytes > 0 {
		return fmt.Errorf("%w: %d bytes; the smallest, everything %s, is %d", ErrBudget, c.o.Bytes, c.smallest(),
			least+c.beside)
	}
	// Rounded up, so that the figure does.
	bits := math.Ceil(8000*float64(least)/float64(c.weights)) / 1000
	return fmt.Errorf("%w: %g bits a weight; the smallest, everything %s, is %.3f", ErrBudget, c.o.BitsPerWeight,
		c.smallest(), bits)
}

// feasible reports a budget that nothing fits, before any work.
func (c *candidates) feasible() error {
	_, err := c.problem.Solve()
	return c.short(err)
}
