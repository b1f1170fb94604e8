//go:build !noasm

#include "textflag.h"

// Both kernels add a product of packed panels to a tile of c: c[i][j] += Σ_p a[p][i]·b[p][j]. The offsets are those of
// tileArgs: a, b, c, k, ldc in bytes.

#define ROW512(off, c0, c1, c2) \
	VBROADCASTSD off(SI), Z27 \
	VFMADD231PD  Z24, Z27, c0 \
	VFMADD231PD  Z25, Z27, c1 \
	VFMADD231PD  Z26, Z27, c2

#define STORE512(c0, c1, c2) \
	VADDPD  0(DI), c0, c0    \
	VADDPD  64(DI), c1, c1   \
	VADDPD  128(DI), c2, c2  \
	VMOVUPD c0, 0(DI)        \
	VMOVUPD c1, 64(DI)       \
	VMOVUPD c2, 128(DI)      \
	ADDQ    R8, DI

#define TOUCH512 \
	PREFETCHT0 0(AX)   \
	PREFETCHT0 64(AX)  \
	PREFETCHT0 128(AX) \
	ADDQ       R8, AX

#define ZERO3(c0, c1, c2) \
	VPXORQ c0, c0, c0 \
	VPXORQ c1, c1, c1 \
	VPXORQ c2, c2, c2

// func tileAVX512(t *tileArgs)
//
// A tile has 8 rows and 24 columns.
TEXT ·tileAVX512(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), BX
	MOVQ 0(BX), SI
	MOVQ 8(BX), DX
	MOVQ 16(BX), DI
	MOVQ 24(BX), CX
	MOVQ 32(BX), R8
	MOVQ DI, AX
	TOUCH512
	TOUCH512
	TOUCH512
	TOUCH512
	TOUCH512
	TOUCH512
	TOUCH512
	TOUCH512
	ZERO3(Z0, Z1, Z2)
	ZERO3(Z3, Z4, Z5)
	ZERO3(Z6, Z7, Z8)
	ZERO3(Z9, Z10, Z11)
	ZERO3(Z12, Z13, Z14)
	ZERO3(Z15, Z16, Z17)
	ZERO3(Z18, Z19, Z20)
	ZERO3(Z21, Z22, Z23)

loop512:
	VMOVUPD 0(DX), Z24
	VMOVUPD 64(DX), Z25
	VMOVUPD 128(DX), Z26
	PREFETCHT0 512(SI)
	ROW512(0, Z0, Z1, Z2)
	ROW512(8, Z3, Z4, Z5)
	ROW512(16, Z6, Z7, Z8)
	ROW512(24, Z9, Z10, Z11)
	ROW512(32, Z12, Z13, Z14)
	ROW512(40, Z15, Z16, Z17)
	ROW512(48, Z18, Z19, Z20)
	ROW512(56, Z21, Z22, Z23)
	ADDQ $64, SI
	ADDQ $192, DX
	DECQ CX
	JNZ  loop512
	STORE512(Z0, Z1, Z2)
	STORE512(Z3, Z4, Z5)
	STORE512(Z6, Z7, Z8)
	STORE512(Z9, Z10, Z11)
	STORE512(Z12, Z13, Z14)
	STORE512(Z15, Z16, Z17)
	STORE512(Z18, Z19, Z20)
	STORE512(Z21, Z22, Z23)
	VZEROUPPER
	RET

#define ROW256(off, c0, c1, c2) \
	VBROADCASTSD off(SI), Y15 \
	VFMADD231PD  Y12, Y15, c0 \
	VFMADD231PD  Y13, Y15, c1 \
	VFMADD231PD  Y14, Y15, c2

#define STORE256(c0, c1, c2) \
	VADDPD  0(DI), c0, c0   \
	VADDPD  32(DI), c1, c1  \
	VADDPD  64(DI), c2, c2  \
	VMOVUPD c0, 0(DI)       \
	VMOVUPD c1, 32(DI)      \
	VMOVUPD c2, 64(DI)      \
	ADDQ    R8, DI

#define CLEAR3(c0, c1, c2) \
	VXORPD c0, c0, c0 \
	VXORPD c1, c1, c1 \
	VXORPD c2, c2, c2

// func tileAVX2(t *tileArgs)
//
// A tile has 4 rows and 12 columns.
TEXT ·tileAVX2(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), BX
	MOVQ 0(BX), SI
	MOVQ 8(BX), DX
	MOVQ 16(BX), DI
	MOVQ 24(BX), CX
	MOVQ 32(BX), R8
	CLEAR3(Y0, Y1, Y2)
	CLEAR3(Y3, Y4, Y5)
	CLEAR3(Y6, Y7, Y8)
	CLEAR3(Y9, Y10, Y11)

loop256:
	VMOVUPD 0(DX), Y12
	VMOVUPD 32(DX), Y13
	VMOVUPD 64(DX), Y14
	ROW256(0, Y0, Y1, Y2)
	ROW256(8, Y3, Y4, Y5)
	ROW256(16, Y6, Y7, Y8)
	ROW256(24, Y9, Y10, Y11)
	ADDQ $32, SI
	ADDQ $96, DX
	DECQ CX
	JNZ  loop256
	STORE256(Y0, Y1, Y2)
	STORE256(Y3, Y4, Y5)
	STORE256(Y6, Y7, Y8)
	STORE256(Y9, Y10, Y11)
	VZEROUPPER
	RET

