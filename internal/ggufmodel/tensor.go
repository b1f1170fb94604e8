package ggufmodel

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// tensor is a tensor of the checkpoint, made of pieces of tensors of the file. It is a stack of matrices, of which each
// has the rows of all pieces, one piece after the other or by turns.
type tensor struct {
	name   string
	shape  []int64
	pieces []piece
	stack  int
	// rows and cols are those of a matrix as the file has it; the checkpoint's is transposed if that is so.
	rows, cols int
	alternate  bool
	transposed bool
	order      ordering
	shift      float32 // what is added to every value
}

// ordering is how the rows of a checkpoint's matrix lie in the file: it gives the row there.
type ordering func(row int) int

// pairs is the order of channels that lie beside the one that they are rotated with: in the file channel 2i of a head
// is the checkpoint's i, and 2i+1 the i-th of its second half.
func pairs(head int) ordering {
	half := head / 2
	return func(row int) int {
		at := row % head
		return row - at + at%half*2 + at/half
	}
}

// grouped is the order of a fused projection of which the checkpoint has, for each key/value head, its queries, its key
// and its value, and the file all queries, all keys, all values.
func grouped(heads, kvHeads, head int) ordering {
	queries := heads / kvHeads * head
	group := queries + 2*head
	return func(row int) int {
		g := row / group
		at := row % group
		switch {
		case at < queries:
			return g*queries + at
		case at < queries+head:
			return heads*head + g*head + at - queries
		}
		return (heads+kvHeads)*head + g*head + at - queries - head
	}
}

// locate finds a row of a matrix, in the order of the file: its piece, the row of that, and how many more rows of the
// checkpoint follow there in order, of at most limit.
func (t *tensor) locate(row, limit int) (p *piece, at, n int) {
	n = 1
	from := row
	if t.order != nil {
		from = t.order(row)
		for n < limit && t.order(row+n) == from+n {
			n++
		}
	} else {
		n = limit
	}

	if t.alternate {
		return &t.pieces[from%len(t.pieces)], from / len(t.pieces), 1
	}

	for i := range t.pieces {
		p = &t.pieces[i]
		if from < p.rows {
			return p, from, min(n, p.rows-from)
		}
		from -= p.rows
	}

	panic("ggufmodel: row behind the last piece")
}

// dtype is the type of the values.
func (t *tensor) dtype() safetensors.DType {
	if t.shift != 0 {
		return safetensors.F32
	}

	types := map[gguf.Type]safetensors.DType{gguf.F16: safetensors.F16, gguf.BF16: safetensors.BF16}
	for _, p := range t.pieces {
		if d, ok := types[p.info.Type]; !ok || p.info.Type != t.pieces[0].info.Type {
			return safetensors.F32
		} else if len(t.pieces) == 1 {
			return d
		}
	}

	return types[t.pieces[0].info.Type]
}

// plain reports whether the file has the tensor's very bytes, and where: from which on and how many.
func (t *tensor) plain() (first, size int64, ok bool) {
	p := &t.pieces[0]
	switch {
	case len(t.pieces) > 1 || t.order != nil || t.transposed || p.transposed || t.shift != 0,
		p.info.Type != gguf.F32 && p.info.Type != gguf.F16 && p.info.Type != gguf.BF16,
		t.stack > 1 && p.rows != p.stride:
		return 0, 0, false
	}

	_, bytes := p.info.Type.Block()
	row := bytes * int64(p.cols)
	return (int64(p.start)*int64(p.stride) + int64(p.first)) * row, int64(t.stack) * int64(t.rows) * row, true
}

