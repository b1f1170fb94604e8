package ggufmodel

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/lm/arch"
)

// Target is a tensor of a file to be written, and what it is made of.
type Target struct {
	Name  string
	Shape []int64   // outermost first
	Role  arch.Role // "" for factors of rotations
	Block int       // -1 outside of blocks

	// Matrix: it has the type that the file is asked to have. All others are F32: vectors, norms, routers, tables of
	// positions, factors of rotations.
	Matrix bool
	// Sources are the tensors of the checkpoint that it is made of, in their order, by the names that [arch.Resolve]
	// gives them: each expert has its own. None for factors of rotations.
	Sources []string
	// Band is how many rows are best asked for at once, where rows are columns of the checkpoint: each call reads as
	// much as all of them.
	Band int

	height, width int // of each matrix, of which the tensor is a stack
	matrices      [][]slot
	flipped       bool // rows here are columns in the model
	shift         float32
	values        []float32 // factors of rotations
}

// slot is some rows of a matrix, or columns of a flipped one, from one tensor of the checkpoint. Of a vector, it is
// some elements.
type slot struct {
	source        string
	first, rows   int
	at            func(row int) int // row of the checkpoint for each of the slot
	vector        bool
	transposed    bool // the checkpoint has the matrix [in, out]
	height, width int  // of the checkpoint's tensor, as it is stored
}

// Rows is how many rows there are, counted through all of a stack; a vector is one.
func (t *Target) Rows() int { return t.height * len(t.matrices) }

// Cols is the length of a row.
func (t *Target) Cols() int { return t.width }

// Info describes the tensor in a file, where it has a type.
func (t *Target) Info(as gguf.Type) gguf.Info {
	return gguf.Info{Name: t.Name, Type: as, Shape: slices.Clone(t.Shape)}
}

// plan makes the targets of a model.
type plan struct {
	file   string
	config *arch.Config
	params []arch.Param // what is left of those that arch.Resolve lists
	list   []*Target
	byName map[string]*Target
}

// build goes through the parameters, in the order of [arch.Resolve].
func (p *plan) build() error {
	c := p.config
	for l := -1; l < c.Layers; l++ {
		for i := range c.Arch.Tensors {
			t := &c.Arch.Tensors[i]
			if t.PerBlock() != (l >= 0) || !c.Holds(t.When, l) {
				continue
			}

			source, ok := c.GGUFWritten(t, l)
			if !ok {
				return &Error{
					File: p.file, Tensor: arch.Expand(t.Name, l, 0), Err: ErrUnwritable,
					Detail: fmt.Sprintf("files of a %s have no place for it", c.ModelType),
				}
			}

			copies := c.Copies(t)
			for e := range copies {
				p.put(t, &p.params[e], source, l, e)
			}
			p.params = p.params[copies:]
		}
	}

	return nil
}

// put enters a parameter into the targets that hold it.
func (p *plan) put(t *arch.Tensor, param *arch.Param, source arch.GGUFSource, l, e int) {
	rows, cols := int(param.Shape[0]), 1
	vector := len(param.Shape) == 1
	if !vector {
		cols = int(param.Shape[1])
	}
	height, width := rows, cols
	if t.Transposed {
		rows, cols = cols, rows
	}

	heads := 1
	if t.Role == arch.KVB && len(source.Parts) > 1 {
		heads = p.config.Heads
	}
	undo := p.undo(t, rows)
	sizes := p.parts(t, source, rows/heads)
	step := 1
	if source.Alternate {
		step = len(source.Parts)
	}

	from := 0
	for i, part := range source.Parts {
		target := p.target(t, part, l, e, extent{heads, sizes[i], cols, vector})
		target.Sources = append(target.Sources, param.Name)

		first := from
		if source.Alternate {
			first = i
		}
		from += sizes[i]
		for h := range heads {
			base := h*(rows/heads) + first
			s := slot{
				source: param.Name, rows: sizes[i], vector: vector, transposed: t.Transposed,
				height: height, width: width,
				at: func(row int) int { return undo(base + row*step) },
			}
			target.add(s, h+e, p.config.Copies(t) > 1 || heads > 1)
		}
	}
}

