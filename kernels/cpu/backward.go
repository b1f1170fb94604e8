package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// backward holds the gradients of the operations around the matrix products: the tools of layers, and vector
// loops of its own.
type backward struct {
	*layers
	g     *gradLoops
	space int // elements of scratch of attention, about
}

// gradLoops is the table of vector loops of gradients. Slices of one call have equal lengths unless said otherwise; a
// destination may be one of the operands.
type gradLoops struct {
	act     [kernels.ReLU + 1]func(dx, dy, x []float32)        // dx = dy · f'(x)
	gate    [kernels.ReLU + 1]func(dg, du, dy, g, u []float32) // dg, du = dy · u · f'(g), dy · f(g)
	softcap func(dx, dy, y []float32, r float32)               // dx = dy · (1 - (y·r)²)
	softmax func(dx, dy, y []float32, sum float32)             // dx = y · (dy - sum)
	dot     func(x, y []float32) float64                       // Σ x · y
	square  func(acc, x []float32, scale float32)              // acc += (scale · x)²
	sum     func(acc []float64, x []float32)                   // acc += x
	sumFour func(acc []float64, x []float32, stride int)       // acc[j] += Σ_r x[r·stride + j] for four rows r
	// moments computes out = Σ g, Σ g·n with n = (x - m0 - m1)·r and g = dy·(w + one).
	moments func(out []float64, x, dy, w []float32, m0, m1, r, one float32)
	// norm computes dx += r·(g - a - n·b) and dw += dy·n, with n and g as above.
	norm func(dx, dw, dy, x, w []float32, m0, m1, r, one, a, b float32)

	// lanes has load, tile, mask and store of attention, on every instruction set.
	lanes laneLoops
	// scores turns the scores of rows of lanes.n lanes into weights, and the gradients of the weights into
	// those of the scores: s = exp(s - lse), ds = exp(s - lse)·(ds - delta)·(1 - max(s·r, -1)²), with lse and
	// delta of the row and r = 1 / Softcap or 0. A score of -Inf gives 0 and 0.
	scores func(s, ds, lse, delta []float32, r float32)
}

// backwardOps fills in the gradients of the operations around the matrix products.
func (d *Device) backwardOps(o *kernels.Ops) {
	b := &backward{layers: &layers{d: d, v: vectorLoops(d.isa)}, g: vectorGradLoops(d.isa), space: gradSpace}
	o.RMSNormBackward, o.LayerNormBackward = b.rmsNorm, b.layerNorm
	o.AttentionBackward = b.attention
	o.ActivateBackward = b.activate

	o.GateBackward = b.gate
	o.SoftcapBackward = b.softcap
	o.SoftmaxBackward, o.CrossEntropyBackward = b.softmax, b.crossEntropy
	o.GatherBackward = b.gather
	o.ColSum = b.colSum
	o.AddSquare = b.addSquare
}

// activate computes dx[i,j] = dy[i,j]·f'(x[i,j]).
func (b *backward) activate(dx, dy, x kernels.Mat, f kernels.Activation) {
	must(sameShape(dx, dy) && sameShape(dx, x), "cpu: ActivateBackward: shapes do not agree")
	must(f >= kernels.SiLU && f <= kernels.ReLU, "cpu: unknown activation")
	b.pieces(x.Rows, x.Cols, dx.Dense() && dy.Dense() && x.Dense(), func(i, lo, hi int) {
		b.g.act[f](span(dx, i, lo, hi), span(dy, i, lo, hi), span(x, i, lo, hi))
	})
	dx.Buf.Changed()
}

// gate computes dgate[i,j] = dy[i,j]·up[i,j]·f'(gate[i,j]) and dup[i,j] = dy[i,j]·f(gate[i,j]).
func (b *backward) gate(dgate, dup, dy, gate, up kernels.Mat, f kernels.Activation) {
	must(sameShape(dgate, dup) && sameShape(dgate, dy) && sameShape(dgate, gate) && sameShape(dgate, up),
		"cpu: GateBackward: shapes do not agree")
	must(f >= kernels.SiLU && f <= kernels.ReLU, "cpu: unknown activation")
	dense := dgate.Dense() && dup.Dense() && dy.Dense() && gate.Dense() && up.Dense()
	b.pieces(dy.Rows, dy.Cols, dense, func(i, lo, hi int) {
		b.g.gate[f](span(dgate, i, lo, hi), span(dup, i, lo, hi), span(dy, i, lo, hi), span(gate, i, lo, hi),
			span(up, i, lo, hi))
	})

	dgate.Buf.Changed()
	dup.Buf.Changed()
}

