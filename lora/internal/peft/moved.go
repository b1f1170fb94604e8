package peft

import (
	"fmt"
	"math"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Weights reads a tensor of a base in F32, as it is stored.
type Weights func(tensor string) (kernels.Mat, error)

// ReadOn is [ReadNoted] for a base whose weights can be read, which adapters need that were started with pissa
// or olora: such a start takes a part of every weight W out of the base and into the factors, and the library
// does so again whenever it loads the adapter. What was taken is s·B₀·A₀, with W = U·S·Vᵀ, B₀ = U·√(S/s) and A₀
// = √(S/s)·Vᵀ cut to the rank for pissa, and W = Q·R, B₀ = Q, A₀ = R cut to the rank for olora. The adapter
// that is returned has both factors side by side, A over A₀ and B beside -B₀, and adds the same to the
// untouched base.
func ReadOn(dir string, modules []adapter.Module, weights Weights) (*adapter.Adapter, []string, error) {
	a, notes, err := read(dir, modules)
	if err != nil || !moves(a.Config.Init) {
		return a, notes, err
	}

	if weights == nil {
		return nil, nil, needsBase(dir, a.Config.Init)
	}

	for _, l := range a.Low {
		if l.Module.Table {
			continue // tables are started in the ordinary way
		}
		if err := unmove(l, a.Config.Init, weights); err != nil {
			return nil, nil, fmt.Errorf("%s: module %s: %w", dir, l.Module.Path, err)
		}

		l.Alpha *= alphaFactor(&a.Config)
	}

	notes = append(notes, fmt.Sprintf("init_lora_weights %s took a part of the base's weights, which the factors "+
		"give back: ranks are doubled", a.Config.Init))
	double(&a.Config)
	return a, notes, nil
}

// needsBase is the error about an adapter that cannot be read without its base's weights.
func needsBase(dir, init string) error {
	return failure.Hinted(fmt.Errorf("%s: %w: key \"init_lora_weights\": %q takes a part of the base's weights into "+
		"the factors, so the base is needed", filepath.Join(dir, ConfigName), adapter.ErrUnsupported, init),
		"--model names it")
}

// moves reports whether a start changes the base in a way that can be computed again.
func moves(init string) bool { return init == "pissa" || init == "olora" }

// unmove replaces a module's factors by those that act on the untouched base.
func unmove(l *adapter.Low, init string, weights Weights) error {
	w, err := weights(l.Module.Tensor)
	if err != nil {
		return err
	}

	x := linalg.FromMat(w)
	if l.Module.Transposed {
		if init == "olora" {
			return fmt.Errorf("%w: olora of a matrix that is stored [in, out]", adapter.ErrUnsupported)
		}
		x = x.T()
	}

	b0, a0, err := taken(x, init, l.Rank, l.Scale)
	if err != nil {
		return err
	}

	// The factors began at b0·a0, which was taken out of the base. On the base as it was the change is b·a - b0·a0: of
	// twice the rank, the second half being what was there at the beginning, with its sign turned.
	a, b := l.Pair()
	f := adapter.Plain{
		A: adapter.NewParam(l.Module.Path+".lora_A.weight", 2*l.Rank, l.Module.In),
		B: adapter.NewParam(l.Module.Path+".lora_B.weight", l.Module.Out, 2*l.Rank),
	}

	for k := range l.Rank {
		copy(f.A.Value.RowF32(k), a.RowF32(k))
		for j, v := range a0.Row(k) {
			f.A.Value.RowF32(l.Rank + k)[j] = float32(v)
		}
	}

	for i := range l.Module.Out {
		row := f.B.Value.RowF32(i)
		copy(row, b.RowF32(i))
		for k, v := range b0.Row(i) {
			row[l.Rank+k] = -float32(v)
		}
	}

	l.Rank, l.Factors = 2*l.Rank, f
	return nil
}

// taken are the factors B₀ [out, rank] and A₀ [rank, in] that a start makes of W [out, in].
func taken(w linalg.Matrix, init string, rank int, scale float64) (b, a linalg.Matrix, err error) {
	if rank > min(w.Rows, w.Cols) {
		return b, a, fmt.Errorf("%w: rank %d of a matrix [%d, %d]", adapter.ErrFile, rank, w.Rows, w.Cols)
	}

	// PEFT's OLoRA takes Q and R as they are, PiSSA the singular values' root on both sides, over the scale.
	if init == "olora" {
		q, r, err := linalg.Solver{}.QR(w)
		if err != nil {
			return b, a, err
		}
		return q.Sub(0, q.Rows, 0, rank), r.Sub(0, rank, 0, r.Cols), nil
	}

	u, s, v, err := linalg.Solver{}.SVD(w)
	if err != nil {
		return b, a, err
	}

	b, a = u.Sub(0, u.Rows, 0, rank).Clone(), v.Sub(0, v.Rows, 0, rank).T()
	for k := range rank {
		root := math.Sqrt(s[k] / scale)
		for i := range b.Rows {
			b.Set(i, k, b.At(i, k)*root)
		}
		for j := range a.Cols {
			a.Set(k, j, a.At(k, j)*root)
		}
	}

	return b, a, nil
}

// alphaFactor is what keeps the scale when the rank doubles.
func alphaFactor(c *adapter.Config) float64 {
	if c.RSLoRA {
		return math.Sqrt2
	}
	return 2
}

// double makes a configuration that of factors with twice the ranks and the same scales.
func double(c *adapter.Config) {
	alpha := alphaFactor(c)
	c.Rank *= 2
	c.Alpha *= alpha
	for i := range c.RankPattern {
		c.RankPattern[i].Value *= 2
	}
	for i := range c.AlphaPattern {
		c.AlphaPattern[i].Value *= alpha
	}

	c.Init = "true"
}
