package experts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// Expert is the open file of an expert; one without a file keeps nothing.
type Expert struct {
	Name  string
	file  *safetensors.File
	parts map[string]*Stored
	alike map[string]string // tensors that another expert's file holds, and that expert
}

// Stored is what a file holds of one tensor, checked.
type Stored struct {
	Part
	n, rows, cols int64
	bitmap        []byte
	columns       []byte
	pointers      []byte
	values        []byte
	scale         []byte
	left, right   []byte
	codes         []byte
	once          sync.Once
	wide, high    []float32 // the right factor and the left one
	starts        []int64   // kept elements before each chunk, for bitmaps
}

// Chunk is how many elements are put together at a time.
const Chunk = 1 << 16

// Open opens the file of an expert and checks that it holds what the manifest says, in encodings that are
// sound. shape and type of the tensors are the dense model's.
func Open(path, name string, parts map[string]Part, dense *safetensors.Dir) (*Expert, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}

	e := &Expert{Name: name, file: f, parts: map[string]*Stored{}, alike: map[string]string{}}
	names := map[string]bool{}
	for tensor, p := range parts {
		info, ok := dense.Info(tensor)
		if !ok {
			return nil, errors.Join(fmt.Errorf("%s: tensor %q is not in the dense model: %w", path, tensor, ErrExpert),
				f.Close())
		}

		if p.Encoding == Same {
			e.alike[tensor] = p.Of
			continue
		}

		p.Tensor = tensor
		p.DType = info.DType
		p.Shape = info.Shape
		s, err := e.read(p, names)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: tensor %q: %w", path, tensor, err), f.Close())
		}

		e.parts[tensor] = s
	}

	// A tensor too many is a file of another merge, even if all that are wanted are there.
	for _, n := range f.Names() {
		if !names[n] {
			return nil, errors.Join(fmt.Errorf("%s: tensor %q is not in the manifest: %w", path, n, ErrExpert),
				f.Close())
		}
	}

	return e, nil
}

// Link lets experts that share tensors find them with the earlier one that has them.
func Link(list []*Expert) error {
	for i, e := range list {
		for tensor, name := range e.alike {
			at := slices.IndexFunc(list[:i], func(x *Expert) bool { return x.Name == name })
			if at < 0 || list[at].parts[tensor] == nil || list[at].alike[tensor] != "" {
				return fmt.Errorf("expert %s: tensor %q is to be that of %.80q, which has none before it: %w", e.Name,
					tensor, name, ErrExpert)
			}
			e.parts[tensor] = list[at].parts[tensor]
		}
	}
	return nil
}

// Close closes the file, if there is one.
func (e *Expert) Close() error {
	if e.file == nil {
		return nil
	}
	return e.file.Close()
}

// Bytes is the size of the file.
func (e *Expert) Bytes() int64 {
	if e.file == nil {
		return 0
	}
	return e.file.Size()
}

// Part is what the expert keeps of a tensor; nil for nothing.
func (e *Expert) Part(tensor string) *Stored { return e.parts[tensor] }

