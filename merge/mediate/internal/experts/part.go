// Package experts splits fine-tuned models into a dense model and what each of them keeps of its own: sparse
// values, signs or products of low rank, in files of their own, and puts them together again.
package experts

import (
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which the files of experts can be wrong, or refuse to be made.
var (
	// ErrManifest: mediator.json is malformed, or disagrees with the files.
	ErrManifest = errors.New("manifest of experts is wrong")
	// ErrExpert: a file of an expert is malformed, or does not fit the dense model.
	ErrExpert = errors.New("expert does not fit")
	// ErrSize: a tensor has more elements than an encoding can count.
	ErrSize = errors.New("too many elements for the encoding")
)

// The encodings of what an expert keeps of a tensor.
const (
	Nothing = "none"    // it is the dense model's
	Bitmap  = "bitmap"  // a bit per element, and the values of the kept ones
	Rows    = "csr"     // columns of the kept elements of every row, and their values
	Full    = "full"    // all values
	Signs   = "sign1"   // a bit per element, the sign of its difference, and a scale per row
	LowRank = "lowrank" // left [rows, rank] · right [rank, cols] is the difference
	Codes   = "codes"   // a few bits per element, the step of its difference, and a scale per run of elements
	Same    = "same"    // it is another expert's, bit for bit, and lies in that one's file
)

// Keep carries a [Rule] out.
type Keep Rule

// Rule says what an expert keeps of its difference from the dense model.
type Rule struct {
	Kind  string  `json:"kind"` // magnitude, energy, random, lowrank, bits, sign1, best
	Value float64 `json:"value,omitempty"`
}

// Part is what one expert keeps of one tensor.
type Part struct {
	Tensor   string            `json:"-"`
	Encoding string            `json:"encoding"`
	Kept     int64             `json:"kept"`            // elements
	Delta    bool              `json:"delta,omitempty"` // differences are stored, not the expert's values
	Rank     int               `json:"rank,omitempty"`
	Bits     int               `json:"bits,omitempty"` // of a code
	Half     bool              `json:"half,omitempty"` // factors are BF16, though the tensor is F32
	Of       string            `json:"of,omitempty"`   // the expert whose part it is, of the encoding same
	Energy   float64           `json:"energy"`         // ‖difference‖²
	Lost     float64           `json:"lost"`           // of which is not restored
	DType    safetensors.DType `json:"-"`
	Shape    []int64           `json:"-"`

	window method.Window
	counts []int64 // kept elements per segment
	twin   int     // the expert that has the same tensor, -1 for none

	keep  Keep   // of this part alone, where the rule best has chosen it
	forms []form // that best may choose
	half  bool   // factors would be BF16
}

// NewPart is a part about which nothing is known yet.
func NewPart(tensor string, shape []int64, d safetensors.DType) *Part {
	return &Part{Tensor: tensor, DType: d, Shape: shape, twin: -1}
}

// of is the rule for a part: the recipe's, or what best has made of it.
func (k Keep) of(p *Part) Keep {
	if p.keep.Kind != "" {
		return p.keep
	}
	return k
}

// factorType is the type of factors.
func (p *Part) factorType() safetensors.DType {
	if p.Half {
		return safetensors.BF16
	}
	return p.DType
}

// factorWidth is how many bytes an element of a factor takes where best may choose it.
func (p *Part) factorWidth() int64 {
	if p.half {
		return 2
	}
	return int64(p.DType.Bits() / 8)
}

// size is the elements, rows and columns of a shape; a vector is one row.
func size(shape []int64) (n, rows, cols int64) {
	n, cols = safetensors.Info{Shape: shape}.Elements(), 1
	if len(shape) > 0 {
		cols = max(1, shape[len(shape)-1])
	}
	return n, n / cols, cols
}

// wanted is how many elements a fraction keeps: ⌊fraction·n⌋, at least one unless the fraction is 0.
func wanted(n int64, fraction float64) int64 {
	switch {
	case fraction <= 0:
		return 0
	case fraction >= 1:
		return n
	}
	return min(n, max(1, int64(fraction*float64(n))))
}

// encoding is the smallest one for kept elements, and its bytes.
func encoding(shape []int64, kept, width int64) (string, int64) {
	n, rows, cols := size(shape)
	switch kept {
	case 0:
		return Nothing, 0
	case n:
		return Full, width * n
	}

	name, bytes := Bitmap, (n+7)/8+width*kept
	if csr := (2+width)*kept + 4*(rows+1); cols <= 1<<16 && csr < bytes && kept <= math.MaxUint32 {
		name, bytes = Rows, csr
	}

	return name, bytes
}

// headerEntry is more than a tensor takes in a file's header beside its name.
const headerEntry = 160

// Bound is the most bytes that one expert can take for a tensor.
func (k Keep) Bound(name string, shape []int64, d safetensors.DType) int64 {
	n, rows, cols := size(shape)
	width := int64(d.Bits() / 8)
	header := int64(3 * (len(name) + headerEntry))

	var bytes int64
	switch k.Kind {
	case "magnitude":
		_, bytes = encoding(shape, wanted(n, k.Value), width)
	case "random":
		// the mean and eight standard deviations
		most := math.Ceil(k.Value*float64(n) + 8*math.Sqrt(float64(n)*k.Value*(1-k.Value)))
		_, bytes = encoding(shape, min(n-1, int64(most)), width)
		bytes = max(bytes, (n+7)/8+width*min(n, int64(most)))
	case "energy":
		bytes = max(width*n, (n+7)/8+width*(n-1)) // the difference may be spread evenly
	case "sign1":
		bytes = (n+7)/8 + 4*rows
	case "best": // one tensor may take more, at the cost of the others
		if k.Value >= 1 {
			return width*n + header
		}
		return k.share(shape, d)
	case "bits":
		bytes = codeBytes(n, int(k.Value)) + 2*codeRuns(n)
	case "lowrank":
		bytes = width * n
		if k.factored(shape) {
			bytes = width * int64(k.Value) * (rows + cols)
		}
	}

	return bytes + header
}

// factored reports whether a tensor gets factors of low rank: a matrix for which they are no larger.
func (k Keep) factored(shape []int64) bool {
	n, rows, cols := size(shape)
	return len(shape) == 2 && k.Value >= 1 && int64(k.Value)*(rows+cols) < n && int64(k.Value) <= min(rows, cols)
}

// stored are the tensors of a file that hold the part.
func (p *Part) stored() ([]safetensors.Info, error) {
	n, rows, cols := size(p.Shape)
	if p.Encoding == Rows && p.Kept > math.MaxUint32 { // row pointers are 32 bits wide
		return nil, fmt.Errorf("tensor %q: %d: %w", p.Tensor, p.Kept, ErrSize)
	}

	one := func(suffix string, d safetensors.DType, shape ...int64) safetensors.Info {
		return safetensors.Info{Name: p.Tensor + suffix, DType: d, Shape: shape}
	}
	switch p.Encoding {
	case Bitmap:
		return []safetensors.Info{one(".bitmap", safetensors.U8, (n+7)/8), one(".values", p.DType, p.Kept)}, nil
	case Rows:
		return []safetensors.Info{
			one(".cols", safetensors.U16, p.Kept), one(".rowptr", safetensors.U32, rows+1),
			one(".values", p.DType, p.Kept),
		}, nil
	case Full:
		return []safetensors.Info{one(".values", p.DType, n)}, nil
	case Signs:
		return []safetensors.Info{one(".signs", safetensors.U8, (n+7)/8), one(".scale", safetensors.F32, rows)}, nil
	case LowRank:
		r := int64(p.Rank)
		d := p.factorType()
		return []safetensors.Info{one(".left", d, rows, r), one(".right", d, r, cols)}, nil
	case Codes:
		return []safetensors.Info{
			one(".codes", safetensors.U8, codeBytes(n, p.Bits)),
			one(".scale", safetensors.BF16, codeRuns(n)),
		}, nil
	}

	return nil, nil
}
