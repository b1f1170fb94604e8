package kernels_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
)

func TestNewQuantised(t *testing.T) {
	for _, f := range kernels.QuantFormats() {
		elements, bytes := f.Block()
		cols := 4 * elements
		data := kernels.NewHost(kernels.U8, 3*4*bytes)
		var scales, zeros *kernels.Buffer
		want := int64(data.Len)
		if f.Grouped() {
			scales, zeros = kernels.NewHost(kernels.F32, 3), kernels.NewHost(kernels.U8, 3)
			want += 15
		}

		w, err := kernels.NewQuantised(f, 3, cols, 0, data, scales, zeros)
		if err != nil {
			t.Fatal(err)
		}
		if w.IsZero() || !w.Consistent() || w.Rows() != 3 || w.Cols != cols || w.SizeBytes() != want {
			t.Errorf("wrong weight %+v", w)
		}

		r := w.RowRange(1, 2)
		if !r.Consistent() || r.Rows() != 1 || r.Data.Off != 4*bytes || f.Grouped() && r.Zeros.Off != 1 {
			t.Errorf("wrong rows %+v", r)
		}
		if f.String() == "invalid" {
			t.Errorf("format %d has no name", f)
		}
	}

	absent := kernels.Quantised{}
	if !absent.IsZero() || absent.Consistent() || absent.SizeBytes() != 0 {
		t.Error("the zero weight is not absent")
	}
	if kernels.QuantFormat(0).String() != "invalid" || kernels.QuantFormat(99).String() != "invalid" {
		t.Error("an unknown format has a name")
	}
}

func TestNewQuantisedOfNothing(t *testing.T) {
	none := kernels.NewHost(kernels.U8, 0)
	for _, s := range [][2]int{{0, 0}, {0, 64}, {3, 0}} {
		w, err := kernels.NewQuantised(kernels.Q8_0, s[0], s[1], 0, none, nil, nil)
		if err != nil || !w.Consistent() {
			t.Errorf("%v: %v", s, err)
		}
		w, err = kernels.NewQuantised(kernels.Int4, s[0], s[1], 0, none, kernels.NewHost(kernels.F32, 0), nil)
		if err != nil || !w.Consistent() {
			t.Errorf("%v in groups: %v", s, err)
		}
	}
}

func TestNewQuantisedRefuses(t *testing.T) {
	type parts struct {
		format              kernels.QuantFormat
		rows, cols, group   int
		data, scales, zeros *kernels.Buffer
	}
	good := func() parts {
		return parts{
			kernels.Int8, 1, 2, 0, kernels.NewHost(kernels.U8, 2), kernels.NewHost(kernels.F32, 1),
			kernels.NewHost(kernels.U8, 1),
		}
	}
	half := kernels.NewHost(kernels.F16, 1)
	block := func() parts { return parts{kernels.Q8_0, 1, 32, 0, kernels.NewHost(kernels.U8, 34), nil, nil} }

	for name, c := range map[string]struct {
		from   func() parts
		damage func(p *parts)
		want   error
	}{
		"an unknown format": {block, func(p *parts) { p.format = 0 }, kernels.ErrQuantFormat},
		"a later format":    {block, func(p *parts) { p.format = 200 }, kernels.ErrQuantFormat},
		"no codes":          {block, func(p *parts) { p.data = nil }, kernels.ErrQuantType},
		"codes as F32":      {block, func(p *parts) { p.data = half }, kernels.ErrQuantType},
		"half a block":      {block, func(p *parts) { p.cols = 16 }, kernels.ErrQuantSize},
		"too few bytes":     {block, func(p *parts) { p.rows = 2 }, kernels.ErrQuantSize},
		"negative rows":     {block, func(p *parts) { p.rows = -1 }, kernels.ErrQuantSize},
		"scales twice":      {block, func(p *parts) { p.scales = p.data }, kernels.ErrQuantSize},
		"codes elsewhere": {block, func(p *parts) {
			p.data = kernels.NewDevice(kernels.U8, 34, 4096, nil)
		}, kernels.ErrQuantType},
		"negative groups": {good, func(p *parts) { p.group = -1 }, kernels.ErrQuantSize},
		"many columns":    {good, func(p *parts) { p.rows, p.cols = 0, 1<<60 }, kernels.ErrQuantSize},
		"many empty rows": {good, func(p *parts) { p.rows, p.cols = 1<<40, 0 }, kernels.ErrQuantSize},
		"no scales":       {good, func(p *parts) { p.scales = nil }, kernels.ErrQuantType},
		"scales as F16":   {good, func(p *parts) { p.scales = half }, kernels.ErrQuantType},
		"too few scales":  {good, func(p *parts) { p.group = 1 }, kernels.ErrQuantSize},
		"zeros of a type": {good, func(p *parts) { p.zeros = kernels.NewHost(kernels.I32, 1) }, kernels.ErrQuantType},
		"too many zeros":  {good, func(p *parts) { p.zeros = kernels.NewHost(kernels.U8, 2) }, kernels.ErrQuantSize},
	} {
		p := c.from()
		if _, err := kernels.NewQuantised(p.format, p.rows, p.cols, p.group, p.data, p.scales, p.zeros); err != nil {
			t.Fatal(err)
		}

		c.damage(&p)
		_, err := kernels.NewQuantised(p.format, p.rows, p.cols, p.group, p.data, p.scales, p.zeros)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestConsistentTakesWhatIsMade: a weight that was made is consistent, and one whose parts are changed is not.
func TestConsistentTakesWhatIsMade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom(kernels.QuantFormats()).Draw(t, "format")
		rows, group := rapid.IntRange(1, 5).Draw(t, "rows"), 0
		cols := rapid.IntRange(1, 40).Draw(t, "cols")
		var scales *kernels.Buffer
		if f.Grouped() {
			group = rapid.IntRange(1, 50).Draw(t, "group")
			scales = kernels.NewHost(kernels.F32, rows*((cols+group-1)/group))
		} else {
			elements, _ := f.Block()
			cols *= elements
		}

		data := kernels.NewHost(kernels.U8, rows*f.RowBytes(cols))
		w, err := kernels.NewQuantised(f, rows, cols, group, data, scales, nil)
		if err != nil || !w.Consistent() {
			t.Fatalf("%v %+v", err, w)
		}

		other := w
		other.Cols += 256
		if other.Consistent() {
			t.Error("columns that are not there")
		}
		other = w
		other.Group += 1000
		if !f.Grouped() && other.Consistent() {
			t.Error("groups beside blocks")
		}
		other = w
		other.Scales = kernels.Mat{}
		if f.Grouped() && other.Consistent() {
			t.Error("no scales")
		}
	})
}
