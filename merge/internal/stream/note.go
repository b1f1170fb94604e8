package stream

import (
	"slices"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/safetensors"
)

// Note is what was found out about a tensor of the output while it was merged.
type Note struct {
	NonFinite []NonFinite  `json:"non_finite,omitempty"`
	Ties      *method.Ties `json:"ties,omitempty"` // of the tensor's group, with its first tensor
	Zeros     *Zeros       `json:"zeros,omitempty"`
}

// Zeros counts zeros of a matrix. Those of the inputs and of what became of them are counted in a sample, the same
// whatever the workers.
type Zeros struct {
	Elements int64    `json:"elements"`
	Sampled  int64    `json:"sampled"`
	Models   []string `json:"models"` // the inputs, the base last
	Inputs   []int64  `json:"inputs"`
	Output   int64    `json:"output"`
	// Kept are all elements that are 0 because they are so in Item.Mask, and Restored those of them that the method
	// had made another value.
	Kept     int64 `json:"kept,omitempty"`
	Restored int64 `json:"restored,omitempty"`
}

// The sample of zeros: runs of neighbours at a distance that is no multiple of any width of a matrix; small matrices
// are counted whole. Each read has its price, whatever its length: of a matrix of 512 by 512 it is 16 reads of 64
// elements for each model.
const (
	zeroRun   = 64
	zeroStep  = 16381
	zeroRows  = 61 // of sources that give rows, one in so many
	zeroWhole = 1 << 16
	zeroPiece = 1 << 12 // of a matrix that is counted whole
)

// zeros counts the zeros of a finished segment in its inputs and its bytes, after those of the mask were put back.
func (s segment) zeros(data []byte) error {
	var z Zeros
	if s.Mask != nil {
		if err := s.restore(data, &z); err != nil {
			return err
		}
	}

	if len(s.Tensor.Shape) >= 2 {
		if err := s.sampleZeros(data, &z); err != nil {
			return err
		}
	}

	// Segments of one tensor end on several workers.
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.found.Inputs == nil {
		s.found.Inputs = make([]int64, len(s.X)+1)
	}

	for i, n := range z.Inputs {
		s.found.Inputs[i] += n
	}

	s.found.Sampled += z.Sampled
	s.found.Output += z.Output
	s.found.Kept += z.Kept
	s.found.Restored += z.Restored

	return nil
}

// restore makes the elements 0 that are so in the mask.
func (s segment) restore(data []byte, z *Zeros) error {
	size := max(method.BlockSize, s.unit())
	mask := make([]float32, min(size, s.end-s.first))
	for first := s.first; first < s.end; first += size {
		n := min(size, s.end-first)
		if err := s.Mask.Read(mask[:n], first); err != nil {
			return err
		}

		for i, v := range mask[:n] {
			if v != 0 {
				continue
			}

			z.Kept++
			if at := first - s.first + int64(i); !isZero(data, at, s.DType) {
				z.Restored++
				clear(data[at*width(s.DType):][:width(s.DType)])
			}
		}
	}

	return nil
}

// unit is how many elements sources want to be read at a time.
func (s segment) unit() int64 {
	if s.Align {
		return s.Tensor.Cols()
	}
	return 1
}

// sampleZeros counts zeros in a part of the elements.
func (s segment) sampleZeros(data []byte, z *Zeros) error {
	run, step := int64(zeroRun), int64(zeroStep)
	switch {
	case s.Align:
		run, step = s.unit(), zeroRows*s.unit()
	case s.Tensor.N <= zeroWhole:
		run, step = zeroPiece, zeroPiece
	}

	list := slices.Clone(s.X)
	if s.Base != nil {
		list = append(list, s.Base)
	}

	// From a multiple of the step on, so that the same elements are looked at however the tensor is cut.
	z.Inputs = make([]int64, len(list))
	x := make([]float32, run)
	for first := (s.first + step - 1) / step * step; first < s.end; first += step {
		n := min(run, s.end-first)
		for i, src := range list {
			if err := src.Read(x[:n], first); err != nil {
				return err
			}

			for _, v := range x[:n] {
				if v == 0 {
					z.Inputs[i]++
				}
			}
		}

		for i := range n {
			if isZero(data, first-s.first+i, s.DType) {
				z.Output++
			}
		}

		z.Sampled += n
	}

	return nil
}

// isZero reports whether an element of little-endian data is 0 or -0.
func isZero(data []byte, i int64, d safetensors.DType) bool {
	size := width(d)
	p := data[i*size:][:size]
	some := p[size-1] & 0x7f
	for _, b := range p[:size-1] {
		some |= b
	}
	return some == 0
}

// note is what is known of a tensor all of whose elements are computed.
func (r *run) note() Note {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := Note{NonFinite: r.lost(), Ties: r.ties}
	if z := r.found; z.Sampled > 0 || z.Kept > 0 {
		z.Elements, z.Models = r.Tensor.N, r.Models
		n.Zeros = &z
	}
	return n
}