// matrix makes the decoder of a tensor. data gives the tensors of the file.
func (t *tensor) matrix(data func(name string) ([]byte, error)) *quantized.Matrix {
	last := int64(1)
	elements := int64(1)
	for _, d := range t.shape {
		last = d
		elements *= d
	}

	rows := int(elements / last)
	format := t.pieces[0].info.Type.String()
	stack := t.stack
	if len(t.shape) < 2 || rows%stack != 0 {
		stack = 1
	}

	m := &quantized.Matrix{
		Name: t.name, Format: format, Rows: rows, Cols: int(last), Stack: stack, Band: t.band(), DType: t.dtype(),
	}

	open := func() ([][]byte, error) {
		views := make([][]byte, len(t.pieces))
		for i, p := range t.pieces {
			var err error
			if views[i], err = data(p.info.Name); err != nil {
				return nil, err
			}
		}
		return views, nil
	}

	if t.narrow() {
		m.NarrowedBy(func(dst []byte, first, n int) error {
			views, err := open()
			if err != nil {
				return err
			}
			return t.decodeBF16(dst, views, first, n)
		})
	}

	if k := t.kernel(); k != 0 {
		m.CodedBy(k, func(first, n int) ([]byte, bool, error) {
			views, err := open()
			if err != nil {
				return nil, false, err
			}
			data, view := t.blocks(views, first, n)
			data, same, err := quantized.KernelBlocks(t.pieces[0].info.Type.String(), data)
			return data, view && same, err
		})
	}

	return m.DecodedBy(func(dst []float32, first, n int) error {
		views, err := open()
		if err != nil {
			return err
		}

		if t.cols == 1 && last != 1 { // vectors, each a matrix of one column
			first *= int(last)
			n *= int(last)
		}
		if err := t.decode(dst, views, first, n); err != nil {
			return err
		}

		if t.shift != 0 {
			for i := range dst {
				dst[i] += t.shift
			}
		}

		return nil
	})
}

// narrow reports whether every row of the tensor is a row of the file, of a type that has a decoder to bfloat16.
func (t *tensor) narrow() bool {
	return len(t.shape) > 1 && !t.transposed && t.shift == 0 &&
		!slices.ContainsFunc(t.pieces, func(p piece) bool {
			return p.transposed || !p.info.Type.Narrow() || int(p.info.Cols()) != t.cols
		})
}

// decodeBF16 writes rows as decode does, as bfloat16, of a tensor that is narrow.
func (t *tensor) decodeBF16(dst []byte, views [][]byte, first, n int) error {
	for n > 0 {
		row := first % t.rows
		p, at, run := t.locate(row, min(n, t.rows-row))
		size := int(p.info.RowSize())
		at += (first/t.rows+p.start)*p.stride + p.first
		if err := p.info.Type.DecodeBF16(dst[:2*run*t.cols], views[t.index(p)][at*size:][:run*size]); err != nil {
			return p.named(err)
		}

		dst = dst[2*run*t.cols:]
		first += run
		n -= run
	}
	return nil
}

// kernel is the format in which the rows of the tensor can be multiplied as they lie in the file, or in blocks of the
// same values; 0: they cannot.
func (t *tensor) kernel() kernels.QuantFormat {
	kind := t.pieces[0].info.Type
	if !t.narrow() || slices.ContainsFunc(t.pieces, func(p piece) bool { return p.info.Type != kind }) {
		return 0
	}
	return quantized.BlockKernel(kind.String())
}

// blocks gives the blocks of rows, of a tensor that has a kernel: a view of the file where they follow each other
// there, otherwise a copy.
func (t *tensor) blocks(views [][]byte, first, n int) (data []byte, view bool) {
	size := int(t.pieces[0].info.RowSize())
	for at := 0; at < n; {
		row := (first + at) % t.rows
		p, from, run := t.locate(row, min(n-at, t.rows-row))
		from += ((first+at)/t.rows+p.start)*p.stride + p.first
		part := views[t.index(p)][from*size:][: run*size : run*size]
		if run == n {
			return part, true
		}

		if data == nil {
			data = make([]byte, n*size)
		}
		copy(data[at*size:], part)
		at += run
	}
	return data, false
}

// band is how many rows are best decoded at once: those that share blocks.
func (t *tensor) band() int {
	band := 1
	for _, p := range t.pieces {
		elements, _ := p.info.Type.Block()
		if t.transposed != p.transposed {
			band = max(band, int(elements), 64)
		}
	}
	return band
}

// decode writes rows of the checkpoint's matrices, counted through all of the stack.
func (t *tensor) decode(dst []float32, views [][]byte, first, n int) error {
	height := t.rows
	width := t.cols
	if t.transposed {
		height = t.cols
		width = t.rows
	}

	for n > 0 {
		row := first % height
		run := min(n, height-row)
		var err error
		if t.transposed {
			err = t.decodeColumns(dst[:run*width], views, first/height, row, run)
		} else {
			err = t.decodeRows(dst[:run*width], views, first/height, row, run)
		}
		if err != nil {
			return err
		}

		dst = dst[run*width:]
		first += run
		n -= run
	}

	return nil
}

