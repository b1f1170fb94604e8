package gp

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// Probe is a set of small fixed matrices on which candidates are tried before any model is touched.
type Probe struct {
	parts []Inputs
	exec  Exec
}

// Fingerprint identifies what a metric does: a hash of the masks that it makes on a probe, 50 % of every row and 2 of every
// 4 columns. Metrics with equal fingerprints may share their fitness.
type Fingerprint uint64

// minDistinct is the share of different scores that every row of a probe must have.
const minDistinct = 0.5

// NewProbe makes a probe of matrices of real layers, small ones: some tens of rows are enough.
func NewProbe(parts ...Inputs) *Probe { return &Probe{parts, Exec{Threads: 1, Finite: true}} }

// SyntheticProbe makes a probe of 3 matrices of 64×512, 64×512 and 96×172 elements whose weights, gradients and inputs are
// distributed as in language models: weights bell-shaped, gradients log-normal with exact zeros, and a few inputs a hundred
// times as strong as the others.
func SyntheticProbe(seed uint64) *Probe {
	var parts []Inputs
	for n, shape := range [][2]int{{64, 512}, {64, 512}, {96, 172}} {
		parts = append(parts, synthetic(stream(seed, n), shape[0], shape[1]))
	}
	return NewProbe(parts...)
}

func synthetic(r *random, rows, cols int) Inputs {
	vector := func(f func() float64) []float32 {
		v := make([]float32, cols)
		for j := range v {
			v[j] = float32(f())
		}
		return v
	}
	in := Inputs{
		X: vector(func() float64 {
			x := math.Exp(1.5*r.normal() + 3)
			if r.chance(0.02) {
				x *= 1e4
			}
			return x
		}),
		Mean: vector(func() float64 { return 0.1 * r.normal() }),
		Var:  vector(func() float64 { return math.Exp(r.normal() - 1) }),
		Hess: vector(func() float64 { return math.Exp(1.5*r.normal() + 2) }),
		Inv:  vector(func() float64 { return math.Exp(r.normal() - 2) }),
	}
	w, g := make([]float32, rows*cols), make([]float32, rows*cols)
	for i := range w {
		w[i] = float32(0.02 * r.normal() * math.Exp(0.3*r.normal()))
		g[i] = float32(math.Exp(1.2*r.normal()-3) * math.Sqrt(float64(in.X[i%cols])) / 10)
		if r.chance(0.001) {
			g[i] = 0
		}
	}
	in.W, in.G = kernels.MatOf(kernels.WrapF32(w), rows, cols), kernels.MatOf(kernels.WrapF32(g), rows, cols)
	return in
}

// normal draws from the normal distribution (Box and Muller 1958).
func (r *random) normal() float64 {
	return math.Sqrt(-2*math.Log(1-r.float())) * math.Cos(2*math.Pi*r.float())
}

// Fingerprint evaluates an expression on the probe. It returns [ErrNonFinite] or [ErrConstant] where the scores can't rank
// weights, and the errors of [Compile] and [Program.Eval].
func (p *Probe) Fingerprint(e *Expr) (Fingerprint, error) {
	prog, err := Compile(e)
	if err != nil {
		return 0, err
	}
	h := fnv.New64a()
	var keys []uint64
	for _, in := range p.parts {
		s, err := prog.Scorer(in, p.exec)
		if err != nil {
			return 0, err
		}
		err = s.Each(0, func(first int, scores kernels.Mat) error {
			for i := range scores.Rows {
				row := scores.RowF32(i)
				keys = rankKeys(keys[:0], row)
				if n := distinct(keys); float64(n) < minDistinct*float64(len(row)) {
					return fmt.Errorf("%s: %w: %d values among %d weights of a row", e, ErrConstant, n, len(row))
				}
				h.Write(rowMasks(keys, row))
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return Fingerprint(h.Sum64()), nil
}

// rankKeys appends a row's elements in the order in which they are pruned: keys hold the score's rank above the column.
func rankKeys(keys []uint64, row []float32) []uint64 {
	for j, v := range row {
		keys = append(keys, uint64(rank(v))<<32|uint64(j))
	}
	slices.Sort(keys)
	return keys
}

// rank orders as the scores do, -0 with +0 and NaN on top.
func rank(v float32) uint32 {
	u := math.Float32bits(v)
	switch {
	case v != v:
		return math.MaxUint32
	case v == 0:
		return 1 << 31
	case u>>31 != 0:
		return ^u
	}
	return u | 1<<31
}

// distinct counts the different scores among sorted keys.
func distinct(keys []uint64) (n int) {
	for i, k := range keys {
		if i == 0 || k>>32 != keys[i-1]>>32 {
			n++
		}
	}
	return n
}

// rowMasks packs the 50 % mask and the 2:4 mask of a row, 1 = pruned.
func rowMasks(keys []uint64, row []float32) []byte {
	bytes := make([]byte, 0, len(row)/4+16)
	mask := make([]uint64, (len(row)+63)/64)
	for _, k := range keys[:len(keys)/2] {
		mask[uint32(k)/64] |= 1 << (uint32(k) % 64)
	}
	for _, m := range mask {
		bytes = binary.LittleEndian.AppendUint64(bytes, m)
	}
	clear(mask)
	for lo := 0; lo < len(row); lo += 4 {
		group := row[lo:min(lo+4, len(row))]
		for j := range group {
			if before(group, j) < 2 {
				mask[(lo+j)/64] |= 1 << ((lo + j) % 64)
			}
		}
	}
	for _, m := range mask {
		bytes = binary.LittleEndian.AppendUint64(bytes, m)
	}
	return bytes
}

// before counts the elements of a group that are pruned before element j.
func before(group []float32, j int) (n int) {
	for i, v := range group {
		if a, b := rank(v), rank(group[j]); a < b || a == b && i < j {
			n++
		}
	}
	return n
}
