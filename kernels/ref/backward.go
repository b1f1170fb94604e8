package ref

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// rmsNormBackward computes
//
//	for i {
//		r = 1 / sqrt(Σ_j x[i,j]² / c + eps)
//		m = Σ_j dy[i,j]·w[j]·x[i,j] / c                      // (1 + w[j]) with plusOne, here and below
//		for j {
//			dx[i,j] += r·(dy[i,j]·w[j] - x[i,j]·r²·m)
//			dw[j] += dy[i,j]·x[i,j]·r
//		}
//	}
func rmsNormBackward(dx, dw, dy, x, w kernels.Mat, eps float32, plusOne bool) {
	need(sameShape(x, dx, dy) && w.Rows == 1 && w.Cols == x.Cols, "ref: RMSNormBackward: shapes do not agree")
	need(dw.IsZero() || sameShape(w, dw), "ref: RMSNormBackward: dw is not shaped like the weight")

	wr, sum := wide64(w, plusOne), make([]float64, x.Cols)
	for i := range x.Rows {
		xr := x.RowF32(i)
		g := dy.RowF32(i)
		d := dx.RowF32(i)

		square, mean := 0.0, 0.0
		for j, v := range xr {
			square += float64(v) * float64(v)
			mean += float64(g[j]) * wr[j] * float64(v)
		}

		r := 1 / math.Sqrt(square/float64(x.Cols)+float64(eps))
		mean /= float64(x.Cols)
		for j, v := range xr {
			d[j] = float32(float64(d[j]) + r*(float64(g[j])*wr[j]-float64(v)*r*r*mean))
			sum[j] += float64(g[j]) * float64(v) * r
		}
	}

	addRow(dw, sum)
	dx.Buf.Changed()
}

// layerNormBackward computes
//
//	for i {
//		mean = Σ_j x[i,j] / c
//		r = 1 / sqrt(Σ_j (x[i,j] - mean)² / c + eps)
//		n[j] = (x[i,j] - mean)·r, g[j] = dy[i,j]·w[j]
//		a = Σ_j g[j] / c, b = Σ_j g[j]·n[j] / c
//		for j {
//			dx[i,j] += r·(g[j] - a - n[j]·b)
//			dw[j] += dy[i,j]·n[j]
//			db[j] += dy[i,j]
//		}
//	}
func layerNormBackward(dx, dw, db, dy, x, w kernels.Mat, eps float32) {
	need(sameShape(x, dx, dy) && w.Rows == 1 && w.Cols == x.Cols, "ref: LayerNormBackward: shapes do not agree")
	need(dw.IsZero() || sameShape(w, dw), "ref: LayerNormBackward: dw is not shaped like the weight")
	need(db.IsZero() || sameShape(w, db), "ref: LayerNormBackward: db is not shaped like the weight")

	wr := wide64(w, false)
	wSum := make([]float64, x.Cols)
	bSum := make([]float64, x.Cols)
	for i := range x.Rows {
		xr := x.RowF32(i)
		dyr := dy.RowF32(i)
		d := dx.RowF32(i)

		mean, variance := moments(xr)
		r := 1 / math.Sqrt(variance+float64(eps))
		a, b := 0.0, 0.0
		for j, v := range xr {
			g := float64(dyr[j]) * wr[j]
			a += g / float64(x.Cols)
			b += g * (float64(v) - mean) * r / float64(x.Cols)
		}

		for j, v := range xr {
			n := (float64(v) - mean) * r
			d[j] = float32(float64(d[j]) + r*(float64(dyr[j])*wr[j]-a-n*b))
			wSum[j] += float64(dyr[j]) * n
			bSum[j] += float64(dyr[j])
		}
	}

	addRow(dw, wSum)
	addRow(db, bSum)
	dx.Buf.Changed()
}

// wide64 is a weight [1,c] in float64, plus 1 if plusOne.
func wide64(w kernels.Mat, plusOne bool) []float64 {
	wide := make([]float64, w.Cols)
	for j, v := range row(w, 0) {
		wide[j] = float64(v)
		if plusOne {
			wide[j]++
		}
	}
	return wide
}

// addRow adds sum to dst [1,c], which may be absent.
func addRow(dst kernels.Mat, sum []float64) {
	if dst.IsZero() {
		return
	}
	for j, v := range dst.RowF32(0) {
		dst.RowF32(0)[j] = float32(float64(v) + sum[j])
	}
	dst.Buf.Changed()
}

// slope is the derivative of the activation in float64. Where a factor vanishes, so does its product with an
// infinite x: the derivatives have limits.
func slope(f kernels.Activation) func(x float64) float64 {
	times := func(x, vanishing float64) float64 {
		if vanishing == 0 {
			return 0
		}
		return x * vanishing
	}

	switch f {
	case kernels.SiLU:
		return func(x float64) float64 {
			p, q := 1/(1+math.Exp(-x)), 1/(1+math.Exp(x))
			return p + times(x, p*q)
		}
	case kernels.GELU:
		return func(x float64) float64 {
			return 0.5*math.Erfc(-x/math.Sqrt2) + times(x, math.Exp(-x*x/2)/math.Sqrt(2*math.Pi))
		}
	case kernels.GELUTanh:
		return func(x float64) float64 {
			u := math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x)
			p, q := 1/(1+math.Exp(-2*u)), 1/(1+math.Exp(2*u))
			return p + times(2*x*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x), p*q)
		}
	case kernels.ReLU:
		return func(x float64) float64 {
			if x <= 0 {
				return 0
			}
			return 1
		}
	}

	panic("ref: unknown activation")
}

