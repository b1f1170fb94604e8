package prune

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/lm"
)

// Norms are the squares of what flows into the matrices of a model, known beforehand, as of an importance matrix. They
// are as good as what they were measured on: mostly the dense model, where a run of its own measures each block behind
// the pruned ones before it.
type Norms struct {
	From      string `json:"from"`      // where they come from
	Sequences int    `json:"sequences"` // of the text; 0: one
	// Inputs are the sums, by the names of the matrices' tensors. Every matrix of a block has some.
	Inputs map[string]Squares `json:"-"`
}

// Squares are those of the inputs of a matrix.
type Squares struct {
	Sums   []float64 // Σ x_j² over tokens
	Tokens int64     // that reached the matrix; 0: none, and no sum counts
}

// normFaults says what does not go with norms that are known, and with reporting those that are measured.
func (o Options) normFaults() (faults []error) {
	if o.Squares != nil && o.TrueSequential {
		faults = append(faults, fmt.Errorf("%w: squares of inputs are those of the dense decoder layer, and a "+
			"sequential run measures others", ErrOptions))
	}
	if o.Norms == nil {
		return faults
	}

	for _, c := range []struct {
		needs Stats
		what  string
	}{
		{o.Metric.Needs, "metric " + o.Metric.Name},
		{o.swapNeeds(), "a refinement of masks by swaps"},
		{o.Update.needs(), "update " + o.Update.Name},
		{o.Allocation.needs(o), "allocation " + o.Allocation.Name},
	} {
		if c.needs&ofInputs&^SumSquares != 0 {
			faults = append(faults, fmt.Errorf("%w: %s needs more of the inputs than the norms that are given",
				ErrOptions, c.what))
		}
	}
	if o.Squares != nil {
		faults = append(faults, fmt.Errorf("%w: squares of inputs are measured, and norms are given", ErrOptions))
	}
	if n := o.Norms.Sequences; n < 0 {
		faults = append(faults, fmt.Errorf("%w: norms of %d sequences", ErrOptions, n))
	}
	return faults
}

// fit compares norms with the matrices of a model.
func (n *Norms) fit(m *lm.Model) error {
	if n == nil {
		return nil
	}

	var missing []string
	all := 0
	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			all++
			in, ok := n.Inputs[l.Name]
			if !ok {
				missing = append(missing, l.Name)
				continue
			}
			if len(in.Sums) != l.In {
				return fmt.Errorf("%s: tensor %q: %w: %d sums for %d inputs", n.From, l.Name, ErrNorms, len(in.Sums),
					l.In)
			}
			bad := func(v float64) bool { return !(v >= 0 && v <= math.MaxFloat64) }
			if i := slices.IndexFunc(in.Sums, bad); i >= 0 {
				return fmt.Errorf("%s: tensor %q: %w: the sum of input %d is %v", n.From, l.Name, ErrNorms, i,
					in.Sums[i])
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: %w: there are none for %d of %d matrices of the model; the first is %q", n.From,
			ErrNorms, len(missing), all, missing[0])
	}
	return nil
}

// of gives what is known of a matrix, as a pass through the model would.
func (n *Norms) of(l lm.Linear) actstats.Inputs {
	known := n.Inputs[l.Name]
	x := actstats.Inputs{Sequences: max(n.Sequences, 1), Tokens: known.Tokens}
	if known.Tokens == 0 {
		return x
	}

	x.SumSquares = make([]float64, len(known.Sums))
	for j, s := range known.Sums {
		x.SumSquares[j] = s / float64(x.Sequences)
	}
	return x
}

// hash sums up all numbers.
func (n *Norms) hash() string {
	h := sha256.New()
	put := func(v uint64) { _, _ = h.Write(binary.LittleEndian.AppendUint64(nil, v)) }
	put(uint64(n.Sequences))
	for _, name := range slices.Sorted(maps.Keys(n.Inputs)) {
		_, _ = io.WriteString(h, name)
		put(uint64(n.Inputs[name].Tokens))
		for _, s := range n.Inputs[name].Sums {
			put(math.Float64bits(s))
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// tell hands what was measured of matrices to the caller.
func (w *walk) tell(linears []lm.Linear, stats *actstats.Stats) error {
	if w.o.Squares == nil {
		return nil
	}
	for _, l := range linears {
		in, err := stats.Of(l)
		if err != nil {
			return w.fail(l.Name, err)
		}
		sums := make([]float64, l.In)
		for j, s := range in.SumSquares {
			sums[j] = s * float64(in.Sequences)
		}
		w.o.Squares(l.Name, Squares{Sums: sums, Tokens: in.Tokens})
	}
	return nil
}

// knownInputs fills in what is known of the inputs of a matrix, measured or given.
func (w *walk) knownInputs(in *Inputs, l lm.Linear, stats *actstats.Stats) error {
	var x actstats.Inputs
	var err error
	switch {
	case stats != nil:
		x, err = stats.Of(l)
	case w.o.Norms != nil:
		x = w.o.Norms.of(l)
	default:
		return nil
	}
	if err != nil {
		return err
	}

	in.SumSquares = x.SumSquares
	in.Sums = x.Sums
	in.Variances = x.Variances
	in.Tokens = x.Tokens
	in.Sequences = x.Sequences
	in.Factor = x.Factor
	return nil
}
