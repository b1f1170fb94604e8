package merge

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/stream"
)

// Ways of failing, beside those of package safetensors and of the recipe.
var (
	ErrOption    = output.ErrOption
	ErrExists    = output.ErrExists
	ErrOtherJob  = output.ErrOtherJob
	ErrBusy      = output.ErrBusy
	ErrVerify    = output.ErrVerify
	ErrMemory    = stream.ErrMemory
	ErrNonFinite = stream.ErrNonFinite
	ErrOverflow  = stream.ErrOverflow
	ErrInPlace   = output.ErrInPlace
	ErrMethod    = errors.New("merge method is not possible here")
	// ErrRecipe: the recipe has faults, which the error lists with line and column.
	ErrRecipe = job.ErrRecipe
	// ErrMissing: models lack tensors that others have; Options.Missing says what to do.
	ErrMissing = plan.ErrMissing
)

// Missing says what becomes of a tensor that some models lack.
type Missing string

// The choices. The zero value is MissingError.
const (
	MissingError Missing = "error" // all are reported, and nothing is done
	MissingMerge Missing = "merge" // those that have it are merged
	MissingCopy  Missing = "copy"  // the base's is copied, or the first model's that has it
	MissingSkip  Missing = "skip"  // it is left out
)

// TieBreak says which of the elements stay that equal the threshold of a method that keeps a fraction of them.
type TieBreak string

// The choices. The zero value is TieDraw.
const (
	// TieDraw has random numbers decide, keyed by the seed, the tensor's name and the element's index.
	TieDraw TieBreak = "draw"
	// TieIndex keeps the elements of the lower index: the upper rows of a matrix.
	TieIndex TieBreak = "index"
)

// DefaultMemory is the memory that a merge may take if the options do not say.
const DefaultMemory = job.DefaultMemory

// Options are the choices that a recipe does not make. The zero value is ready.
type Options struct {
	// CPU threads to compute with; 0: one for each processor (GOMAXPROCS). The output does not depend on it
	Threads int `json:"threads,omitempty"`
	// bytes of anonymous memory for buffers and statistics; 0: DefaultMemory
	Memory int64  `json:"memory"`
	Seed   uint64 `json:"seed"` // of random choices
	// of the output, as recipes write it (bfloat16, …); "": as the recipe says
	DType    string  `json:"dtype,omitempty"`
	MaxShard int64   `json:"max_shard,omitempty"` // bytes per file; 0: no bound
	Missing  Missing `json:"missing,omitempty"`
	// Truncate cuts vocabularies that differ to the rows that all models have.
	Truncate bool `json:"truncate,omitempty"`
	// AllowNonFinite merges NaN and infinities in the inputs, and counts them in the report, instead of refusing them.
	AllowNonFinite bool `json:"allow_non_finite,omitempty"`
	// Ties breaks ties at thresholds: ties, breadcrumbs, sce, and the ranks of della.
	Ties TieBreak `json:"ties,omitempty"`
	// KeepZeros makes the elements of the output 0 that are 0 in the base model, or in the first model where the
	// recipe has no base.
	KeepZeros bool `json:"keep_zeros,omitempty"`
	Overwrite bool `json:"-"` // replace an existing checkpoint once the new one is complete
	Resume    bool `json:"-"` // continue an interrupted merge of the same recipe, inputs and options
	// Device runs the dense model for the features of a router (see Recipe.NeedsDevice); a GPU also merges what it
	// can. nil: the CPU.
	Device kernels.Device `json:"-"`
	// Mediator makes documents by mediate, which the zero value refuses. Package merge/mediate has one.
	Mediator Mediator `json:"-"`
	// Progress is called now and then, by one goroutine at a time. May be nil.
	Progress func(Progress) `json:"-"`

	journalEvery int64 // bytes between two entries of the journal; 0: the package's choice
}

// Mediator makes the documents of a recipe that merge by mediate. The zero value makes none; package merge/mediate has
// one.
type Mediator job.Mediator

// JobOptions are what the work knows of [Options]. Like [Mediator] they have a public name, and are used within this
// module.
type JobOptions job.Options

// Job is what the work knows of the options, for the packages of this module that do it themselves.
func (o Options) Job() JobOptions {
	return JobOptions{
		Threads: o.Threads, Memory: o.Memory, Seed: o.Seed, DType: o.DType, Missing: string(o.Missing),
		Truncate: o.Truncate, AllowNonFinite: o.AllowNonFinite, RandomTies: o.Ties != TieIndex,
		KeepZeros: o.KeepZeros, Device: o.Device,
	}
}

// Progress is how far a merge has come.
type Progress struct {
	Document    string // of a recipe with several; "" otherwise
	Done, Total int64  // bytes of the output
}

// Validate returns every fault of the options, joined.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrOption))
	}
	if o.Threads < 0 || o.Threads > 4096 {
		bad("threads %d: want 0 to 4096", o.Threads)
	}
	if o.Memory < 0 {
		bad("memory %d bytes", o.Memory)
	}
	if o.MaxShard < 0 {
		bad("shards of at most %d bytes", o.MaxShard)
	}
	if _, err := job.DType(o.DType); err != nil {
		bad("%v", err)
	}
	if _, err := job.Missing(string(o.Missing)); err != nil {
		bad("%v", err)
	}
	if o.Ties != "" && o.Ties != TieDraw && o.Ties != TieIndex {
		bad("ties %.50q: want draw or index", o.Ties)
	}

	return errors.Join(errs...)
}