func (t *tensor) decodeRows(dst []float32, views [][]byte, matrix, row, n int) error {
	for n > 0 {
		p, at, run := t.locate(row, n)
		if err := p.read(dst[:run*t.cols], views[t.index(p)], matrix, at, run, false); err != nil {
			return err
		}
		dst = dst[run*t.cols:]
		row += run
		n -= run
	}
	return nil
}

// index is the place of a piece.
func (t *tensor) index(p *piece) int {
	return slices.IndexFunc(t.pieces, func(q piece) bool { return q.info.Name == p.info.Name && q.first == p.first })
}

// decodeColumns writes columns of the matrix that the file has, as rows.
func (t *tensor) decodeColumns(dst []float32, views [][]byte, matrix, col, n int) error {
	from := 0
	for i := range t.pieces {
		p := &t.pieces[i]
		part := make([]float32, n*p.rows)
		if err := p.read(part, views[i], matrix, col, n, true); err != nil {
			return err
		}

		for c := range n {
			line := dst[c*t.rows:][:t.rows]
			if !t.alternate {
				copy(line[from:], part[c*p.rows:][:p.rows])
				continue
			}
			for r, v := range part[c*p.rows:][:p.rows] {
				line[r*len(t.pieces)+i] = v
			}
		}

		from += p.rows
	}

	return nil
}

// builder makes the tensors of a checkpoint.
type builder struct {
	file    string
	config  *arch.Config
	tensors *tensors
	used    map[string]bool
	list    []*tensor
}

// build goes through the parameters of the configuration.
func (b *builder) build() error {
	c := b.config
	for l := -1; l < c.Layers; l++ {
		done := map[string]bool{}
		for i := range c.Arch.Tensors {
			t := &c.Arch.Tensors[i]
			if t.PerBlock() != (l >= 0) || !c.Holds(t.When, l) {
				continue
			}
			if err := b.param(t, l, done); err != nil {
				return err
			}
		}
	}
	return nil
}

// param makes the tensors of a template in a block. done are the fused tensors of the block that are made.
func (b *builder) param(t *arch.Tensor, l int, done map[string]bool) error {
	a := b.config.Arch
	if !a.GGUF.Fused || t.Fused == "" || !t.PerExpert() {
		return b.single(t, l)
	}
	if done[t.Fused] {
		return nil
	}

	done[t.Fused] = true
	var members []*arch.Tensor
	for i := range a.Tensors {
		if m := &a.Tensors[i]; m.Fused == t.Fused {
			members = append(members, m)
		}
	}

	return b.fused(members, l)
}

// single makes the tensor of a template, or one for each expert or head.
func (b *builder) single(t *arch.Tensor, l int) error {
	copies := b.config.Copies(t)
	source, ok := b.source(t, l, 0)
	if !ok {
		return b.missing(t, l)
	}

	for e := range copies {
		if source, ok = b.source(t, l, e); !ok {
			return b.missing(t, l)
		}

		made := &tensor{name: arch.Expand(t.Name, l, e), stack: 1}
		stack := copies
		if copies > 1 && arch.Expand(source.Parts[0].Name, l, e) != arch.Expand(source.Parts[0].Name, l, 0) {
			stack = 1 // a tensor of its own in the file too
		}

		if err := b.assemble(made, t, source, l, e, stack); err != nil {
			return err
		}
		if stack > 1 {
			for i := range made.pieces {
				made.pieces[i].start = e
			}
		}

		b.list = append(b.list, made)
	}

	return nil
}

// fused makes one tensor of what every expert has, of members that follow each other.
func (b *builder) fused(members []*arch.Tensor, l int) error {
	first := members[0]
	experts := b.config.Experts
	made := &tensor{name: arch.Expand(first.Fused, l, 0), stack: experts}
	for _, t := range members {
		source, ok := b.source(t, l, 0)
		if !ok {
			return b.missing(t, l)
		}
		if err := b.assemble(made, t, source, l, 0, experts); err != nil {
			return err
		}
	}

	shape, ok := b.config.FusedShape(made.name)
	if !ok {
		panic("ggufmodel: a fused tensor without a shape")
	}
	made.shape = shape
	made.rows = 0
	for _, p := range made.pieces {
		made.rows += p.rows
	}

	b.list = append(b.list, made)
	return nil
}

// source is the way in which the file has a tensor.
func (b *builder) source(t *arch.Tensor, l, number int) (arch.GGUFSource, bool) {
	for _, s := range b.config.Arch.Sources(t) {
		if b.tensors.has(s, l, number) {
			return s, true
		}
	}
	return arch.GGUFSource{}, false
}