// softcap computes dx[i,j] = dy[i,j]·(1 - (y[i,j]/cap)²).
func (b *backward) softcap(dx, dy, y kernels.Mat, cap float32) {
	must(sameShape(dx, dy) && sameShape(dx, y), "cpu: SoftcapBackward: shapes do not agree")
	must(cap != 0, "cpu: SoftcapBackward: cap is 0")
	b.pieces(y.Rows, y.Cols, dx.Dense() && dy.Dense() && y.Dense(), func(i, lo, hi int) {
		b.g.softcap(span(dx, i, lo, hi), span(dy, i, lo, hi), span(y, i, lo, hi), 1/cap)
	})
	dx.Buf.Changed()
}

// softmax computes dx[i,j] = y[i,j]·(dy[i,j] - Σ_l dy[i,l]·y[i,l]).
func (b *backward) softmax(dx, dy, y kernels.Mat) {
	must(sameShape(dx, dy) && sameShape(dx, y), "cpu: SoftmaxBackward: shapes do not agree")
	b.each(y.Rows, y.Len(), func(i int) {
		g, p := dy.RowF32(i), y.RowF32(i)
		b.g.softmax(dx.RowF32(i), g, p, float32(b.g.dot(g, p)))
	})
	dx.Buf.Changed()
}

// crossEntropy computes dlogits[i,j] = scale·(softmax(logits[i])[j] - (j == labels[i])), zeros for a negative
// label, and the loss of the row if loss is present.
func (b *backward) crossEntropy(dlogits, loss, logits kernels.Mat, labels []int32, scale float32) {
	must(sameShape(dlogits, logits) && len(labels) == logits.Rows, "cpu: CrossEntropyBackward: shapes do not agree")
	for _, label := range labels {
		must(int(label) < logits.Cols, "cpu: CrossEntropyBackward: label outside the row")
	}

	var out []float64
	if !loss.IsZero() {
		must(loss.Rows == 1 && loss.Cols == logits.Rows, "cpu: CrossEntropyBackward: loss is not [1, rows]")
		out = loss.Buf.F64()[loss.Off:][:loss.Cols]
		loss.Buf.Changed()
	}

	b.each(logits.Rows, logits.Len(), func(i int) {
		l := b.crossEntropyRow(dlogits.RowF32(i), logits.RowF32(i), labels[i], scale)
		if out != nil {
			out[i] = l
		}
	})

	dlogits.Buf.Changed()
}

// crossEntropyRow writes one row of gradients and returns the loss.
func (b *backward) crossEntropyRow(d, x []float32, label int32, scale float32) float64 {
	if label < 0 {
		clear(d)
		return 0
	}
	top, own := b.v.top(x), float64(x[label])
	sum := b.v.exp(d, x, top)
	d[label] = float32(float64(d[label]) - sum)
	b.v.scale(d, d, float32(float64(scale)/sum))
	return math.Log(sum) + (float64(top) - own)
}

// gatherCols is how many columns of the table a piece of gather covers at least: four cache lines.
const gatherCols = 64

// gather computes dtable[ids[i],j] += scale·dy[i,j]. A piece sums some columns of all rows, in the order of the ids.
func (b *backward) gather(dtable, dy kernels.Mat, ids []int32, scale float32) {
	must(dy.Rows == len(ids) && dy.Cols == dtable.Cols, "cpu: GatherBackward: shapes do not agree")
	for _, id := range ids {
		must(id >= 0 && int(id) < dtable.Rows, "cpu: GatherBackward: row id outside dtable")
	}

	width := max(gatherCols, roundUp(dy.Cols/fewPieces, 16))
	if dy.Len() <= 2*pieceSize {
		width = max(1, dy.Cols)
	}

	b.d.parallel(pieces(dy.Cols, width), func(p int) {
		lo, hi := p*width, min((p+1)*width, dy.Cols)
		for i, id := range ids {
			d := dtable.RowF32(int(id))[lo:hi]
			b.v.add(d, d, dy.RowF32(i)[lo:hi], scale)
		}
	})

	dtable.Buf.Changed()
}

// addSquare computes acc[i,j] += (scale·x[i,j])².
func (b *backward) addSquare(acc, x kernels.Mat, scale float32) {
	must(sameShape(acc, x), "cpu: AddSquare: shapes do not agree")
	b.pieces(x.Rows, x.Cols, acc.Dense() && x.Dense(), func(i, lo, hi int) {
		b.g.square(span(acc, i, lo, hi), span(x, i, lo, hi), scale)
	})
	acc.Buf.Changed()
}
