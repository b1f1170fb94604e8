package quantized

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// Matrix is a quantised weight. Its rows are decoded as they are needed, by any number of goroutines at once.
type Matrix struct {
	Name       string // of the weight, as the model without quantisation has it
	Format     string // a [Format]'s name
	Rows, Cols int
	// Stack is how many matrices of Rows/Stack rows stand one under another: 1, or the experts of a block.
	Stack int

	// DType is the type that the reference implementation has the values in: F32, F16 or BF16. All values are numbers
	// of it.
	DType safetensors.DType
	// Band is how many rows are best decoded at once, since they share bytes.
	Band int
	// Parts are the tensors that it is decoded from, by their names; nil for [Blocks].
	Parts []string

	decode func(dst []float32, first, n int) error
	narrow func(dst []byte, first, n int) error // to bfloat16; nil: it is not known
	kernel kernels.QuantFormat                  // of codes; 0: there are none
	codes  coder
}

// Decode writes n rows from first on to dst, which has exactly as many elements. The error wraps [ErrNotFinite] and
// names the weight.
func (m *Matrix) Decode(dst []float32, first, n int) error {
	if first < 0 || n < 0 || first > m.Rows-n || len(dst) != n*m.Cols {
		panic("quantized: rows outside the matrix")
	}
	if err := m.decode(dst, first, n); err != nil {
		return fmt.Errorf("tensor %q: %w", m.Name, err)
	}
	return nil
}

// DecodedBy gives a matrix that other code describes its decoder: f writes n rows from first on, which are within the
// matrix, and may be called by several goroutines at once.
func (m *Matrix) DecodedBy(f func(dst []float32, first, n int) error) *Matrix {
	m.decode = f
	return m
}

// Narrow reports whether there is a decoder to bfloat16.
func (m *Matrix) Narrow() bool { return m.narrow != nil }

// DecodeBF16 is [Matrix.Decode] with elements rounded to bfloat16, of two bytes each, for matrices that are
// [Matrix.Narrow].
func (m *Matrix) DecodeBF16(dst []byte, first, n int) error {
	if first < 0 || n < 0 || first > m.Rows-n || len(dst) != 2*n*m.Cols {
		panic("quantized: rows outside the matrix")
	}
	if err := m.narrow(dst, first, n); err != nil {
		return fmt.Errorf("tensor %q: %w", m.Name, err)
	}
	return nil
}

// NarrowedBy gives a matrix that other code describes its decoder to bfloat16 as well; see [Matrix.DecodedBy].
func (m *Matrix) NarrowedBy(f func(dst []byte, first, n int) error) *Matrix {
	m.narrow = f
	return m
}

// eachRow makes a decoder of rows out of one for a row.
func (m *Matrix) eachRow(row func(dst []float32, r int) error) {
	m.Band = 1
	m.decode = func(dst []float32, first, n int) error {
		for i := range n {
			if err := row(dst[i*m.Cols:][:m.Cols], first+i); err != nil {
				return err
			}
		}
		return nil
	}
}

// Format is a way to store a matrix as several tensors.
type Format struct {
	Name string
	// marks are endings of names that only this format has, by which a matrix is found. With the ending replaced by
	// ".weight", or by nothing in a bare format, they are the name of the matrix.
	marks []string
	bare  bool
	// parts are the endings of the tensors that belong to a matrix, beside the mark.
	parts []string
	// fits reports whether the tensors are of this format, where others have the same marks; nil where none has.
	fits func(w *stored) bool
	open func(w *stored, s Scheme) (*Matrix, error)
}

// stored is the tensors of a matrix.
type stored struct {
	src  Tensors
	name string // without its ending
}

// Tensors is where matrices are read from: a safetensors.Source, for example.
type Tensors interface {
	// Names lists the tensors in the order of their data.
	Names() []string
	// Info says what a tensor is; false if there is none of that name.
	Info(name string) (safetensors.Info, bool)
	// Bytes gives a read-only view of a tensor.
	Bytes(name string) ([]byte, error)
}

// part is one tensor of a matrix.
type part struct {
	safetensors.Info
	data []byte
}

func (w *stored) has(ending string) bool {
	_, ok := w.src.Info(w.name + ending)
	return ok
}

func (w *stored) dtype(ending string) safetensors.DType {
	info, _ := w.src.Info(w.name + ending)
	return info.DType
}

// part finds a tensor that must be there, of one of some types.
func (w *stored) part(ending string, types ...safetensors.DType) (part, error) {
	info, ok := w.src.Info(w.name + ending)
	if !ok {
		return part{}, fmt.Errorf("%w: %s", ErrMissing, w.name+ending)
	}
	if len(types) > 0 && !slices.Contains(types, info.DType) {
		return part{}, fmt.Errorf("%w: %s is %s, not one of %v", ErrDType, w.name+ending, info.DType, types)
	}

	data, err := w.src.Bytes(w.name + ending)
	return part{info, data}, err
}