// func dotAVX2(x, y *float64, n int) float64
//
// The sum of x[i]·y[i] for n values, a multiple of 16, in 16 interleaved sums.
TEXT ·dotAVX2(SB), NOSPLIT, $0-32
	MOVQ   x+0(FP), SI
	MOVQ   y+8(FP), DI
	MOVQ   n+16(FP), CX
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	VXORPD Y2, Y2, Y2
	VXORPD Y3, Y3, Y3
	SHRQ   $4, CX
	JZ     sum

dot:
	VMOVUPD     0(SI), Y4
	VMOVUPD     32(SI), Y5
	VMOVUPD     64(SI), Y6
	VMOVUPD     96(SI), Y7
	VFMADD231PD 0(DI), Y4, Y0
	VFMADD231PD 32(DI), Y5, Y1
	VFMADD231PD 64(DI), Y6, Y2
	VFMADD231PD 96(DI), Y7, Y3
	ADDQ        $128, SI
	ADDQ        $128, DI
	DECQ        CX
	JNZ         dot

sum:
	VADDPD       Y1, Y0, Y0
	VADDPD       Y3, Y2, Y2
	VADDPD       Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPD       X1, X0, X0
	VHADDPD      X0, X0, X0
	VMOVSD       X0, ret+24(FP)
	VZEROUPPER
	RET

// func axpyAVX2(y, x *float64, n int, alpha float64)
//
// y[i] += alpha·x[i] for n values, a multiple of 16.
TEXT ·axpyAVX2(SB), NOSPLIT, $0-32
	MOVQ         y+0(FP), DI
	MOVQ         x+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSD alpha+24(FP), Y0
	SHRQ         $4, CX
	JZ           done

axpy:
	VMOVUPD     0(DI), Y1
	VMOVUPD     32(DI), Y2
	VMOVUPD     64(DI), Y3
	VMOVUPD     96(DI), Y4
	VFMADD231PD 0(SI), Y0, Y1
	VFMADD231PD 32(SI), Y0, Y2
	VFMADD231PD 64(SI), Y0, Y3
	VFMADD231PD 96(SI), Y0, Y4
	VMOVUPD     Y1, 0(DI)
	VMOVUPD     Y2, 32(DI)
	VMOVUPD     Y3, 64(DI)
	VMOVUPD     Y4, 96(DI)
	ADDQ        $128, SI
	ADDQ        $128, DI
	DECQ        CX
	JNZ         axpy

done:
	VZEROUPPER
	RET

// func rotateAVX2(x, y *float64, n int, c, s float64)
//
// x[i], y[i] = c·x[i] + s·y[i], c·y[i] - s·x[i] for n values, a multiple of 8.
TEXT ·rotateAVX2(SB), NOSPLIT, $0-40
	MOVQ         x+0(FP), SI
	MOVQ         y+8(FP), DI
	MOVQ         n+16(FP), CX
	VBROADCASTSD c+24(FP), Y0
	VBROADCASTSD s+32(FP), Y1
	SHRQ         $3, CX
	JZ           turned

turn:
	VMOVUPD      0(SI), Y2
	VMOVUPD      32(SI), Y3
	VMOVUPD      0(DI), Y4
	VMOVUPD      32(DI), Y5
	VMULPD       Y2, Y0, Y6
	VMULPD       Y3, Y0, Y7
	VMULPD       Y4, Y0, Y8
	VMULPD       Y5, Y0, Y9
	VFMADD231PD  Y4, Y1, Y6
	VFMADD231PD  Y5, Y1, Y7
	VFNMADD231PD Y2, Y1, Y8
	VFNMADD231PD Y3, Y1, Y9
	VMOVUPD      Y6, 0(SI)
	VMOVUPD      Y7, 32(SI)
	VMOVUPD      Y8, 0(DI)
	VMOVUPD      Y9, 32(DI)
	ADDQ         $64, SI
	ADDQ         $64, DI
	DECQ         CX
	JNZ          turn

turned:
	VZEROUPPER
	RET

// func turnAVX2(dst, src *float64, k, stride, pitch int)
//
// dst[q·pitch+i] = src[i·stride+q] for 4 rows i and k columns q, a multiple of 4; stride and pitch are in bytes.
TEXT ·turnAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ k+16(FP), CX
	MOVQ stride+24(FP), R8
	MOVQ pitch+32(FP), R9
	LEAQ (SI)(R8*2), DX
	SHRQ $2, CX
	JZ   square

rows4:
	VMOVUPD    (SI), Y0
	VMOVUPD    (SI)(R8*1), Y1
	VMOVUPD    (DX), Y2
	VMOVUPD    (DX)(R8*1), Y3
	VUNPCKLPD  Y1, Y0, Y4
	VUNPCKHPD  Y1, Y0, Y5
	VUNPCKLPD  Y3, Y2, Y6
	VUNPCKHPD  Y3, Y2, Y7
	VPERM2F128 $0x20, Y6, Y4, Y0
	VPERM2F128 $0x20, Y7, Y5, Y1
	VPERM2F128 $0x31, Y6, Y4, Y2
	VPERM2F128 $0x31, Y7, Y5, Y3
	VMOVUPD    Y0, (DI)
	ADDQ       R9, DI
	VMOVUPD    Y1, (DI)
	ADDQ       R9, DI
	VMOVUPD    Y2, (DI)
	ADDQ       R9, DI
	VMOVUPD    Y3, (DI)
	ADDQ       R9, DI
	ADDQ       $32, SI
	ADDQ       $32, DX
	DECQ       CX
	JNZ        rows4

square:
	VZEROUPPER
	RET
