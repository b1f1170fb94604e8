// Package method holds the merge methods: one closed table of their names and parameters, and for each the
// passes over blocks of float32 that compute it. It opens no file and starts no goroutine: package stream feeds
// the blocks.
//
// All arithmetic on elements is float32 and is rounded to the output's type once; sums over many elements are
// float64, and what decides which elements are kept is exact. In formulas x_j are the inputs, b is the base,
// δ_j = x_j - b, w_j are weights and n is the number of elements of a tensor.
package method

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// Ways of failing that a tensor's values cause.
var (
	ErrZeroWeight = errors.New("weights sum to zero")
	ErrAntipodal  = errors.New("inputs point in opposite directions")
	// ErrDegenerate: the directions have no mean.
	ErrDegenerate  = errors.New("no direction can be averaged")
	ErrParameter   = errors.New("parameter out of range")
	ErrShape       = errors.New("inputs have different shapes")
	ErrStatistics  = errors.New("statistics do not fit the tensor")
	ErrFewInputs   = errors.New("too few inputs have this tensor")
	ErrNoBase      = errors.New("the base has no such tensor")
	ErrUnsupported = errors.New("not possible for this tensor")
)

// BlockSize is how many elements a block holds, unless the program asks for whole rows.
const BlockSize = 4096

// SegmentSize is how many elements a segment has at most, unless a row is longer. Sums are carried per segment
// and then added in the order of segments, so that they do not depend on the number of workers.
const SegmentSize = 1 << 19

// Values are resolved parameters by name.
type Values interface {
	// Number is a number, 0 if there is none.
	Number(name string) float64
	// Bool is a truth value, false if there is none.
	Bool(name string) bool
	// Text is a word, "" if there is none.
	Text(name string) string
	// Has reports whether the parameter has a value.
	Has(name string) bool
}

// Tensor is what a method is told of one tensor.
type Tensor struct {
	Name   string
	Shape  []int64
	N      int64     // elements
	Base   bool      // the blocks have a base; without, all inputs are ordinary ones
	Vocab  bool      // one axis runs over the vocabulary
	Inputs []Input   // in the order of the recipe, without the base
	Params Values    // those that hold for the tensor as a whole
	Seed   [2]uint64 // of the random choices: the recipe's seed and a hash of the tensor's name
	// RandomTies has random numbers decide which of the elements that equal a threshold stay, instead of their index:
	// where many are equal, as in differences of bfloat16, the first rows of a matrix would stay and the last ones
	// go.
	RandomTies bool
}

// Input is one input of a tensor beside the base.
type Input struct {
	Model  int    // number of the model in the recipe
	Name   string // of the model, for messages
	Params Values
	Stat   []int64 // shape of its statistics for the tensor; nil if there are none
}

// Cols is the length of the last dimension, 1 for a scalar. A tensor of one dimension is a single row.
func (t *Tensor) Cols() int64 {
	if len(t.Shape) == 0 {
		return 1
	}
	return max(1, t.Shape[len(t.Shape)-1])
}

// Rows is N / Cols.
func (t *Tensor) Rows() int64 { return t.N / t.Cols() }

// Block is a run of elements of one tensor, widened to float32.
type Block struct {
	Tensor int         // position of the tensor in its group
	Index  int64       // of the first element, counted through all tensors of the group
	Off    int64       // of the first element in its tensor
	Base   []float32   // nil without a base
	X      [][]float32 // the inputs; a pass may overwrite them
	// the inputs' statistics, of the tensor's shape, for methods that ask for them; nil where there are none
	Stat [][]float32
	Out  []float32 // what Apply fills

	temp [][]float32
	keys []uint32
}

// Len is the number of elements.
func (b *Block) Len() int { return len(b.Out) }

// Temp is scratch memory of the block's length; its contents are arbitrary.
func (b *Block) Temp(i int) []float32 {
	for len(b.temp) <= i {
		b.temp = append(b.temp, nil)
	}
	if cap(b.temp[i]) < len(b.Out)+vec.Slack {
		b.temp[i] = make([]float32, len(b.Out)+vec.Slack)
	}
	return b.temp[i][:len(b.Out)]
}

// scratch has room for what a tally of the block writes.
func (b *Block) scratch() []uint32 {
	if need := b.Len() + vec.Slack; cap(b.keys) < need {
		b.keys = make([]uint32, need)
	}
	return b.keys[:b.Len()+vec.Slack]
}