// activateBackward computes
//
//	for i, j { dx[i,j] = dy[i,j] · f'(x[i,j]) }
func activateBackward(dx, dy, x kernels.Mat, f kernels.Activation) {
	need(sameShape(dx, dy, x), "ref: ActivateBackward: shapes do not agree")
	fn := slope(f)
	for i := range x.Rows {
		d, g := dx.RowF32(i), dy.RowF32(i)
		for j, v := range x.RowF32(i) {
			d[j] = float32(float64(g[j]) * fn(float64(v)))
		}
	}
	dx.Buf.Changed()
}

// gateBackward computes
//
//	for i, j { dgate[i,j], dup[i,j] = dy[i,j]·up[i,j]·f'(gate[i,j]), dy[i,j]·f(gate[i,j]) }
func gateBackward(dgate, dup, dy, gate, up kernels.Mat, f kernels.Activation) {
	need(sameShape(dgate, dup, dy, gate, up), "ref: GateBackward: shapes do not agree")
	fn, fs := function(f), slope(f)
	for i := range dy.Rows {
		dg := dgate.RowF32(i)
		du := dup.RowF32(i)
		g := gate.RowF32(i)
		u := up.RowF32(i)
		for j, v := range dy.RowF32(i) {
			a, b := float64(v)*float64(u[j])*fs(float64(g[j])), float64(v)*fn(float64(g[j]))
			dg[j], du[j] = float32(a), float32(b)
		}
	}

	dgate.Buf.Changed()
	dup.Buf.Changed()
}

// softcapBackward computes
//
//	for i, j { dx[i,j] = dy[i,j] · (1 - (y[i,j] / cap)²) }
func softcapBackward(dx, dy, y kernels.Mat, cap float32) {
	need(sameShape(dx, dy, y), "ref: SoftcapBackward: shapes do not agree")
	need(cap != 0, "ref: SoftcapBackward: cap is 0")

	for i := range y.Rows {
		d, g := dx.RowF32(i), dy.RowF32(i)
		for j, v := range y.RowF32(i) {
			t := float64(v) / float64(cap)
			d[j] = float32(float64(g[j]) * (1 - t*t))
		}
	}

	dx.Buf.Changed()
}

// softmaxBackward computes
//
//	for i, j { dx[i,j] = y[i,j] · (dy[i,j] - Σ_l dy[i,l]·y[i,l]) }
func softmaxBackward(dx, dy, y kernels.Mat) {
	need(sameShape(dx, dy, y), "ref: SoftmaxBackward: shapes do not agree")

	for i := range y.Rows {
		d := dx.RowF32(i)
		g := dy.RowF32(i)
		p := y.RowF32(i)
		sum := dot(g, p)
		for j, v := range p {
			d[j] = float32(float64(v) * (float64(g[j]) - sum))
		}
	}

	dx.Buf.Changed()
}

// crossEntropyBackward computes crossEntropy, if loss is present, and
//
//	for i, j { dlogits[i,j] = scale · (softmax(logits[i])[j] - (j == labels[i])) }    // 0 if labels[i] < 0
func crossEntropyBackward(dlogits, loss, logits kernels.Mat, labels []int32, scale float32) {
	need(sameShape(dlogits, logits) && len(labels) == logits.Rows, "ref: CrossEntropyBackward: shapes do not agree")
	for _, label := range labels {
		need(int(label) < logits.Cols, "ref: CrossEntropyBackward: label outside the row")
	}
	if !loss.IsZero() {
		crossEntropy(loss, logits, labels)
	}

	p := make([]float64, logits.Cols)
	for i, label := range labels {
		if label < 0 {
			clear(dlogits.RowF32(i))
			continue
		}

		for j, v := range logits.RowF32(i) {
			p[j] = float64(v)
		}

		softmax64(p)
		p[label]--
		for j, v := range p {
			dlogits.RowF32(i)[j] = float32(float64(scale) * v)
		}
	}

	dlogits.Buf.Changed()
}

// gatherBackward computes
//
//	for i, j { dtable[ids[i],j] += scale · dy[i,j] }
func gatherBackward(dtable, dy kernels.Mat, ids []int32, scale float32) {
	need(dy.Rows == len(ids) && dy.Cols == dtable.Cols, "ref: GatherBackward: shapes do not agree")
	sums := map[int32][]float64{}
	for i, id := range ids {
		need(id >= 0 && int(id) < dtable.Rows, "ref: GatherBackward: row id outside dtable")
		if sums[id] == nil {
			sums[id] = make([]float64, dy.Cols)
		}
		for j, v := range dy.RowF32(i) {
			sums[id][j] += float64(scale) * float64(v)
		}
	}

	for id, sum := range sums {
		addRow(dtable.RowRange(int(id), int(id)+1), sum)
	}

	dtable.Buf.Changed()
}

// colSum computes
//
//	for i, j { acc[j] += x[i,j] }
func colSum(acc, x kernels.Mat) {
	need(acc.Rows == 1 && acc.Cols == x.Cols, "ref: ColSum: shapes do not agree")
	sum := make([]float64, x.Cols)
	for i := range x.Rows {
		for j, v := range x.RowF32(i) {
			sum[j] += float64(v)
		}
	}

	for j, v := range sum {
		put(acc.Buf, acc.Off+j, get(acc.Buf, acc.Off+j)+v)
	}

	acc.Buf.Changed()
}

// addSquare computes
//
//	for i, j { acc[i,j] += (scale · x[i,j])² }
func addSquare(acc, x kernels.Mat, scale float32) {
	need(sameShape(acc, x), "ref: AddSquare: shapes do not agree")
	for i := range x.Rows {
		a := acc.RowF32(i)
		for j, v := range x.RowF32(i) {
			s := float64(scale) * float64(v)
			a[j] = float32(float64(a[j]) + s*s)
		}
	}
	acc.Buf.Changed()
}