// read finds and checks the tensors of a part; names gets theirs.
func (e *Expert) read(p Part, names map[string]bool) (*Stored, error) {
	s := &Stored{Part: p}
	s.n, s.rows, s.cols = size(p.Shape)
	if p.Encoding == Codes && (p.Bits < 1 || p.Bits > 8) {
		return nil, fmt.Errorf("codes of %d bits: %w", p.Bits, ErrExpert)
	}

	// Before any size is computed from it: the manifest is a file like any other.
	if p.Encoding == Full && p.Kept != s.n || p.Kept < 0 || p.Kept > s.n {
		return nil, fmt.Errorf("%d of %d elements kept as %s: %w", p.Kept, s.n, p.Encoding, ErrExpert)
	}

	switch p.DType {
	case safetensors.F32, safetensors.F16, safetensors.BF16:
	default:
		return nil, fmt.Errorf("elements of type %s: %w", p.DType, ErrExpert)
	}

	list, err := s.stored()
	if err != nil {
		return nil, err
	}

	if len(list) == 0 && p.Encoding != Nothing {
		return nil, fmt.Errorf("encoding %.40q: %w", p.Encoding, ErrExpert)
	}

	fields := map[string]*[]byte{
		".bitmap": &s.bitmap, ".cols": &s.columns, ".rowptr": &s.pointers, ".values": &s.values,
		".signs": &s.bitmap, ".scale": &s.scale, ".left": &s.left, ".right": &s.right, ".codes": &s.codes,
	}

	for _, want := range list {
		got, ok := e.file.Info(want.Name)
		if !ok {
			return nil, fmt.Errorf("there is no %q, which the manifest describes; is the file of another merge? %w",
				want.Name, ErrExpert)
		}

		if got.DType != want.DType || !equal(got.Shape, want.Shape) {
			return nil, fmt.Errorf("want %s %v, have %s %v: %w", want.DType, want.Shape, got.DType, got.Shape,
				ErrExpert)
		}

		data, err := e.file.Bytes(want.Name)
		if err != nil {
			return nil, err
		}

		names[want.Name] = true
		*fields[want.Name[len(p.Tensor):]] = data
	}

	// The contents still count: products index by columns and row pointers without a look.
	return s, e.sound(s, list)
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// sound checks the indices of a part; a file that was shortened meanwhile is an error.
func (e *Expert) sound(s *Stored, list []safetensors.Info) error {
	if len(list) == 0 {
		return nil
	}

	return e.file.View(list[0].Name, func([]byte) error {
		switch s.Encoding {
		case Bitmap:
			return s.soundBitmap()
		case Rows:
			return s.soundRows()
		}
		return nil
	})
}

// soundBitmap counts the bits of each chunk.
func (s *Stored) soundBitmap() error {
	total := int64(0)
	for i := 0; i < len(s.bitmap); i += Chunk / 8 {
		s.starts = append(s.starts, total)
		part := s.bitmap[i:min(i+Chunk/8, len(s.bitmap))]
		for ; len(part) >= 8; part = part[8:] {
			total += int64(bits.OnesCount64(binary.LittleEndian.Uint64(part)))
		}
		for _, b := range part {
			total += int64(bits.OnesCount8(b))
		}
	}

	if r := s.n % 8; r != 0 && s.bitmap[len(s.bitmap)-1]>>r != 0 {
		return fmt.Errorf("bitmap has bits beyond the last element: %w", ErrExpert)
	}
	if total != s.Kept {
		return fmt.Errorf("bitmap has %d elements, the manifest %d: %w", total, s.Kept, ErrExpert)
	}

	return nil
}

// soundRows checks that rows follow each other and columns ascend.
func (s *Stored) soundRows() error {
	last := uint32(0)
	for r := range s.rows {
		lo, hi := s.pointer(r), s.pointer(r+1)
		// Row pointers ascend without gaps, or an element would belong to two rows, or to none.
		if r == 0 && lo != 0 || lo != last || hi < lo || int64(hi) > s.Kept {
			return fmt.Errorf("row %d is from element %d to %d of %d: %w", r, lo, hi, s.Kept, ErrExpert)
		}

		before := int64(-1)
		for k := lo; k < hi; k++ {
			c := int64(binary.LittleEndian.Uint16(s.columns[2*k:]))
			if c <= before || c >= s.cols {
				return fmt.Errorf("row %d: column %d after %d, of %d: %w", r, c, before, s.cols, ErrExpert)
			}
			before = c
		}

		last = hi
	}

	if int64(last) != s.Kept {
		return fmt.Errorf("rows end at element %d of %d: %w", last, s.Kept, ErrExpert)
	}

	return nil
}

func (s *Stored) pointer(row int64) uint32 { return binary.LittleEndian.Uint32(s.pointers[4*row:]) }

func f32(p []byte, i int64) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(p[4*i:]))
}

