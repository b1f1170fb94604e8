package main

// writePeak writes the two kernels that measure the machine, arithmetic without memory and reading without
// arithmetic, and the question who made it.
func writePeak(f *file) {
	f.doc(`func vendorID() (b, d, c uint32)

The processor's vendor: the registers BX, DX and CX after CPUID with AX = 0.`)
	f.raw("TEXT ·vendorID(SB), NOSPLIT, $0-12")
	f.op("XORL AX, AX")
	f.op("XORL CX, CX")
	f.op("CPUID")
	f.op("MOVL BX, b+0(FP)")
	f.op("MOVL DX, d+4(FP)")
	f.op("MOVL CX, c+8(FP)")
	f.op("RET")

	for _, p := range []struct {
		name, reg, zero string
		accs            int
	}{{"peakFMAAVX512", "Z", "VPXORQ", 24}, {"peakFMAAVX2", "Y", "VPXOR", 12}} {
		f.doc(`func %s(n int)

n rounds of %d independent fused multiply-adds.`, p.name, p.accs)
		f.raw("TEXT ·" + p.name + "(SB), NOSPLIT, $0-8")
		f.op("MOVQ n+0(FP), CX")
		for r := range p.accs + 1 {
			f.op("%s %s%d, %s%d, %s%d", p.zero, p.reg, r, p.reg, r, p.reg, r)
		}

		f.label("loop")
		for r := range p.accs {
			f.op("VFMADD231PS %s%d, %s%d, %s%d", p.reg, p.accs, p.reg, p.accs, p.reg, r)
		}

		f.op("DECQ CX")
		f.op("JNZ loop")
		f.op("VZEROUPPER")
		f.op("RET")
	}

	writePeakBytes(f)

	f.doc(`func readStreamAVX2(p *byte, n int) uint64

Reads n bytes, a multiple of 1024 greater than 0, as four streams a quarter apart, and returns a value that depends on them.`)
	f.raw("TEXT ·readStreamAVX2(SB), NOSPLIT, $0-24")
	f.op("MOVQ p+0(FP), R8")
	f.op("MOVQ n+8(FP), CX")
	f.op("SHRQ $2, CX")

	rows := []string{"R8", "R9", "R10", "R11"}
	for i := 1; i < 4; i++ {
		f.op("LEAQ (%s)(CX*1), %s", rows[i-1], rows[i])
	}
	for r := range 8 {
		f.op("VPXOR Y%d, Y%d, Y%d", r, r, r)
	}

	f.label("loop")

	for i, r := range rows {
		f.op("PREFETCHT0 2048(%s)", r)
		f.op("VPXOR (%s), Y%d, Y%d", r, 2*i, 2*i)
		f.op("VPXOR 32(%s), Y%d, Y%d", r, 2*i+1, 2*i+1)
		f.op("ADDQ $64, %s", r)
	}

	f.op("SUBQ $64, CX")
	f.op("JNZ loop")
	for r := 1; r < 8; r++ {
		f.op("VPXOR Y%d, Y0, Y0", r)
	}

	f.op("VMOVQ X0, AX")
	f.op("MOVQ AX, ret+16(FP)")
	f.op("VZEROUPPER")
	f.op("RET")
}

// writePeakBytes writes the loops that only multiply bytes and add.
func writePeakBytes(f *file) {
	f.doc(`func peakVNNIAVX512(n int)

n rounds of 24 independent sums of products of bytes.`)
	f.raw("TEXT ·peakVNNIAVX512(SB), NOSPLIT, $0-8")
	f.op("MOVQ n+0(FP), CX")
	for r := range 25 {
		f.op("VPXORQ Z%d, Z%d, Z%d", r, r, r)
	}
	f.label("loop")
	for r := range 24 {
		f.op("VPDPBUSD Z24, Z24, Z%d", r)
	}
	f.op("DECQ CX")
	f.op("JNZ loop")
	f.op("VZEROUPPER")
	f.op("RET")

	f.doc(`func peakAVXVNNI(n int)

n rounds of 12 independent sums of products of bytes.`)
	f.raw("TEXT ·peakAVXVNNI(SB), NOSPLIT, $0-8")
	f.op("MOVQ n+0(FP), CX")
	for r := range 13 {
		f.op("VPXOR Y%d, Y%d, Y%d", r, r, r)
	}
	f.label("loop")
	for r := range 12 {
		f.bytes(vpdpbusd(r, 12, 12), "VPDPBUSD Y12, Y12, Y%d", r)
	}
	f.op("DECQ CX")
	f.op("JNZ loop")
	f.op("VZEROUPPER")
	f.op("RET")
}
