package edit

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Delta is the change of one matrix, W ← W + ΔW, kept as factors, ΔW = left·rightᵀ, or dense.
type Delta struct {
	Linear string `json:"linear"`
	Norms  Norms  `json:"norms"`

	left  linalg.Matrix // [out, n]
	right linalg.Matrix // [in, n]
	dense linalg.Matrix // [out, in]; empty for factors
}

// Norms measure a delta against the matrix it changes.
type Norms struct {
	Frobenius float64 `json:"frobenius"`
	Relative  float64 `json:"relative"` // ‖ΔW‖/‖W‖, W as stored before any edit
	Spectral  float64 `json:"spectral"`
	Rank      float64 `json:"effective_rank"` // exponential of the entropy of the singular values
}

// Matrix is the delta written out, [out, in].
func (d *Delta) Matrix() Matrix { return Matrix(d.written()) }

func (d *Delta) written() linalg.Matrix {
	if d.dense.Rows > 0 {
		return d.dense
	}
	m := linalg.New(d.left.Rows, d.right.Rows)
	linalg.Solver{}.Mul(m, d.left, d.right, linalg.Product{TransB: true})
	return m
}

// masked is a delta that leaves the zeros of the matrix, as it was before all edits, alone, where that is asked
// for: in float32, which is what a journal keeps of a dense delta.
func (e *Editing) masked(d Delta) (Delta, error) {
	if !e.zeros {
		return d, nil
	}

	w, err := e.weight(d.Linear)
	if err != nil {
		return d, err
	}

	base := &weight{linear: w.linear, dtype: w.dtype, base: w.base}
	if err := base.reset(); err != nil {
		return d, err
	}

	// A low-rank delta has no zeros of its own: it becomes dense, at the price of a larger journal.
	m := d.written().Clone()
	for i, v := range base.sum.Data {
		m.Data[i] = float64(float32(m.Data[i]))
		if v == 0 {
			m.Data[i] = 0
		}
	}

	return Delta{Linear: d.Linear, dense: m}, nil
}

// weight is a matrix that is edited: what is stored, and the exact sum of that and all deltas, of which the
// model has the rounded values.
type weight struct {
	linear lm.Linear
	dtype  kernels.DType
	base   []byte        // as stored
	sum    linalg.Matrix // [out, in]
	held   linalg.Matrix // the sum before a method began to try things; empty: none does
	norm   float64       // of the base
}

// hold keeps the sum for back.
func (w *weight) hold() {
	if w.held.Rows == 0 {
		w.held = w.sum.Clone()
	}
}

// back makes the sum what it was at hold.
func (w *weight) back() {
	if w.held.Rows > 0 {
		w.sum, w.held = w.held, linalg.Matrix{}
	}
}

// open takes a matrix under care.
func open(m *lm.Model, l lm.Linear) (*weight, error) {
	p, err := m.MutableParam(l.Name)
	if err != nil {
		return nil, err
	}

	w := &weight{linear: l, dtype: p.DType()}
	w.base = make([]byte, p.Len()*w.dtype.Size())
	if err := m.Device().Download(w.base, p.Buf, p.Off); err != nil {
		return nil, err
	}
	if err := w.reset(); err != nil {
		return nil, err
	}

	w.norm = w.sum.Norm()
	return w, nil
}

// reset sets the sum to what is stored.
func (w *weight) reset() error {
	n := w.linear.Out * w.linear.In
	buf, err := kernels.Wrap(w.dtype, w.base)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", w.linear.Name, err)
	}

	if buf.Len != n {
		return fmt.Errorf("%w: tensor %q has %d elements, not %d", ErrJournal, w.linear.Name, buf.Len, n)
	}

	if w.linear.Transposed {
		w.sum = linalg.FromMat(kernels.MatOf(buf, w.linear.In, w.linear.Out)).T()
	} else {
		w.sum = linalg.FromMat(kernels.MatOf(buf, w.linear.Out, w.linear.In))
	}

	return nil
}

