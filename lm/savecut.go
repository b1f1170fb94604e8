package lm

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// cutting is what a [Saver] knows of a model that becomes smaller on the way.
type cutting struct {
	pieces map[string]arch.Piece // by the parameter's name in the model
	to     map[string]place      // where each goes
	number map[int]int           // what a block of the model is in the output
	config *Config
	notes  []string
}

// place is a tensor of the output and an element in it.
type place struct {
	name  string
	first int64
}

// newCutting works out which tensors the smaller model has. text is the config.json that config is made of, nil for the
// model's own.
func newCutting(m *Model, k *arch.Cut, text []byte) (c *cutting, config []byte, err error) {
	c = &cutting{pieces: map[string]arch.Piece{}, to: map[string]place{}, number: map[int]int{}}
	if text == nil {
		if text, err = weights.ReadFile(m.dir, "config.json", maxConfigSize); err != nil {
			return nil, nil, err
		}
	}
	if config, c.config, c.notes, err = k.Config(m.config, text); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", m.dir, err)
	}

	for i, l := range k.Blocks(m.config) {
		c.number[l] = i
	}
	for _, p := range k.Pieces(m.config, m.layout) {
		c.pieces[p.Name] = p
	}
	if n := len(m.extra) - len(m.tied); n > 0 {
		c.notes = append(c.notes, fmt.Sprintf("%d tensors that are no part of the model were left out", n))
	}

	return c, config, nil
}

// Smaller gives the configuration of the model that a cut leaves, and says what would have to be known of how it came
// about. The error wraps [ErrCut].
func (m *Model) Smaller(k *arch.Cut) (*Config, []string, error) {
	c, _, err := newCutting(m, k, nil)
	if err != nil {
		return nil, nil, err
	}
	return c.config, c.notes, nil
}

// smaller prepares the saver for a cut.
func (s *Saver) smaller(o *stage.Options) error {
	cut, text, err := newCutting(s.m, s.opts.Cut, s.opts.Files["config.json"])
	if err != nil {
		return err
	}

	s.cut = cut
	rename := o.Config
	o.Config = func([]byte) []byte {
		if rename != nil {
			return rename(text)
		}
		return text
	}

	return nil
}

// planCut lists the tensors of the output in the order of the source.
func (s *Saver) planCut() stage.Plan {
	p := planLike(s.m.source, s.opts.DType, s.opts.MaxShardSize, dtype.IsFloat)
	shardOf := p.Files.ShardOf
	if shardOf != nil {
		p.Files.ShardOf = map[string]string{}
	}

	stored := p.Tensors
	p.Tensors = nil
	for _, info := range stored {
		whole, ok := s.cut.tensor(s.m, info)
		if !ok {
			continue
		}

		p.Tensors = append(p.Tensors, whole)
		s.infos[whole.Name] = whole
		if shardOf != nil {
			p.Files.ShardOf[whole.Name] = shardOf[info.Name]
		}
	}

	// The numbers in the names of the files count those that there are.
	if shardOf != nil && len(files(p.Files.ShardOf)) < len(files(shardOf)) {
		p.Files.ShardOf = nil
		p.Files.MaxShardSize = weights.UsualShard
	}

	return p
}

func files(shardOf map[string]string) map[string]bool {
	all := map[string]bool{}
	for _, file := range shardOf {
		all[file] = true
	}
	return all
}

// tensor is what becomes of a stored tensor; false: nothing of it stays.
func (c *cutting) tensor(m *Model, info safetensors.Info) (safetensors.Info, bool) {
	parts := m.dense.Parts(info.Name)
	if parts == nil {
		piece, ok := c.pieces[info.Name]
		if !ok {
			return info, false
		}

		c.to[info.Name] = place{piece.To, 0}
		info.Name, info.Shape = piece.To, piece.Size
		return sized(info), true
	}

	// Those that lie in one tensor stay together, one behind the other as they were.
	var name string
	var first int64
	for _, part := range parts {
		piece, ok := c.pieces[part.Name]
		if !ok {
			continue
		}

		if name == "" {
			name = m.config.Arch.Renumbered(info.Name, c.number[piece.Block])
		}
		c.to[part.Name] = place{name, first}
		first += product(piece.Size)
	}
	if name == "" {
		return info, false
	}

	c.to[info.Name] = place{name, 0}
	shape, _ := c.config.FusedShape(name)
	info.Name, info.Shape = name, shape
	return sized(info), true
}

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// sized gives a description the size that its shape and type make.
func sized(info safetensors.Info) safetensors.Info {
	info.Size = product(info.Shape) * int64(dtype.Of(info.DType).Size())
	return info
}

// target is where a parameter goes, or a stored tensor; false: it is not in the output.
func (s *Saver) target(name string) (to string, first int64, ok bool) {
	if s.cut == nil {
		to, first = s.m.dense.Place(name)
		return to, first, true
	}
	p, ok := s.cut.to[name]
	return p.name, p.first, ok
}