// add enters a slot into a matrix of a stack, behind what is there.
func (t *Target) add(s slot, matrix int, stacked bool) {
	if !stacked {
		matrix = 0
	}
	for len(t.matrices) <= matrix {
		t.matrices = append(t.matrices, nil)
	}

	for _, other := range t.matrices[matrix] {
		s.first += other.rows
	}
	t.matrices[matrix] = append(t.matrices[matrix], s)

	if t.flipped != s.transposed && !s.vector {
		t.Band = t.height
	}
}

// extent is what a parameter has in a part: of each of so many heads, rows and columns, or elements of a vector.
type extent struct {
	heads, rows, cols int
	vector            bool
}

// target finds the tensor for a part, or makes it.
func (p *plan) target(t *arch.Tensor, part arch.GGUFPart, l, e int, x extent) *Target {
	name := arch.Expand(part.Name, l, e)
	if have := p.byName[name]; have != nil {
		return have
	}

	made := &Target{Name: name, Role: t.Role, Block: l, Band: 1, flipped: part.Transposed}
	made.height, made.width = x.rows, x.cols
	if part.Transposed {
		made.height, made.width = x.cols, x.rows
	}
	made.Shape = []int64{int64(made.height), int64(made.width)}
	if x.vector {
		made.height, made.width = 1, x.rows
		made.Shape = []int64{int64(x.rows)}
	}

	switch copies := p.config.Copies(t); {
	case x.heads > 1:
		made.Shape = slices.Insert(made.Shape, 0, int64(x.heads))
	case (t.PerExpert() || t.PerHead()) && arch.Expand(part.Name, l, copies) == arch.Expand(part.Name, l, 0):
		made.Shape = slices.Insert(made.Shape, 0, int64(copies))
	}

	if p.config.Arch.Norm == arch.RMSPlusOne && isNorm(t) {
		made.shift = 1
	}
	made.Matrix = isMatrix(&gguf.Info{Name: name, Shape: made.Shape})

	p.byName[name] = made
	p.list = append(p.list, made)
	return made
}

// parts is how many rows of a matrix each part of a source has.
func (p *plan) parts(t *arch.Tensor, source arch.GGUFSource, rows int) []int {
	c := p.config
	switch n := len(source.Parts); {
	case t.Role == arch.KVB && n == 2:
		return []int{c.NopeDim, c.VDim}
	case t.Role == arch.QKV && n == 3:
		return []int{int(c.Dim("q")), int(c.Dim("kv")), int(c.Dim("kv"))}
	default:
		return slices.Repeat([]int{rows / n}, n)
	}
}

// undo gives the row of the checkpoint for each row of a file.
func (p *plan) undo(t *arch.Tensor, rows int) func(row int) int {
	b := builder{config: p.config}
	order := b.order(t)
	if order == nil {
		return func(row int) int { return row }
	}

	back := make([]int32, rows)
	for i := range back {
		back[order(i)] = int32(i)
	}
	return func(row int) int { return int(back[row]) }
}

// extra enters a list of factors of rotations, in front of what the checkpoint has.
func (p *plan) extra(name string, values []float64) {
	t := &Target{
		Name: name, Shape: []int64{int64(len(values))}, Block: -1, Band: 1, height: 1, width: len(values),
		matrices: make([][]slot, 1), values: make([]float32, len(values)),
	}
	for i, v := range values {
		t.values[i] = float32(v)
	}
	p.list = append(p.list, t)
}

// sort puts the targets into the order in which the checkpoint has the first of their tensors, as llama.cpp's converter
// does. What is made of no tensor comes first.
func (p *plan) sort(stored func(name string) string, names []string) {
	place := make(map[string]int, len(names))
	for i, name := range names {
		place[name] = i + 1
	}
	slices.SortStableFunc(p.list, func(a, b *Target) int {
		return cmp.Compare(a.place(stored, place), b.place(stored, place))
	})
}

func (t *Target) place(stored func(name string) string, place map[string]int) int {
	first := 0
	for _, name := range t.Sources {
		if at := place[stored(name)]; first == 0 || at < first {
			first = at
		}
	}
	return first
}