// matrix finds a tensor of two dimensions, none of which is 0.
func (w *stored) matrix(ending string, types ...safetensors.DType) (part, error) {
	p, err := w.part(ending, types...)
	if err == nil && (len(p.Shape) != 2 || p.Shape[0] == 0 || p.Shape[1] == 0) {
		err = p.misfit("of two dimensions")
	}
	return p, err
}

// misfit says what the shape of a part should be.
func (p part) misfit(format string, args ...any) error {
	return fmt.Errorf("%w: %s is %v, expected %s", ErrShape, p.Name, p.Shape, fmt.Sprintf(format, args...))
}

// expect checks a part's shape.
func (p part) expect(shape ...int64) error {
	if slices.Equal(p.Shape, shape) {
		return nil
	}
	return p.misfit("%v", shape)
}

// rows and cols are the dimensions of a matrix' part.
func (p part) rows() int { return int(p.Shape[0]) }
func (p part) cols() int { return int(p.Shape[1]) }

// floats are the types that scales are stored in where they are not of eight bits.
var floats = []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16}

// number returns how element i of a tensor is read.
func number(d safetensors.DType) func(b []byte, i int) float32 {
	switch d {
	case safetensors.F32:
		return func(b []byte, i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])) }
	case safetensors.BF16:
		return func(b []byte, i int) float32 { return kernels.FromBF16(binary.LittleEndian.Uint16(b[2*i:])) }
	case safetensors.F16:
		return func(b []byte, i int) float32 { return kernels.FromF16(binary.LittleEndian.Uint16(b[2*i:])) }
	case safetensors.F8_E4M3:
		return func(b []byte, i int) float32 { return e4m3[b[i]] }
	case safetensors.U8, safetensors.F8_E8M0:
		return func(b []byte, i int) float32 { return power(b[i]) }
	}

	panic("quantized: no numbers of type " + d.String())
}

// e4m3 is the value of each 8-bit float E4M3: a bias of 7, no infinities, one NaN of each sign.
var e4m3 = func() (t [256]float32) {
	for i := range t {
		man := float64(i & 7)
		exp := i >> 3 & 15
		v := math.Ldexp(man, -9)
		if exp > 0 {
			v = math.Ldexp(8+man, exp-10)
		}
		if i&0x7f == 0x7f {
			v = math.NaN()
		}
		t[i] = float32(math.Copysign(v, float64(127-i)))
	}
	return t
}()

// power is 2^(e-127), the value of a scale of MX formats; 255 stands for no number.
func power(e byte) float32 {
	if e == 255 {
		return float32(math.NaN())
	}
	return float32(math.Ldexp(1, int(e)-127))
}

// grid is the scales of a matrix: each is that of a rectangle of elements.
type grid struct {
	data       []byte
	read       func(b []byte, i int) float32
	rows, cols int // of a rectangle
	width      int // scales in a row of rectangles
}

// at is the scale of a group of columns in a row.
func (g *grid) at(row, group int) (float32, error) {
	s := g.read(g.data, row/g.rows*g.width+group)
	if s-s != 0 {
		return 0, fmt.Errorf("%w: row %d, group %d", ErrNotFinite, row, group)
	}
	return s, nil
}

// newGrid takes scales for a matrix by their shape: one for all, one for each row, for groups of columns of each row,
// or for blocks of the given size.
func newGrid(p part, rows, cols int, block [2]int) (*grid, error) {
	g := &grid{data: p.data, read: number(p.DType)}
	n := p.Elements()
	switch {
	case block[0] > 0 && block[1] > 0 && len(p.Shape) == 2:
		g.rows, g.cols = block[0], block[1]
		g.width = ceil(cols, block[1])
		return g, p.expect(int64(ceil(rows, block[0])), int64(g.width))
	case n == 1 && len(p.Shape) <= 2:
		g.rows, g.cols, g.width = rows, cols, 1
		return g, nil
	case len(p.Shape) == 1 && n == int64(rows):
		g.rows, g.cols, g.width = 1, cols, 1
		return g, nil
	case len(p.Shape) == 2 && p.rows() == rows && p.cols() > 0 && cols%p.cols() == 0:
		g.rows, g.cols, g.width = 1, cols/p.cols(), p.cols()
		return g, nil
	}

	return nil, p.misfit("scales for %d rows of %d columns", rows, cols)
}

// ceil is n/by rounded up; neither is negative.
func ceil(n, by int) int {
	if n%by != 0 {
		return n/by + 1
	}
	return n / by
}

// bits reads the i-th number of so many bits, at most 8, of a string of bits that fills bytes from the lowest bit up.
func bits(b []byte, i, n int) byte {
	at := i * n
	v := uint16(b[at/8])
	if at%8+n > 8 {
		v |= uint16(b[at/8+1]) << 8
	}
	return byte(v >> (at % 8) & (1<<n - 1))
}