// known reports whether the model has a tensor of that name, or files have one.
func (s *Saver) known(name string) bool {
	if _, ok := s.m.dense.Info(name); ok {
		return true
	}
	return s.m.dense.Parts(name) != nil
}

// writePiece writes what stays of a parameter: windows of rows, of which the columns that stay are moved together.
func (s *Saver) writePiece(name string) error {
	piece := s.cut.pieces[name]
	at := s.cut.to[name]
	g := newGather(piece)
	read, from, err := s.elements(name)
	if err != nil {
		return err
	}

	want := dtype.Of(s.infos[at.name].DType)
	written := at.first
	for lo := 0; lo < len(g.rows); {
		hi := g.until(lo)
		first, n := g.rows[lo], g.rows[hi-1]+1-g.rows[lo]
		raw := atLeast(&s.carrier.raw, n*g.cols*from.Size())
		if err := read(raw, int64(first)*int64(g.cols)); err != nil {
			return err
		}

		out, err := s.carrier.as(g.take(raw, lo, hi, from.Size()), from, want)
		if err != nil {
			return err
		}
		if err := s.folder.Writer().WriteAt(at.name, out, written*int64(want.Size())); err != nil {
			return err
		}
		written += int64((hi - lo) * len(g.columns))
		lo = hi
	}

	return nil
}

// elementReader fills a buffer with a parameter's elements from one on.
type elementReader func(into []byte, first int64) error

// elements reads a parameter's elements: those of the file where it is unchanged, otherwise the model's value.
func (s *Saver) elements(name string) (read elementReader, t kernels.DType, err error) {
	p := s.m.params[name]
	if p == nil && slices.Contains(s.m.tied, name) {
		p = s.m.embed
	}

	if p == nil || !p.owned && p.saver == nil {
		info, _ := s.m.dense.Info(name)
		t := dtype.Of(info.DType)
		return func(into []byte, first int64) error {
			_, err := s.m.dense.ReadAt(name, into, first*int64(t.Size()))
			return err
		}, t, nil
	}

	value, err := s.value(p)
	if err != nil {
		return nil, 0, err
	}

	flat := value.Reshape(1, value.Len())
	return func(into []byte, first int64) error {
		n := len(into) / value.DType().Size()
		window, err := s.carrier.buffer(value.DType(), n)
		if err != nil {
			return err
		}

		s.m.dev.Ops().Convert(kernels.MatOf(window, 1, n), flat.ColRange(int(first), int(first)+n))
		return s.m.dev.Download(into, window, 0)
	}, value.DType(), nil
}

// loadPiece gives a saved piece as the parameter that it was taken from: what did not stay is 0.
func (s *Saver) loadPiece(p *param, data []byte, t kernels.DType) []byte {
	g := newGather(s.cut.pieces[p.Name])
	whole := make([]byte, p.rows*p.cols*t.Size())
	g.put(whole, data, t.Size())
	return whole
}

// gather takes rows and columns out of a matrix, or entries out of a vector, which is one row.
type gather struct {
	rows, columns []int // that stay
	cols          int   // of the matrix
	window        int   // rows of the matrix that are read at a time, at the most
}

func newGather(p arch.Piece) *gather {
	rows, keep := 1, p.Keep
	if len(p.Shape) == 2 {
		rows = int(p.Shape[0])
	} else {
		keep = [][]int{nil, keep[0]}
	}

	g := &gather{cols: int(p.Shape[len(p.Shape)-1])}
	g.rows, g.columns = entries(keep[0], rows), entries(keep[1], g.cols)
	g.window = min(max(1, pieceLen/g.cols), rows)
	return g
}

func entries(keep []int, n int) []int {
	if keep != nil {
		return keep
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// until is the end of the window that begins with the row at lo of those that stay.
func (g *gather) until(lo int) int {
	hi := lo + 1
	for hi < len(g.rows) && g.rows[hi]-g.rows[lo] < g.window {
		hi++
	}
	return hi
}

// take gives the elements that stay of rows lo to hi of those that stay, which begin raw.
func (g *gather) take(raw []byte, lo, hi, size int) []byte {
	if len(g.columns) == g.cols && hi-lo == g.rows[hi-1]+1-g.rows[lo] {
		return raw
	}

	out := make([]byte, 0, (hi-lo)*len(g.columns)*size)
	for _, r := range g.rows[lo:hi] {
		row := raw[(r-g.rows[lo])*g.cols*size:][:g.cols*size]
		if len(g.columns) == g.cols {
			out = append(out, row...)
			continue
		}
		for _, c := range g.columns {
			out = append(out, row[c*size:(c+1)*size]...)
		}
	}

	return out
}

// put is the inverse of take, for the whole matrix.
func (g *gather) put(whole, pieces []byte, size int) {
	for _, r := range g.rows {
		for _, c := range g.columns {
			copy(whole[(r*g.cols+c)*size:], pieces[:size])
			pieces = pieces[size:]
		}
	}
}
