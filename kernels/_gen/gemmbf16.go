package main

// writeGemmBF16 writes the micro-kernel of VDPBF16PS and the conversions to bfloat16 that feed it and AMX.
func writeGemmBF16(f *file) {
	t := tileShape{rows: 12, vecs: 2, lanes: 16, reg: "Z"}
	writeTile(f, "gemmPairAVX512", "pair of bfloat16", t, func(i int) {
		b := t.rows * t.vecs
		tmp := b + t.vecs + i%4
		f.op("VBROADCASTSS %d(R13), Z%d", i*4, tmp)
		for v := range t.vecs {
			f.bytes(dpbf16(t.acc(i, v), b+v, tmp), "VDPBF16PS Z%d, Z%d, Z%d", tmp, b+v, t.acc(i, v))
		}
	})

	writeSplit(f)
}

// writeSplit writes splitBF16AVX512: x = part 0 + part 1 + part 2, each rounded to nearest even.
func writeSplit(f *file) {
	f.doc(`func splitBF16AVX512(s *splitArgs)

for n blocks of 32 floats of src: part 0 is src as bfloat16, part 1 what part 0 leaves over, part 2 what both leave over,
as many parts as s.parts says; block i of part p goes to dst + i·s.step + p·s.part. Parts below 2^-126 become zero.
s.peak becomes the largest of its old value and the bits of every |src|. It assumes that s.n > 0 and 1 ≤ s.parts ≤ 3.`)

	f.raw("TEXT ·splitBF16AVX512(SB), NOSPLIT, $0-8")
	f.op("MOVQ s+0(FP), DI")
	for i, r := range []string{"AX", "DX", "CX", "SI", "R8", "R9"} { // dst, src, n, step, part, parts
		f.op("MOVQ %d(DI), %s", i*8, r)
	}

	f.op("VPTERNLOGD $255, Z31, Z31, Z31")
	f.op("VPSRLD $1, Z31, Z31")
	f.op("VPBROADCASTD 48(DI), Z30")
	f.label("block")
	f.op("VMOVUPS (DX), Z0")
	f.op("VMOVUPS 64(DX), Z1")
	f.op("VPANDD Z31, Z0, Z5")
	f.op("VPANDD Z31, Z1, Z6")
	f.op("VPMAXUD Z5, Z30, Z30")
	f.op("VPMAXUD Z6, Z30, Z30")
	f.op("MOVQ AX, BX")
	f.op("MOVQ R9, R11")
	f.label("part")
	f.bytes(cvtne2(2, 1, 0), "VCVTNE2PS2BF16 Z0, Z1, Z2")
	f.op("VMOVDQU64 Z2, (BX)")
	f.op("DECQ R11")
	f.op("JZ next")
	f.op("VPMOVZXWD Y2, Z3")
	f.op("VPSLLD $16, Z3, Z3")
	f.op("VEXTRACTI64X4 $1, Z2, Y4")
	f.op("VPMOVZXWD Y4, Z4")
	f.op("VPSLLD $16, Z4, Z4")
	f.op("VSUBPS Z3, Z0, Z0")
	f.op("VSUBPS Z4, Z1, Z1")
	f.op("ADDQ R8, BX")
	f.op("JMP part")
	f.label("next")
	f.op("ADDQ SI, AX")
	f.op("ADDQ $128, DX")
	f.op("DECQ CX")
	f.op("JNZ block")
	reducePeak(f, 48)
}
