package experts

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// Weighted is an expert with its weight.
type Weighted struct {
	*Expert
	Weight float64
}

// Workspace is the buffers of one goroutine.
type Workspace struct {
	dense, acc, own []float32
	hit             []bool
	out             []byte
}

// Chunks is in how many parts a tensor of n elements is put together.
func Chunks(n int64) int { return int((n + Chunk - 1) / Chunk) }

// Whole puts a part of a tensor together, into out: effective weights D + Σ_t w_t·(V_t - D) on the kept
// elements of the experts, added in their order in float32 and rounded once to the type of dense, the bytes of
// the whole dense tensor; the others are those of dense. A single expert of weight 1 gives its stored values
// bit for bit.
func (ws *Workspace) Whole(list []Weighted, tensor string, d safetensors.DType, dense []byte, chunk int,
	out []byte,
) error {
	width := int64(d.Bits() / 8)
	lo, hi := bounds(chunk, int64(len(dense))/width)
	if one := alone(list, tensor); one != nil {
		copy(out, dense[lo*width:hi*width])
		one.each(lo, hi, func(i, k int64) { copy(out[(i-lo)*width:(i-lo+1)*width], one.values[k*width:(k+1)*width]) })
		return nil
	}

	all, err := ws.sum(list, tensor, d, dense, lo, hi)
	if err != nil {
		return err
	}

	if all {
		return ws.narrow(out, list, tensor, d, lo)
	}

	// Elements that nobody keeps stay as they are, down to the sign of a zero.
	copy(out, dense[lo*width:hi*width])
	ws.out = grown(ws.out, int(hi-lo)*int(width))
	if err := ws.narrow(ws.out, list, tensor, d, lo); err != nil {
		return err
	}

	for i, hit := range ws.hit {
		if hit {
			copy(out[int64(i)*width:int64(i+1)*width], ws.out[int64(i)*width:])
		}
	}

	return nil
}

// Weigh gives what Whole changes: changed gets the elements that some expert keeps, in ascending order, with
// the bytes of their effective values.
func (ws *Workspace) Weigh(list []Weighted, tensor string, d safetensors.DType, dense []byte, chunk int,
	changed func(i int64, value []byte),
) error {
	width := int64(d.Bits() / 8)
	lo, hi := bounds(chunk, int64(len(dense))/width)
	// Nothing is computed for a single expert of weight 1: its own bytes come back, whatever their rounding.
	if one := alone(list, tensor); one != nil {
		one.each(lo, hi, func(i, k int64) { changed(i, one.values[k*width:(k+1)*width]) })
		return nil
	}

	if _, err := ws.sum(list, tensor, d, dense, lo, hi); err != nil {
		return err
	}

	ws.out = grown(ws.out, int(hi-lo)*int(width))
	if err := ws.narrow(ws.out, list, tensor, d, lo); err != nil {
		return err
	}

	for i, hit := range ws.hit {
		if hit {
			changed(lo+int64(i), ws.out[int64(i)*width:int64(i+1)*width])
		}
	}

	return nil
}

// weightsOf names the weights that count.
func weightsOf(list []Weighted) string {
	var parts []string
	for _, e := range list {
		if e.Weight != 0 {
			parts = append(parts, fmt.Sprintf("%s=%.4g", e.Name, e.Weight))
		}
	}
	return "the weights " + strings.Join(parts, ",")
}

// bounds are the elements of a chunk.
func bounds(chunk int, n int64) (lo, hi int64) {
	lo = int64(chunk) * Chunk
	return lo, min(lo+Chunk, n)
}

func grown(p []byte, n int) []byte {
	if cap(p) < n {
		p = make([]byte, n)
	}
	return p[:n]
}

// narrow rounds the effective weights of a part, the elements from lo on, to the type of the tensor. Weights
// that make what is finite infinite or no number are refused.
func (ws *Workspace) narrow(out []byte, list []Weighted, tensor string, d safetensors.DType, lo int64) error {
	if vec.Peak(ws.acc) >= leastOverflow(d) {
		if i := ws.overflow(list, tensor, d, lo); i >= 0 {
			return fmt.Errorf("tensor %q, element %d, %s: %w in %s; take smaller weights", tensor, lo+int64(i),
				weightsOf(list), stream.ErrOverflow, d)
		}
	}

	if err := stream.Narrow(out, ws.acc, d); err != nil {
		return fmt.Errorf("tensor %q: %w", tensor, err)
	}

	return nil
}

// leastOverflow is the least magnitude, as bits of a float32, that rounds to an infinity of a type.
func leastOverflow(d safetensors.DType) uint32 {
	switch d {
	case safetensors.F16:
		return math.Float32bits(65520)
	case safetensors.BF16:
		return 0x7f7f8000
	}
	return 0x7f800000
}

