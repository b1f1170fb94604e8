package quantized

import "os"

// loops are the loops over a chunk of one instruction set. They give the same bits in every version.
type loops struct {
	// scale computes dst[i] = mul[i/group]·q[i] for int8 q; group is 16 or a multiple of it, and divides len(dst).
	scale func(dst []float32, q []byte, mul []float32, group int)
	// affine computes dst[i] = mul[i/group]·q[i] - sub[i/group], both operations rounded.
	affine func(dst []float32, q []byte, mul, sub []float32, group int)
	// translate replaces q[i], 0 to 15, by table[q[i]].
	translate func(q []byte, table *[16]int8)
}

// fastest is what this process uses: the variable COMPRESS_CPU_DISABLE, a list of avx2 and avx512, switches off.
var fastest = choose(os.Getenv("COMPRESS_CPU_DISABLE"))

// portable is plain Go.
var portable = loops{scale: scalePortable, affine: affinePortable, translate: translatePortable}

func scalePortable(dst []float32, q []byte, mul []float32, group int) {
	for g := 0; len(dst) > 0; g++ {
		d := mul[g]
		out := dst[:group]
		for i, v := range q[:len(out)] {
			out[i] = d * float32(int8(v))
		}
		dst = dst[group:]
		q = q[group:]
	}
}

func affinePortable(dst []float32, q []byte, mul, sub []float32, group int) {
	for g := 0; len(dst) > 0; g++ {
		d := mul[g]
		m := sub[g]
		out := dst[:group]
		for i, v := range q[:len(out)] {
			out[i] = float32(d*float32(int8(v))) - m // the conversion keeps compilers from fusing the two
		}
		dst = dst[group:]
		q = q[group:]
	}
}

func translatePortable(q []byte, table *[16]int8) {
	for i, v := range q {
		q[i] = byte(table[v&15])
	}
}