// missing is the error for a tensor that the file does not have in any way.
func (b *builder) missing(t *arch.Tensor, l int) error {
	sources := b.config.Arch.Sources(t)
	if len(sources) == 0 {
		return &Error{
			File: b.file, Err: ErrMissing,
			Detail: fmt.Sprintf("the format has no name for %s", arch.Expand(t.Name, l, 0)),
		}
	}

	name := arch.Expand(sources[0].Parts[0].Name, l, 0)
	return &Error{
		File: b.file, Tensor: name, Err: ErrMissing,
		Detail: fmt.Sprintf("a %s with %d blocks has it", b.config.ModelType, b.config.Layers),
	}
}

// assemble adds the pieces of a source to a tensor, stack being the matrices in each tensor of the file, and checks
// their shapes.
func (b *builder) assemble(made *tensor, t *arch.Tensor, source arch.GGUFSource, l, number, stack int) error {
	made.alternate = source.Alternate
	made.transposed = t.Transposed
	dims := make([]int64, len(t.Shape))
	for i, d := range t.Shape {
		dims[i] = b.config.Dim(d)
	}
	made.shape = dims

	rows, cols := dims[0], int64(1)
	if len(dims) > 1 {
		cols = dims[1]
	}
	if t.Transposed {
		rows, cols = cols, rows
	}

	had := 0
	for _, p := range made.pieces {
		had += p.rows
	}
	for _, part := range source.Parts {
		info := b.tensors.info[arch.Expand(part.Name, l, number)]
		b.used[info.Name] = true
		if !info.Type.Decodable() {
			return &Error{
				File: b.file, Tensor: info.Name, Err: gguf.ErrNotDecodable,
				Detail: fmt.Sprintf("it is %v", info.Type),
			}
		}

		p, err := b.piece(t, info, part, stack, len(dims))
		if err != nil {
			return err
		}
		made.pieces = append(made.pieces, p)
	}

	return b.fit(made, t, had, int(rows), int(cols))
}

// piece describes a part of a tensor of the file, of so many matrices or vectors.
func (b *builder) piece(t *arch.Tensor, info gguf.Info, part arch.GGUFPart, stack, rank int) (piece, error) {
	shape := slices.Clone(info.Shape)
	if rank == 1 {
		shape = append(shape, 1)
	}
	for len(shape) < 3 {
		shape = slices.Insert(shape, 0, 1)
	}
	if part.Transposed && len(info.Shape) == 3 || t.Role == arch.KVB {
		stack = int(shape[0]) // the heads, where they lie apart
	}

	p := piece{
		info: info, stride: int(shape[len(shape)-2]), cols: int(shape[len(shape)-1]), stack: int(shape[0]),
		transposed: part.Transposed,
	}
	if len(shape) != 3 || p.stack != stack {
		return p, b.misfit(t, info, "it is %v, expected %d matrices or vectors", info.Shape, stack)
	}
	if elements, _ := info.Type.Block(); rank == 1 && elements > 1 {
		return p, b.misfit(t, info, "a vector in blocks (%v)", info.Type)
	}

	p.rows = p.stride
	if part.Transposed {
		p.rows = p.cols
	}

	return p, b.slice(&p, t, part.Rows)
}

// slice takes some rows of a piece.
func (b *builder) slice(p *piece, t *arch.Tensor, rows string) error {
	q, kv := int(b.config.Dim("q")), int(b.config.Dim("kv"))
	whole := p.rows
	want := whole
	switch rows {
	case "q":
		p.rows = q
		want = q + 2*kv
	case "k", "v":
		p.first = q
		p.rows = kv
		want = q + 2*kv
		if rows == "v" {
			p.first += kv
		}
	case "gate", "up":
		p.rows = whole / 2
		want = 2 * p.rows
		if rows == "up" {
			p.first = p.rows
		}
	}

	if whole != want {
		return b.misfit(t, p.info, "%d rows, expected %d", whole, want)
	}
	return nil
}