// overflow is the first element that overflows although the dense model's and every expert's own are finite; -1: none.
func (ws *Workspace) overflow(list []Weighted, tensor string, d safetensors.DType, lo int64) int {
	bound := leastOverflow(d)
	given := make([]bool, len(ws.acc)) // not finite, whatever the weights
	note := func(i int64, v float32) {
		if v-v != 0 {
			given[i] = true
		}
	}

	for i, v := range ws.dense {
		note(int64(i), v)
	}

	for _, e := range list {
		p := e.Part(tensor)
		switch {
		case p == nil || e.Weight == 0:
		case p.dense():
			p.differences(ws.own, lo)
			for i, v := range ws.own {
				note(int64(i), v)
			}
		default:
			p.each(lo, lo+int64(len(ws.acc)), func(i, k int64) { note(i-lo, p.value(k)) })
		}
	}

	for i, v := range ws.acc {
		if !given[i] && math.Float32bits(v)&math.MaxInt32 >= bound {
			return i
		}
	}

	return -1
}

// sum leaves the effective weights of a part in acc, and what somebody keeps in hit; all reports that this is
// everything.
func (ws *Workspace) sum(list []Weighted, tensor string, d safetensors.DType, dense []byte,
	lo, hi int64,
) (all bool, err error) {
	width := int64(d.Bits() / 8)
	if err := ws.load(dense[lo*width:hi*width], d, hi-lo); err != nil {
		return false, err
	}

	for _, e := range list {
		if p := e.Part(tensor); p != nil && e.Weight != 0 {
			ws.add(p, lo, hi, float32(e.Weight))
			all = all || p.dense() || p.Encoding == Full
		}
	}

	vec.Add(ws.acc, ws.acc, ws.dense, 1)
	return all, nil
}

// alone is the part of the only expert of weight 1, if its values are stored as they are; nil otherwise.
func alone(list []Weighted, tensor string) *Stored {
	var one *Stored
	for _, e := range list {
		p := e.Part(tensor)
		switch {
		case e.Weight == 0 || p == nil && e.Weight != 1:
			continue
		case one != nil || e.Weight != 1 || p == nil || p.Delta || p.dense():
			return nil
		}

		one = p
	}

	return one
}

// load widens the dense elements of a chunk and clears the rest.
func (ws *Workspace) load(dense []byte, d safetensors.DType, n int64) error {
	if int64(cap(ws.dense)) < n {
		ws.dense = make([]float32, Chunk)
		ws.acc = make([]float32, Chunk)
		ws.own = make([]float32, Chunk)
		ws.hit = make([]bool, Chunk)
	}

	ws.dense = ws.dense[:n]
	ws.acc = ws.acc[:n]
	ws.own = ws.own[:n]
	ws.hit = ws.hit[:n]

	clear(ws.acc)
	clear(ws.hit)
	src, err := stream.NewMapped(dense, d, 0, nil)
	if err != nil {
		return err
	}

	return src.Read(ws.dense, 0)
}

// add adds what an expert of a weight changes.
func (ws *Workspace) add(p *Stored, lo, hi int64, weight float32) {
	if p.dense() {
		p.differences(ws.own, lo)
		vec.Add(ws.acc, ws.acc, ws.own, weight)
		for i := range ws.hit {
			ws.hit[i] = true
		}
		return
	}

	p.each(lo, hi, func(i, k int64) {
		d := p.value(k)
		if !p.Delta {
			d -= ws.dense[i-lo]
		}
		ws.acc[i-lo] += weight * d
		ws.hit[i-lo] = true
	})
}

// Apart is ‖a - b‖² of two tensors of one type.
func Apart(d safetensors.DType, a, b []byte) (float64, error) {
	x, err := stream.NewMapped(a, d, 0, nil)
	if err != nil {
		return 0, err
	}

	y, err := stream.NewMapped(b, d, 0, nil)
	if err != nil {
		return 0, err
	}

	// Converted piece by piece: a float32 copy of two whole tensors would be as large as the model's largest four
	// times.
	const step = 4096
	var p, q [step]float32
	sum, n := 0.0, len(a)/(d.Bits()/8)
	for first := 0; first < n; first += step {
		k := min(step, n-first)
		if err := errors.Join(x.Read(p[:k], int64(first)), y.Read(q[:k], int64(first))); err != nil {
			return 0, err
		}
		vec.Sub(p[:k], p[:k], q[:k])
		sum += vec.Dot(p[:k], p[:k])
	}

	return sum, nil
}

// Widen reads the elements of a tensor's bytes.
func Widen(dst []float32, data []byte, d safetensors.DType) error {
	src, err := stream.NewMapped(data, d, 0, nil)
	if err != nil {
		return err
	}
	return src.Read(dst, 0)
}
