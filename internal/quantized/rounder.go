package quantized

import (
	"github.com/modelcompress/compress/safetensors"
)

// Rounder gives elements their codes and the values of these, as [Numbers.Code] or [Numbers.CodeRounded] and
// [Numbers.Value] do, with all that does not depend on the element found out before.
type Rounder struct {
	numbers   Numbers
	low, high float32
	typed     bool // quotients are rounded to the type of the elements
}

// Rounder makes a rounder. typed says that the elements are numbers of the type, so that their quotients are rounded to
// it too, as compressed-tensors does.
func (n Numbers) Rounder(typed bool) Rounder {
	r := Rounder{numbers: n, typed: typed && n.DType != safetensors.F32} // all of these are float32 anyway
	r.low, r.high = n.limits()
	return r
}

// One rounds an element.
func (r *Rounder) One(w, scale float32, zero int) (code byte, value float32) {
	q := w / scale
	if r.typed {
		q = r.numbers.round(q)
	}
	if zero != 0 { // adding 0 would take the sign from a -0, which floats keep
		q += float32(zero)
		if r.typed {
			q = r.numbers.round(q)
		}
	}
	q = min(max(q, r.low), r.high)
	if r.numbers.Float {
		code = r.float(q)
		return code, r.numbers.Value(code, scale, 0)
	}
	whole := nearest(q)
	return byte(whole), float32(int(whole)-zero) * scale
}

// float is the code of a quotient within the limits.
func (r *Rounder) float(q float32) byte {
	if r.numbers.Bits == 8 {
		return toE4M3(q)
	}
	return toE2M1(q)
}

// Row rounds elements, each group of so many by its scale and its zero point, which is 0 for symmetric numbers; the
// last group may be shorter. It writes their codes, and over them the values of these.
func (r *Rounder) Row(code []byte, x, scale, zero []float32, group int) {
	if n := len(x) / group; group%16 == 0 && n > 0 {
		r.groups(code[:n*group], x[:n*group], scale[:n], zero[:n], group)
		code, x = code[n*group:], x[n*group:]
		scale, zero = scale[n:], zero[n:]
	}

	// The loops take groups of whole vectors.
	for g := 0; len(x) > 0; g++ {
		size := min(group, len(x))
		n := size / 16 * 16
		if n > 0 {
			r.groups(code[:n], x[:n], scale[g:][:1], zero[g:][:1], n)
		}
		for i, v := range x[n:size] {
			code[n+i], x[n+i] = r.One(v, scale[g], int(zero[g]))
		}
		code, x = code[size:], x[size:]
	}
}

// groups is Row for whole groups of a multiple of 16.
func (r *Rounder) groups(code []byte, x, scale, zero []float32, group int) {
	n := r.numbers
	fastest.quotients(x, scale, group)
	if r.typed {
		round(x, n.DType)
	}
	if n.Float {
		for i, q := range x {
			code[i] = r.float(min(max(q, r.low), r.high))
			x[i] = n.Value(code[i], scale[i/group], 0)
		}
		return
	}

	if !n.Symmetric {
		for i := range x {
			x[i] += zero[i/group]
		}
		if r.typed {
			round(x, n.DType)
		}
	}
	fastest.wholes(code, x, scale, zero, group, r.low, r.high)
}

// Extents finds the least and the largest of each group of elements and 0; the last group may be shorter.
func Extents(low, high, x []float32, group int) {
	n := 0
	if group%16 == 0 {
		n = len(x) / group
	}
	if n > 0 {
		fastest.extents(low, high, x[:n*group], group)
	}
	for g := n; g*group < len(x); g++ {
		low[g], high[g] = extent(x[g*group : min((g+1)*group, len(x))])
	}
}

// extent is the least and the largest of elements and 0.
func extent(x []float32) (low, high float32) {
	for _, v := range x {
		low = min(low, v)
		high = max(high, v)
	}
	return low, high
}