// dense reports whether every element changes, so that elements are not listed one by one.
func (s *Stored) dense() bool {
	return s.Encoding == Signs || s.Encoding == LowRank || s.Encoding == Codes
}

// each calls f for the kept elements of [lo, hi), which lie in one chunk, with their place among the values.
func (s *Stored) each(lo, hi int64, f func(i, k int64)) {
	switch s.Encoding {
	case Full:
		for i := lo; i < hi; i++ {
			f(i, i)
		}
	case Bitmap:
		k := s.starts[lo/Chunk]

		// The values' place is known only at starts of chunks, so the bits before lo are counted too.
		for i := lo / Chunk * Chunk / 8; i*8 < hi; i++ {
			for b := s.bitmap[i]; b != 0; b &= b - 1 {
				if at := i*8 + int64(bits.TrailingZeros8(b)); at >= lo && at < hi {
					f(at, k)
				}
				k++
			}
		}
	case Rows:
		for r := lo / s.cols; r*s.cols < hi; r++ {
			for k := int64(s.pointer(r)); k < int64(s.pointer(r+1)); k++ {
				if at := r*s.cols + int64(binary.LittleEndian.Uint16(s.columns[2*k:])); at >= lo && at < hi {
					f(at, k)
				}
			}
		}
	}
}

// differences writes those of the elements [lo, lo+len(dst)), for encodings that change every element; lo is
// the start of a chunk.
func (s *Stored) differences(dst []float32, lo int64) {
	switch s.Encoding {
	case Codes:
		s.decode(dst, lo)
	case Signs:
		for i := range dst {
			at := lo + int64(i)
			d := f32(s.scale, at/s.cols)
			if s.bitmap[at/8]>>(at%8)&1 == 0 {
				d = -d
			}
			dst[i] = d
		}
	case LowRank:
		s.product(dst, lo)
	}
}

// product adds the outer products of the factors up, row by row.
func (s *Stored) product(dst []float32, lo int64) {
	clear(dst)
	right, left := s.factors()
	for i := int64(0); i < int64(len(dst)); {
		row, col := (lo+i)/s.cols, (lo+i)%s.cols
		n := min(s.cols-col, int64(len(dst))-i)
		for r := range int64(s.Rank) {
			vec.Add(dst[i:i+n], dst[i:i+n], right[r*s.cols+col:r*s.cols+col+n], left[row*int64(s.Rank)+r])
		}
		i += n
	}
}

// factors are the right factor and the left one, widened once.
func (s *Stored) factors() (right, left []float32) {
	s.once.Do(func() {
		s.wide, s.high = make([]float32, int64(s.Rank)*s.cols), make([]float32, int64(s.Rank)*s.rows)
		for i := range s.wide {
			s.wide[i] = widenAs(s.factorType(), s.right, int64(i))
		}
		for i := range s.high {
			s.high[i] = widenAs(s.factorType(), s.left, int64(i))
		}
	})

	return s.wide, s.high
}

// value widens a stored value.
func (s *Stored) value(k int64) float32 { return widenAs(s.DType, s.values, k) }

// widenAs gives an element of a type.
func widenAs(d safetensors.DType, data []byte, k int64) float32 {
	switch d {
	case safetensors.BF16:
		return widened(binary.LittleEndian.Uint16(data[2*k:]))
	case safetensors.F16:
		return half(binary.LittleEndian.Uint16(data[2*k:]))
	}
	return f32(data, k)
}

// half widens an IEEE half.
func half(h uint16) float32 {
	var x [1]float32
	src, err := stream.NewMapped([]byte{byte(h), byte(h >> 8)}, safetensors.F16, 0, nil)
	if err != nil || src.Read(x[:], 0) != nil {
		panic("experts: halves can be read")
	}
	return x[0]
}