// fit compares the pieces of a tensor with the shape that the configuration gives, and works out the order of rows.
func (b *builder) fit(made *tensor, t *arch.Tensor, had, rows, cols int) error {
	have := -had
	for i := range made.pieces {
		p := &made.pieces[i]
		have += p.rows
		if width := p.width(); width != cols {
			return b.misfit(t, p.info, "rows of %d values, expected %d", width, cols)
		}
		if p.stack != made.pieces[0].stack {
			return b.misfit(t, p.info, "%d matrices, and %s has %d", p.stack, made.pieces[0].info.Name,
				made.pieces[0].stack)
		}
		if made.alternate && p.rows != made.pieces[0].rows {
			return b.misfit(t, p.info, "%d rows, and %s has %d", p.rows, made.pieces[0].info.Name, made.pieces[0].rows)
		}
	}

	last := made.pieces[len(made.pieces)-1].info
	if t.Role == arch.KVB && made.pieces[0].stack > 1 {
		made.stack = made.pieces[0].stack
		have *= made.stack
	}
	if have != rows {
		return b.misfit(t, last, "%d rows, expected %d", have, rows)
	}

	made.rows = rows
	if t.Role == arch.KVB {
		made.rows /= made.stack
	}
	made.cols = cols
	made.order = b.order(t)
	if b.config.Arch.Norm == arch.RMSPlusOne && isNorm(t) {
		made.shift = -1
	}

	return nil
}

// isNorm reports whether a tensor is the weight of a norm.
func isNorm(t *arch.Tensor) bool {
	switch t.Role {
	case arch.AttnNorm, arch.MLPNorm, arch.AttnPostNorm, arch.MLPPostNorm, arch.FinalNorm, arch.QNorm, arch.KNorm:
		return t.Part == ""
	}
	return false
}

// order is how the rows of a tensor lie in the file; nil where they lie as in the checkpoint.
func (b *builder) order(t *arch.Tensor) ordering {
	c := b.config
	switch {
	case c.Arch.GGUF.Pairs && (t.Role == arch.Q || t.Role == arch.K) && c.HeadDim%2 == 0:
		return pairs(c.HeadDim)
	case t.Role == arch.QKV && c.Arch.QKV == arch.HeadBlocks || t.Role == arch.QKV && c.Arch.QKV == arch.Groups:
		return grouped(c.Heads, c.KVHeads, c.HeadDim)
	}
	return nil
}

// misfit is the error for a tensor whose shape is not what the metadata say.
func (b *builder) misfit(t *arch.Tensor, info gguf.Info, format string, args ...any) error {
	return &Error{
		File: b.file, Tensor: info.Name, Err: ErrShape,
		Detail: fmt.Sprintf(format, args...) + b.keys(t),
	}
}

// keys names the metadata keys that a shape follows from.
func (b *builder) keys(t *arch.Tensor) string {
	var keys []string
	for _, d := range t.Shape {
		for _, field := range arch.DimFields(d) {
			if g, ok := b.config.Arch.GGUFField(field); ok && g.Key != "" && !slices.Contains(keys, g.Key) {
				keys = append(keys, g.Key)
			}
		}
	}
	if len(keys) == 0 {
		return ""
	}

	text := " by "
	for i, key := range keys {
		if i > 0 {
			text += ", "
		}
		text += b.config.Arch.GGUF.Name + "." + key
	}

	return text
}

// leftovers refuses tensors that nothing was made of, but for those that have no part in a model.
func (b *builder) leftovers() error {
	var extra []string
	for _, name := range b.tensors.names {
		if b.used[name] || ropeTensor(name) || arch.GGUFIgnores(name) || b.behind(name) {
			continue
		}
		extra = append(extra, name)
	}
	if len(extra) == 0 {
		return nil
	}
	return &Error{
		File: b.file, Tensor: extra[0], Err: ErrExtra,
		Detail: fmt.Sprintf("a %s does not have these %d: %s", b.config.ModelType, len(extra), listed(extra)),
	}
}

// behind reports whether a tensor belongs to a block behind the last one, which predicts further tokens.
func (b *builder) behind(name string) bool {
	var l int
	n, err := fmt.Sscanf(name, "blk.%d.", &l)
	return n == 1 && err == nil && b.config.Arch.ExtraBlocks && l >= b.config.Layers
}

// sorted gives the tensors in the order of the file.
func (b *builder) sorted() []*tensor {
	slices.SortStableFunc(b.list, func(x, y *tensor) int {
		p, q := &x.pieces[0], &y.pieces[0]
		if d := b.tensors.order[p.info.Name] - b.tensors.order[q.info.Name]; d != 0 {
			return d
		}
		if d := p.start - q.start; d != 0 {
			return d
		}
		return p.first - q.first
	})
	return b.list
}