// codes writes the numbers of so many bits of such a string.
func codes(dst, b []byte, n int) {
	switch n {
	case 8:
		copy(dst, b)
	case 4:
		for i, v := range b[:len(dst)/2] {
			pair := (*[2]byte)(dst[2*i:])
			pair[0] = v & 15
			pair[1] = v >> 4
		}
		if len(dst)%2 == 1 {
			dst[len(dst)-1] = b[len(dst)/2] & 15
		}
	default:
		for i := range dst {
			dst[i] = bits(b, i, n)
		}
	}
}

// formats is the table.
var formats = []*Format{
	&packQuantized, &intQuantized, &floatQuantized, &mxfp8Quantized, &nvfp4Quantized, &mxfp4Quantized,
	&gptq, &awq, &nf4, &fp4, &llmInt8, &fp8, &mxfp4Experts,
}

// FormatNames lists the formats of matrices.
func FormatNames() (names []string) {
	for _, f := range formats {
		names = append(names, f.Name)
	}
	return names
}

// Model is the tensors of a checkpoint as they are without quantisation.
type Model struct {
	src      Tensors
	matrices map[string]*Matrix
	names    []string
	unused   []string
}

// Open finds the quantised matrices among the tensors of a checkpoint, whose quantization_config is given. Parts of
// matrices and the scales of activations, which are no weights, are left out of its names. The errors wrap
// [ErrConfig], [ErrMissing], [ErrShape], [ErrDType], [ErrGroups] or [ErrState] and name the tensor.
func Open(src Tensors, c *Config) (*Model, error) {
	m := &Model{src: src, matrices: map[string]*Matrix{}}
	taken := map[string]bool{}
	for _, name := range src.Names() {
		w, f := find(src, name, c.formats)
		if f == nil {
			continue
		}

		s, err := c.Scheme(w.name)
		if err != nil {
			return nil, err
		}
		weight := w.name + ".weight"
		if f.bare {
			weight = w.name
		}
		if m.matrices[weight] != nil {
			return nil, fmt.Errorf("tensor %q: %w: it is stored as %s and as %s", weight, ErrConfig,
				m.matrices[weight].Format, f.Name)
		}

		matrix, err := f.open(w, s)
		if err != nil {
			return nil, fmt.Errorf("tensor %q (%s): %w", weight, f.Name, err)
		}
		matrix.Name = weight
		matrix.Format = f.Name
		matrix.Stack = max(matrix.Stack, 1)
		m.matrices[weight] = matrix

		taken[name] = true
		matrix.Parts = []string{name}
		m.names = append(m.names, weight)
		for _, ending := range f.parts {
			taken[w.name+ending] = true
			if w.has(ending) {
				matrix.Parts = append(matrix.Parts, w.name+ending)
			}
		}
	}

	return m, m.others(taken)
}

// find tells whether a tensor is the mark of a matrix, and of which format.
func find(src Tensors, name string, among []*Format) (*stored, *Format) {
	for _, f := range among {
		for _, mark := range f.marks {
			base, ok := strings.CutSuffix(name, mark)
			if !ok || base == "" {
				continue
			}
			w := &stored{src, base}
			if f.fits == nil || f.fits(w) {
				return w, f
			}
		}
	}
	return nil, nil
}

// activations are endings of tensors that quantise what flows through a model, not its weights.
var activations = []string{
	".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".output_zero_point",
	".k_scale", ".v_scale", ".q_scale", ".k_zero_point", ".v_zero_point", ".activation_scale", ".weight_format",
}

// others adds the tensors that are no parts of matrices. Floats of 8 bits are nothing without their scales.
func (m *Model) others(taken map[string]bool) error {
	for _, name := range m.src.Names() {
		info, _ := m.src.Info(name)
		switch {
		case taken[name]:
		case info.DType == safetensors.F8_E4M3 || info.DType == safetensors.F8_E5M2:
			return fmt.Errorf("tensor %q: %w: it is %s, without scales that are known", name, ErrMissing, info.DType)
		case slices.ContainsFunc(activations, func(s string) bool { return strings.HasSuffix(name, s) }):
			m.unused = append(m.unused, name)
		default:
			m.names = append(m.names, name)
		}
	}

	return nil
}

// Names lists the tensors without quantisation: the matrices, then those that are stored as they are.
func (m *Model) Names() []string { return slices.Clone(m.names) }

// Unused lists the tensors that belong to the quantisation of activations.
func (m *Model) Unused() []string { return slices.Clone(m.unused) }

// Matrix finds a quantised matrix by the name of its weight; nil for one that is stored as it is.
func (m *Model) Matrix(name string) *Matrix { return m.matrices[name] }

// Whole decodes a whole matrix, for small ones and for tests.
func (m *Matrix) Whole() ([]float32, error) {
	if m.Rows > math.MaxInt/max(m.Cols, 1) {
		return nil, errors.New("quantized: matrix too large")
	}
	dst := make([]float32, m.Rows*m.Cols)
	return dst, m.Decode(dst, 0, m.Rows)
}
