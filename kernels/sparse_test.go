package kernels_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
)

// sparseParts are the parts of a weight [2, 10] with 5 stored elements.
type sparseParts struct {
	rows, cols            int
	mask, values, offsets *kernels.Buffer
}

func newParts() sparseParts {
	p := sparseParts{
		rows: 2, cols: 10,
		mask: kernels.NewHost(kernels.U8, 4), values: kernels.NewHost(kernels.BF16, 5),
		offsets: kernels.NewHost(kernels.I64, 2),
	}
	copy(p.mask.U8(), []uint8{0b101, 0b10, 0b10000000, 0b1})
	p.offsets.I64()[1] = 3
	return p
}

func (p sparseParts) make() (kernels.Sparse, error) {
	return kernels.NewSparse(p.rows, p.cols, p.mask, p.values, p.offsets)
}

func TestNewSparse(t *testing.T) {
	for _, given := range []bool{true, false} {
		p := newParts()
		if !given {
			p.offsets = nil
		}

		w, err := p.make()
		if err != nil {
			t.Fatal(err)
		}

		if w.IsZero() || !w.Consistent() || w.Rows() != 2 || w.Cols != 10 || w.DType() != kernels.BF16 {
			t.Errorf("wrong weight %+v", w)
		}
		if o := w.Offsets.Buf.I64(); o[0] != 0 || o[1] != 3 {
			t.Errorf("row offsets are %v", o)
		}
		if n := w.SizeBytes(); n != 4+2*5+8*2 {
			t.Errorf("%d bytes", n)
		}
		if r := w.RowRange(1, 2); !r.Consistent() || r.Rows() != 1 || r.Offsets.Off != 1 || r.Mask.Off != 2 {
			t.Errorf("wrong rows %+v", r)
		}
	}

	if !(kernels.Sparse{}).IsZero() || (kernels.Sparse{}).Consistent() || (kernels.Sparse{}).SizeBytes() != 0 {
		t.Error("the zero weight is not absent")
	}
}

func TestNewSparseOfNothing(t *testing.T) {
	for _, s := range [][2]int{{0, 0}, {0, 9}, {3, 0}} {
		w, err := kernels.NewSparse(s[0], s[1], kernels.NewHost(kernels.U8, 0), kernels.NewHost(kernels.F32, 0), nil)
		if err != nil || !w.Consistent() {
			t.Errorf("%v: %v", s, err)
		}
	}
}

func TestNewSparseRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(p *sparseParts)
		want   error
	}{
		"no mask":   {func(p *sparseParts) { p.mask = nil }, kernels.ErrSparseType},
		"no values": {func(p *sparseParts) { p.values = nil }, kernels.ErrSparseType},
		"mask of another type": {func(p *sparseParts) {
			p.mask = kernels.NewHost(kernels.I32,
				1)
		}, kernels.ErrSparseType},
		"values of another type": {func(p *sparseParts) {
			p.values = kernels.NewHost(kernels.F64,
				5)
		}, kernels.ErrSparseType},
		"offsets of another type": {func(p *sparseParts) {
			p.offsets = kernels.NewHost(kernels.I32,
				2)
		}, kernels.ErrSparseType},
		"values elsewhere": {func(p *sparseParts) {
			p.values = kernels.NewDevice(kernels.BF16, 5, 4096,
				nil)
		}, kernels.ErrSparseType},
		"negative rows":    {func(p *sparseParts) { p.rows = -1 }, kernels.ErrSparseSize},
		"negative columns": {func(p *sparseParts) { p.cols = -1 }, kernels.ErrSparseSize},
		"most rows":        {func(p *sparseParts) { p.rows = math.MaxInt }, kernels.ErrSparseSize},
		"most columns":     {func(p *sparseParts) { p.cols = math.MaxInt }, kernels.ErrSparseSize},
		"no rows, a mask":  {func(p *sparseParts) { p.rows = 0 }, kernels.ErrSparseSize},
		"too many columns": {func(p *sparseParts) { p.cols = 17 }, kernels.ErrSparseSize},
		"too few columns":  {func(p *sparseParts) { p.cols = 8 }, kernels.ErrSparseSize},
		"mask too long": {func(p *sparseParts) {
			p.mask = kernels.NewHost(kernels.U8,
				5)
		}, kernels.ErrSparseSize},
		"offsets too few": {func(p *sparseParts) {
			p.offsets = kernels.NewHost(kernels.I64,
				1)
		}, kernels.ErrSparseSize},
		"rows of nothing": {func(p *sparseParts) {
			*p = sparseParts{rows: 1 << 50, mask: kernels.NewHost(kernels.U8, 0), values: p.values}
		}, kernels.ErrSparseSize},
		"a bit beyond the columns": {func(p *sparseParts) { p.mask.U8()[1] |= 4 }, kernels.ErrSparsePadding},
		"a bit too many":           {func(p *sparseParts) { p.mask.U8()[3] |= 2 }, kernels.ErrSparseCount},
		"a bit too few":            {func(p *sparseParts) { p.mask.U8()[3] = 0 }, kernels.ErrSparseCount},
		"first offset":             {func(p *sparseParts) { p.offsets.I64()[0] = 1 }, kernels.ErrSparseOffsets},
		"negative offset":          {func(p *sparseParts) { p.offsets.I64()[1] = -3 }, kernels.ErrSparseOffsets},
		"offset beyond the end": {
			func(p *sparseParts) { p.offsets.I64()[1] = math.MaxInt64 },
			kernels.ErrSparseOffsets,
		},
		"offsets of inclusive sum": {func(p *sparseParts) {
			copy(p.offsets.I64(),
				[]int64{3, 5})
		}, kernels.ErrSparseOffsets},
	} {
		p := newParts()
		c.damage(&p)
		if _, err := p.make(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestNewSparseAcceptsOnlyWhatFits: whatever the parts are, an accepted weight counts as many bits before a row
// as its offset says, and in all as many as there are elements.
func TestNewSparseAcceptsOnlyWhatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := sparseParts{rows: rapid.IntRange(0, 4).Draw(t, "rows"), cols: rapid.IntRange(0, 20).Draw(t, "cols")}
		mask := rapid.SliceOfN(rapid.Uint8(), 0, 12).Draw(t, "mask")
		p.mask = kernels.NewHost(kernels.U8, len(mask))
		copy(p.mask.U8(), mask)
		p.values = kernels.NewHost(kernels.F16, rapid.IntRange(0, 40).Draw(t, "values"))
		w, err := p.make()
		if err != nil {
			return
		}

		set := 0
		for i := range p.rows {
			if got := w.Offsets.Buf.I64()[i]; got != int64(set) {
				t.Fatalf("offset of row %d is %d after %d bits", i, got, set)
			}

			for j := range 8 * w.Mask.Cols {
				if w.Mask.RowU8(i)[j/8]>>(j%8)&1 == 1 {
					set++
					if j >= p.cols {
						t.Fatalf("bit %d of %d columns was accepted", j, p.cols)
					}
				}
			}
		}

		if set != p.values.Len {
			t.Fatalf("%d bits for %d elements", set, p.values.Len)
		}
	})
}