// Deltas replaces the inputs by their differences to the base.
func (b *Block) Deltas() {
	if b.Base == nil {
		return
	}
	for _, x := range b.X {
		vec.Sub(x, x, b.Base)
	}
}

// Program says how a group of tensors is merged: passes over their blocks, in order, and then Apply once for
// every block. Each and Apply run for several blocks at a time.
type Program struct {
	Rows   bool           // blocks hold whole rows (see Tensor.Cols)
	Passes []Pass         // statistics
	Apply  func(b *Block) // fills b.Out
	// Words fills b.Out as Apply does, and returns the highest magnitude before rounding, as bits; where that
	// is not finite, the block is left to Apply. nil: there is no such way.
	Words    func(b *Words) uint32
	Whole    func(w *Whole) error // instead of Passes and Apply: all elements at once
	Lazy     bool                 // Whole reads what it wants with Read and gets no X and no Base
	Memory   int64                // bytes that the passes keep beyond blocks, or that Whole needs
	Warnings []string
	Ties     *Ties // what the passes have counted, once they are over; nil: there is no threshold
}

// Pass collects statistics over all blocks of a group.
type Pass struct {
	New    func() any               // what a segment (a run of blocks) collects, or a worker if Shared
	Shared bool                     // what is collected does not depend on the order of blocks
	Stride int64                    // if not 0: only SampleRun elements in every so many, as short blocks
	Only   *int                     // only this segment
	Each   func(stat any, b *Block) // one block after the other within a segment
	// Words does what Each does, or else leaves stat alone and returns false, which it does if anything is not
	// finite. nil: there is no such way.
	Words func(stat any, b *Words) bool
	// End gets what was collected, in the order of segments unless Shared; it may ask for passes to follow at once.
	End func(stats []any) ([]Pass, error)
}

// SampleRun is how many neighbours a sample takes at once.
const SampleRun = 16

// Whole is a tensor with all its elements in memory.
type Whole struct {
	Base []float32
	X    [][]float32
	Stat [][]float32 // statistics of the inputs, of any shape; nil where there are none
	Out  []float32

	// Read fills dst with the elements of input j from first on; the base comes after the inputs.
	Read func(j int, dst []float32, first int64) error

	Threads int          // that a program may use; 0: GOMAXPROCS
	Stop    func() error // asked between steps that take long, if not nil; its error ends the program
}

// each makes a New for groups of one tensor.
func each(f func(t *Tensor) (*Program, error)) func([]*Tensor) (*Program, error) {
	return func(g []*Tensor) (*Program, error) { return f(g[0]) }
}

// numbers collects one parameter of all inputs.
func numbers(t *Tensor, name string) []float64 {
	list := make([]float64, len(t.Inputs))
	for i, in := range t.Inputs {
		list[i] = in.Params.Number(name)
	}
	return list
}

func sum(list []float64) (s float64) {
	for _, v := range list {
		s += v
	}
	return s
}

// ParameterError is a value of a parameter that its method cannot work with. It wraps ErrParameter.
type ParameterError struct {
	Tensor, Name string
	Value        float64
	Want         string
}

// Error names the tensor, the parameter and what it must be.
func (e *ParameterError) Error() string {
	return fmt.Sprintf("tensor %q: %s is %g; it must be %s: %v", e.Tensor, e.Name, e.Value, e.Want, ErrParameter)
}

// Unwrap gives ErrParameter.
func (e *ParameterError) Unwrap() error { return ErrParameter }

// outOfRange is the error of a parameter's value.
func outOfRange(t *Tensor, name string, v float64, want string) error {
	return &ParameterError{Tensor: t.Name, Name: name, Value: v, Want: want}
}

// Key is the key of the random numbers of one input, for the elements whose index shares its upper bits.
func (t *Tensor) Key(input int, off int64) vec.Key {
	h := rng.Fold(t.Seed[0], t.Seed[1], uint64(t.Inputs[input].Model+1), uint64(off>>drawBits))
	return vec.Key{A: uint32(h), B: uint32(h >> 32)}
}

// drawBits is how many bits of an element's index count within one key.
const drawBits = 20

// byKey calls f for the parts of a block that share a key of random numbers: elements [lo, hi) of the block, with the
// number of the first within the key.
func (t *Tensor) byKey(input int, off int64, n int, f func(k vec.Key, first uint32, lo, hi int)) {
	for lo := 0; lo < n; {
		at := off + int64(lo)
		first := uint32(at & (1<<drawBits - 1))
		hi := min(n, lo+1<<drawBits-int(first))
		f(t.Key(input, at), first, lo, hi)
		lo = hi
	}
}