// add adds a delta to the sum, in an order that does not depend on the machine.
func (w *weight) add(d *Delta) error {
	in, out := w.linear.In, w.linear.Out
	dense := d.dense.Rows > 0
	if dense && (d.dense.Rows != out || d.dense.Cols != in) ||
		!dense && (d.left.Rows != out || d.right.Rows != in || d.left.Cols != d.right.Cols) {
		return fmt.Errorf("%w: the delta of tensor %q has another shape", ErrJournal, w.linear.Name)
	}

	mmapsafe.Each(0, out, func(i int) {
		row := w.sum.Row(i)
		if dense {
			for j, v := range d.dense.Row(i) {
				row[j] += v
			}
			return
		}

		left := d.left.Row(i)
		for j := range row {
			s := 0.0
			for k, v := range d.right.Row(j) {
				s += float64(left[k] * v) // the conversion keeps compilers from fusing the two roundings into one
			}
			row[j] += s
		}
	})

	return nil
}

// bytes is the sum rounded to the stored type, in the stored layout: to float32 first, then to the nearest even
// of 16 bits.
func (w *weight) bytes() []byte {
	sum := w.sum
	if w.linear.Transposed {
		sum = sum.T()
	}

	out := make([]byte, 0, len(w.base))
	for i := range sum.Rows {
		for _, v := range sum.Row(i) {
			f := float32(v)
			switch w.dtype {
			case kernels.BF16:
				out = binary.LittleEndian.AppendUint16(out, kernels.ToBF16(f))
			case kernels.F16:
				out = binary.LittleEndian.AppendUint16(out, kernels.ToF16(f))
			default:
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(f))
			}
		}
	}

	return out
}

// fits refuses sums that the stored type cannot hold.
func (w *weight) fits() error {
	limit := math.MaxFloat32
	if w.dtype == kernels.F16 {
		limit = 65504
	}

	for i := range w.sum.Rows {
		for _, v := range w.sum.Row(i) {
			if !(math.Abs(v) <= limit) {
				return fmt.Errorf("%w: tensor %q would hold %g", ErrDiverged, w.linear.Name, v)
			}
		}
	}

	return nil
}

// store gives the model the present values and returns their hash.
func (w *weight) store(m *lm.Model) (string, error) {
	if err := w.fits(); err != nil {
		return "", err
	}

	p, err := m.MutableParam(w.linear.Name)
	if err != nil {
		return "", err
	}

	data := w.bytes()
	if err := m.Device().Upload(p.Buf, p.Off, data); err != nil {
		return "", err
	}

	p.Buf.Changed()
	return stage.Sum(data), nil
}

// measure fills in a delta's norms.
func (w *weight) measure(d *Delta) error {
	values, err := d.singular()
	if err != nil {
		return fmt.Errorf("tensor %q: %w", w.linear.Name, err)
	}

	s := 0.0
	for _, v := range values {
		s += v * v
	}

	d.Norms = Norms{Frobenius: math.Sqrt(s), Relative: math.Sqrt(s) / w.norm, Rank: linalg.EffectiveRank(values)}
	if len(values) > 0 {
		d.Norms.Spectral = values[0]
	}

	return nil
}

// singular are the singular values of a delta; those of factors come from their triangular parts.
func (d *Delta) singular() ([]float64, error) {
	var s linalg.Solver
	if d.dense.Rows > 0 {
		return s.SingularValues(d.dense)
	}

	// Left·Rightᵀ = Q₁·(A·Bᵀ)·Q₂ᵀ has the singular values of A·Bᵀ, which is as small as the rank.
	_, a, err := s.QR(d.left)
	if err != nil {
		return nil, err
	}

	_, b, err := s.QR(d.right)
	if err != nil {
		return nil, err
	}

	core := linalg.New(a.Rows, b.Rows)
	s.Mul(core, a, b, linalg.Product{TransB: true})
	return s.SingularValues(core)
}