// RowReader reads rows of a tensor of the checkpoint, by its name in [Target.Sources], as float32: n rows of its last
// dimension, from the first one on, into dst. A vector is one row. Some read a checkpoint, others have matrices that
// were changed in memory.
type RowReader func(name string, dst []float32, first, n int) error

// ReadRows writes rows [first, first+n) of the tensor to dst, as read gives those of the checkpoint. The errors are
// those of read. It may be called from several goroutines, if read may be.
func (t *Target) ReadRows(dst []float32, first, n int, read RowReader) error {
	if first < 0 || n < 0 || first+n > t.Rows() || len(dst) != n*t.width {
		panic("ggufmodel: rows that a tensor does not have")
	}
	if t.values != nil {
		copy(dst, t.values)
		return nil
	}

	for n > 0 {
		matrix, row := first/t.height, first%t.height
		run := min(n, t.height-row)
		part := dst[:run*t.width]
		for i := range t.matrices[matrix] {
			if err := t.fill(part, &t.matrices[matrix][i], row, run, read); err != nil {
				return err
			}
		}
		if t.shift != 0 {
			for i := range part {
				part[i] += t.shift
			}
		}

		dst = dst[len(part):]
		first += run
		n -= run
	}

	return nil
}

// fill writes what a slot has of rows of a matrix.
func (t *Target) fill(dst []float32, s *slot, row, n int, read RowReader) error {
	switch {
	case s.vector:
		return s.elements(dst[s.first:], read)
	case t.flipped:
		return s.columns(dst, t.width, row, n, read)
	}

	lo, hi := max(row, s.first), min(row+n, s.first+s.rows)
	if lo >= hi {
		return nil
	}

	return s.lines(dst[(lo-row)*t.width:(hi-row)*t.width], t.width, lo-s.first, hi-lo, read)
}

// elements writes a slot of a vector.
func (s *slot) elements(dst []float32, read RowReader) error {
	whole := make([]float32, s.height)
	if err := read(s.source, whole, 0, 1); err != nil {
		return err
	}
	for i := range s.rows {
		dst[i] = whole[s.at(i)]
	}
	return nil
}

// lines writes rows of a slot.
func (s *slot) lines(dst []float32, width, row, n int, read RowReader) error {
	if s.transposed {
		return s.gather(sequence(width), func(i int) int { return s.at(row + i) }, dst, width, n, read)
	}

	for n > 0 {
		from := s.at(row)
		run := 1
		for run < n && s.at(row+run) == from+run {
			run++
		}
		if err := read(s.source, dst[:run*width], from, run); err != nil {
			return err
		}
		dst = dst[run*width:]
		row += run
		n -= run
	}

	return nil
}

// columns writes columns of the model's matrix as rows.
func (s *slot) columns(dst []float32, width, col, n int, read RowReader) error {
	if !s.transposed {
		lines := line{s.rows, s.at}
		return s.gather(lines, func(i int) int { return col + i }, dst[s.first:], width, n, read)
	}

	whole := make([]float32, s.width)
	for i := range n {
		if err := read(s.source, whole, col+i, 1); err != nil {
			return err
		}
		for j := range s.rows {
			dst[i*width+s.first+j] = whole[s.at(j)]
		}
	}

	return nil
}

// line is rows of the checkpoint, by their places in a row of the file.
type line struct {
	n  int
	at func(i int) int
}

// sequence is the first rows.
func sequence(n int) line { return line{n, func(i int) int { return i }} }

// gather writes n rows that are columns of the checkpoint, of which pick gives the numbers. Its rows are read some at
// a time.
func (s *slot) gather(lines line, pick func(i int) int, dst []float32, width, n int, read RowReader) error {
	const most = 1 << 16 // elements
	picks := make([]int, n)
	for i := range picks {
		picks[i] = pick(i)
	}

	step := max(1, most/s.width)
	whole := make([]float32, step*s.width)
	for j := 0; j < lines.n; {
		from := lines.at(j)
		run := 1
		for run < step && j+run < lines.n && lines.at(j+run) == from+run {
			run++
		}
		if err := read(s.source, whole[:run*s.width], from, run); err != nil {
			return err
		}

		for r := range run {
			values := whole[r*s.width:][:s.width]
			for i, at := range picks {
				dst[i*width+j+r] = values[at]
			}
		}
		j += run
	}

	return nil
}
