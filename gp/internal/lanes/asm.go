//go:build (amd64 || arm64) && !noasm

package lanes

import "math"

func plusAbs(acc, x float64) float64 { return acc + math.Abs(x) }
func plusSq(acc, x float64) float64  { return acc + x*x }

// whole is the part of n that the assembly takes.
func whole(n int) int { return n / width * width }

// padded runs a loop, and what is left at the end through a padded copy.
func padded(f func(dst, x *float32, n int)) func(dst, x []float32) {
	return func(dst, x []float32) {
		n := whole(len(dst))
		if n > 0 {
			f(&dst[0], &x[0], n)
		}

		if n < len(dst) {
			var in, out [width]float32
			copy(in[:], x[n:len(dst)])
			f(&out[0], &in[0], width)
			copy(dst[n:], out[:])
		}
	}
}

func paddedAffine(f func(dst, x *float32, n int, sub, div float32)) func(dst, x []float32, sub, div float32) {
	return func(dst, x []float32, sub, div float32) {
		n := whole(len(dst))
		if n > 0 {
			f(&dst[0], &x[0], n, sub, div)
		}

		if n < len(dst) {
			var in, out [width]float32
			copy(in[:], x[n:len(dst)])
			f(&out[0], &in[0], width, sub, div)
			copy(dst[n:], out[:])
		}
	}
}

func paddedPairs(f func(dst, x, y *float32, n int)) func(dst, x, y []float32) {
	return func(dst, x, y []float32) {
		n := whole(len(dst))
		if n > 0 {
			f(&dst[0], &x[0], &y[0], n)
		}

		if n < len(dst) {
			var a, b, out [width]float32
			copy(a[:], x[n:len(dst)])
			copy(b[:], y[n:len(dst)])
			f(&out[0], &a[0], &b[0], width)
			copy(dst[n:], out[:])
		}
	}
}

func paddedWiden(f func(dst *float32, x *uint16, n int, mask uint16)) func(dst []float32, x []uint16, mask uint16) {
	return func(dst []float32, x []uint16, mask uint16) {
		n := whole(len(dst))
		if n > 0 {
			f(&dst[0], &x[0], n, mask)
		}

		if n < len(dst) {
			var in [width]uint16
			var out [width]float32
			copy(in[:], x[n:len(dst)])
			f(&out[0], &in[0], width, mask)
			copy(dst[n:], out[:])
		}
	}
}

// laned sums in 32 lanes and adds the rest one by one, as the portable loop does.
func laned(f func(lane *[width]float64, x *float32, n int),
	add func(acc, x float64) float64,
) func(x []float32) float64 {
	return func(x []float32) float64 {
		var lane [width]float64
		n := whole(len(x))
		if n > 0 {
			f(&lane, &x[0], n)
		}
		return tail(fold(&lane), x[n:], add)
	}
}

func lanedMoments(f func(sum, sq *[width]float64, x *float32, n int, c float64)) func(x []float32) Moments {
	return func(x []float32) Moments {
		var sum, sq [width]float64
		n := whole(len(x))
		if n > 0 {
			f(&sum, &sq, &x[0], n, float64(x[0]))
		}
		return momentsTail(&sum, &sq, x, n)
	}
}

func columns(f func(acc *float64, x *float32, n int),
	rest func(acc []float64, x []float32),
) func(acc []float64, x []float32) {
	return func(acc []float64, x []float32) {
		n := whole(len(acc))
		if n > 0 {
			f(&acc[0], &x[0], n)
		}
		rest(acc[n:], x[n:])
	}
}

func folded(f func(lo, hi *[16]float32, nan *[16]uint32, x *float32,
	n int),
) func(x []float32) (lo, hi float32, nan bool) {
	return func(x []float32) (lo, hi float32, nan bool) {
		n := whole(len(x))
		lo, hi, nan = extremes(x[n:])
		if n == 0 {
			return lo, hi, nan
		}

		var los, his [16]float32
		var nans [16]uint32
		copy(los[:], x)
		copy(his[:], x)
		f(&los, &his, &nans, &x[0], n)
		for i := range los {
			lo, hi, nan = min(lo, los[i]), max(hi, his[i]), nan || nans[i] != 0
		}

		return lo, hi, nan
	}
}

func allFinite(f func(bad *[16]uint32, x *float32, n int)) func(x []float32) bool {
	return func(x []float32) bool {
		var bad [16]uint32
		n := whole(len(x))
		if n > 0 {
			f(&bad, &x[0], n)
		}

		for _, b := range bad {
			if b<<1 != 0 {
				return false
			}
		}

		return portable.Finite(x[n:])
	}
}
