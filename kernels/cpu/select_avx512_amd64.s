//go:build amd64 && !noasm

#include "textflag.h"

// AVX-512 bodies (F, BW, DQ, VL) of the loops documented at selectKernels, on whole blocks as selectAsm says.

// KEY turns the score in Z0 into its key: -0 becomes +0, negative floats have their magnitude bits flipped, NaN becomes
// the highest key. It assumes that Z17 is zero and Z18 is 0x7fffffff.
#define KEY \
	VADDPS     Z17, Z0, Z0        \
	VCMPPS     $3, Z0, Z0, K1     \
	VPSRAD     $31, Z0, Z1        \
	VPTERNLOGD $0x78, Z18, Z1, Z0 \
	VMOVDQA32  Z18, K1, Z0

#define LOADF32 VMOVDQU32 (SI), Z0

#define LOADBF16 \
	VPMOVZXWD (SI), Z0 \
	VPSLLD    $16, Z0, Z0

#define LOADF16 VCVTPH2PS (SI), Z0

// KEYS is the body of the three functions that make keys; bytes is the size of 16 elements of x.
#define KEYS(load, bytes) \
	MOVQ         dst+0(FP), DI       \
	MOVQ         x+8(FP), SI         \
	MOVQ         col+16(FP), DX      \
	MOVQ         n+24(FP), CX        \
	MOVL abs+32(FP), AX     \
	VPBROADCASTD AX, Z16     \
	VPXORD       Z17, Z17, Z17       \
	VPTERNLOGD   $0xff, Z18, Z18, Z18 \
	VPSRLD       $1, Z18, Z18        \
	TESTQ        DX, DX              \
	JZ           plain               \
scaled: \
	load                             \
	VPANDD       Z16, Z0, Z0         \
	VMULPS       (DX), Z0, Z0        \
	KEY                              \
	VMOVDQU32    Z0, (DI)            \
	ADDQ         $bytes, SI          \
	ADDQ         $64, DX             \
	ADDQ         $64, DI             \
	SUBQ         $16, CX             \
	JNZ          scaled              \
	VZEROUPPER                       \
	RET                              \
plain: \
	load                             \
	VPANDD       Z16, Z0, Z0         \
	KEY                              \
	VMOVDQU32    Z0, (DI)            \
	ADDQ         $bytes, SI          \
	ADDQ         $64, DI             \
	SUBQ         $16, CX             \
	JNZ          plain               \
	VZEROUPPER                       \
	RET

// func keysF32AVX512(dst *int32, x *float32, col *float32, n int, abs uint32)
TEXT ·keysF32AVX512(SB), NOSPLIT, $0-36
	KEYS(LOADF32, 64)

// func keysBF16AVX512(dst *int32, x *uint16, col *float32, n int, abs uint32)
TEXT ·keysBF16AVX512(SB), NOSPLIT, $0-36
	KEYS(LOADBF16, 32)

// func keysF16AVX512(dst *int32, x *uint16, col *float32, n int, abs uint32)
TEXT ·keysF16AVX512(SB), NOSPLIT, $0-36
	KEYS(LOADF16, 32)

// func withinAVX512(dst, keys *int32, n int, lo, hi int32) (kept, below int)
TEXT ·withinAVX512(SB), NOSPLIT, $0-48
	MOVQ         dst+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         n+16(FP), CX
	MOVL lo+24(FP), AX
	VPBROADCASTD AX, Z16
	MOVL hi+28(FP), AX
	VPBROADCASTD AX, Z17
	XORQ         R8, R8 // keys ≤ hi
	MOVQ         DI, R9

loop:
	VMOVDQU32   (SI), Z0
	VPCMPD      $2, Z17, Z0, K1     // ≤ hi
	VPCMPD      $5, Z16, Z0, K1, K2 // and ≥ lo
	VPCOMPRESSD Z0, K2, Z1
	VMOVDQU32   Z1, (DI)
	KMOVW       K1, AX
	KMOVW       K2, BX
	POPCNTL     AX, AX
	POPCNTL     BX, BX
	ADDQ        AX, R8
	LEAQ        (DI)(BX*4), DI
	ADDQ        $64, SI
	SUBQ        $16, CX
	JNZ         loop

	SUBQ R9, DI
	SHRQ $2, DI
	MOVQ DI, kept+32(FP)
	SUBQ DI, R8
	MOVQ R8, below+40(FP)
	VZEROUPPER
	RET

// func aboveAVX512(mask *uint8, keys *int32, n int, t int32) (equal int)
TEXT ·aboveAVX512(SB), NOSPLIT, $0-40
	MOVQ         mask+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         n+16(FP), CX
	MOVL t+24(FP), AX
	VPBROADCASTD AX, Z16
	MOVL         $1, AX
	VPBROADCASTB AX, X17
	XORQ         R8, R8

loop:
	VMOVDQU32 (SI), Z0
	VPCMPD    $6, Z16, Z0, K1
	VPCMPEQD  Z16, Z0, K2
	VMOVDQU8.Z X17, K1, X1
	VMOVDQU   X1, (DI)
	KMOVW     K2, AX
	POPCNTL   AX, AX
	ADDQ      AX, R8
	ADDQ      $64, SI
	ADDQ      $16, DI
	SUBQ      $16, CX
	JNZ       loop

	MOVQ R8, equal+32(FP)
	VZEROUPPER
	RET

// COUNT adds one to the lanes of count whose key is higher than the key that the rotation in Z8, Z9 pairs it with.
#define COUNT(key, count, tmp, k) \
	VPERMD   key, Z8, tmp      \
	VPADDD   Z9, tmp, tmp      \
	VPCMPGTD tmp, key, k       \
	VPADDD   Z17, count, k, count

// KEEP stores the mask of one vector: 1 where at least n keys are lower.
#define KEEP(count, tmp, k, at) \
	VPCMPD     $5, Z16, count, k  \
	VMOVDQU8.Z X18, k, tmp        \
	VMOVDQU    tmp, at

// func groupsAVX512(mask *uint8, keys *int32, vectors, step, turns int, turn *rotation, n int32, ahead uintptr)
TEXT ·groupsAVX512(SB), NOSPLIT, $0-64
	MOVQ         mask+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         vectors+16(FP), CX
	MOVQ         step+24(FP), DX
	MOVQ         turns+32(FP), R8
	MOVQ         turn+40(FP), R9
	MOVL n+48(FP), AX
	VPBROADCASTD AX, Z16
	MOVL         $1, AX
	VPBROADCASTD AX, Z17
	VPBROADCASTB AX, X18
	LEAQ         (DX)(DX*2), R10
	MOVQ         ahead+56(FP), R13
	SUBQ         $4, CX
	JL           rest

four:
	// Memory works while the groups are ranked: the weights and the mask of the next chunk.
	PREFETCHT0 (R13)
	PREFETCHT0 64(R13)
	PREFETCHT0 128(R13)
	PREFETCHT0 192(R13)
	PREFETCHT0 2048(DI)
	ADDQ       $256, R13
	VMOVDQU32 (SI), Z0
	VMOVDQU32 (SI)(DX*4), Z1
	VMOVDQU32 (SI)(DX*8), Z2
	VMOVDQU32 (SI)(R10*4), Z3
	VPXORD    Z4, Z4, Z4
	VPXORD    Z5, Z5, Z5
	VPXORD    Z6, Z6, Z6
	VPXORD    Z7, Z7, Z7
	MOVQ      R9, R11
	MOVQ      R8, R12

turn4:
	VMOVDQU32 (R11), Z8
	VMOVDQU32 64(R11), Z9
	COUNT(Z0, Z4, Z10, K1)
	COUNT(Z1, Z5, Z11, K2)
	COUNT(Z2, Z6, Z12, K3)
	COUNT(Z3, Z7, Z13, K4)
	ADDQ      $128, R11
	DECQ      R12
	JNZ       turn4

	KEEP(Z4, X10, K1, (DI))
	KEEP(Z5, X11, K2, (DI)(DX*1))
	KEEP(Z6, X12, K3, (DI)(DX*2))
	KEEP(Z7, X13, K4, (DI)(R10*1))
	LEAQ (DI)(DX*4), DI
	LEAQ (SI)(DX*8), SI
	LEAQ (SI)(DX*8), SI
	SUBQ $4, CX
	JGE  four

rest:
	ADDQ $4, CX
	JZ   done

one:
	VMOVDQU32 (SI), Z0
	VPXORD    Z4, Z4, Z4
	MOVQ      R9, R11
	MOVQ      R8, R12

turn:
	VMOVDQU32 (R11), Z8
	VMOVDQU32 64(R11), Z9
	COUNT(Z0, Z4, Z10, K1)
	ADDQ      $128, R11
	DECQ      R12
	JNZ       turn

	KEEP(Z4, X10, K1, (DI))
	ADDQ DX, DI
	LEAQ (SI)(DX*4), SI
	DECQ CX
	JNZ  one

done:
	VZEROUPPER
	RET

// func sumSq1AVX512(acc *float64, x *float32, n int)
TEXT ·sumSq1AVX512(SB), NOSPLIT, $0-24
	MOVQ acc+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VMOVUPD     (DI), Z0
	VCVTPS2PD   (SI), Z1
	VFMADD231PD Z1, Z1, Z0
	VMOVUPD     Z0, (DI)
	ADDQ        $32, SI
	ADDQ        $64, DI
	SUBQ        $8, CX
	JNZ         loop
	VZEROUPPER
	RET

// func sumSq4AVX512(acc *float64, x *float32, n, stride int)
TEXT ·sumSq4AVX512(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ stride+24(FP), DX
	LEAQ (DX)(DX*2), R8

loop:
	VMOVUPD     (DI), Z0
	VCVTPS2PD   (SI), Z1
	VCVTPS2PD   (SI)(DX*4), Z2
	VCVTPS2PD   (SI)(DX*8), Z3
	VCVTPS2PD   (SI)(R8*4), Z4
	VFMADD231PD Z1, Z1, Z0
	VFMADD231PD Z2, Z2, Z0
	VFMADD231PD Z3, Z3, Z0
	VFMADD231PD Z4, Z4, Z0
	VMOVUPD     Z0, (DI)
	ADDQ        $32, SI
	ADDQ        $64, DI
	SUBQ        $8, CX
	JNZ         loop
	VZEROUPPER
	RET

// func zero32AVX512(w *float32, mask *uint8, n int)
TEXT ·zero32AVX512(SB), NOSPLIT, $0-24
	MOVQ w+0(FP), DI
	MOVQ mask+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VMOVDQU     (SI), X0
	VPTESTMB    X0, X0, K1
	VMOVDQU32.Z (DI), K1, Z1
	VMOVDQU32   Z1, (DI)
	ADDQ        $16, SI
	ADDQ        $64, DI
	SUBQ        $16, CX
	JNZ         loop
	VZEROUPPER
	RET

// func zero16AVX512(w *uint16, mask *uint8, n int)
TEXT ·zero16AVX512(SB), NOSPLIT, $0-24
	MOVQ w+0(FP), DI
	MOVQ mask+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VMOVDQU     (SI), Y0
	VPTESTMB    Y0, Y0, K1
	VMOVDQU16.Z (DI), K1, Z1
	VMOVDQU16   Z1, (DI)
	ADDQ        $32, SI
	ADDQ        $64, DI
	SUBQ        $32, CX
	JNZ         loop
	VZEROUPPER
	RET

// The finite functions return where the first block with a hit starts, or n. Bits of the exponent that are missing are
// ~x & inf; a hit misses none.

// func finite32AVX512(x *float32, n int) int
TEXT ·finite32AVX512(SB), NOSPLIT, $0-24
	MOVQ         x+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVL         $0x7f800000, AX
	VPBROADCASTD AX, Z16
	XORQ         DX, DX

loop:
	VMOVDQU32 (SI)(DX*4), Z0
	VMOVDQU32 64(SI)(DX*4), Z1
	VMOVDQU32 128(SI)(DX*4), Z2
	VMOVDQU32 192(SI)(DX*4), Z3
	VPANDND   Z16, Z0, Z0
	VPANDND   Z16, Z1, Z1
	VPANDND   Z16, Z2, Z2
	VPANDND   Z16, Z3, Z3
	VPMINUD   Z0, Z1, Z0
	VPMINUD   Z2, Z3, Z2
	VPMINUD   Z0, Z2, Z0
	VPTESTNMD Z0, Z0, K1
	KORTESTW  K1, K1
	JNZ       done
	ADDQ      $64, DX
	CMPQ      DX, CX
	JLT       loop

done:
	MOVQ DX, ret+16(FP)
	VZEROUPPER
	RET

// func finite16AVX512(x *uint16, n int, inf uint16) int
TEXT ·finite16AVX512(SB), NOSPLIT, $0-32
	MOVQ         x+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVWLZX inf+16(FP), AX
	VPBROADCASTW AX, Z16
	XORQ         DX, DX

loop:
	VMOVDQU32 (SI)(DX*2), Z0
	VMOVDQU32 64(SI)(DX*2), Z1
	VPANDND   Z16, Z0, Z0
	VPANDND   Z16, Z1, Z1
	VPMINUW   Z0, Z1, Z0
	VPTESTNMW Z0, Z0, K1
	KORTESTD  K1, K1
	JNZ       done
	ADDQ      $64, DX
	CMPQ      DX, CX
	JLT       loop

done:
	MOVQ DX, ret+24(FP)
	VZEROUPPER
	RET

// func count32AVX512(x *float32, n int) int
TEXT ·count32AVX512(SB), NOSPLIT, $0-24
	MOVQ         x+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVL         $0x7fffffff, AX
	VPBROADCASTD AX, Z16
	XORQ         R8, R8

loop:
	VMOVDQU32 (SI), Z0
	VMOVDQU32 64(SI), Z1
	VMOVDQU32 128(SI), Z2
	VMOVDQU32 192(SI), Z3
	VPTESTNMD Z16, Z0, K1
	VPTESTNMD Z16, Z1, K2
	VPTESTNMD Z16, Z2, K3
	VPTESTNMD Z16, Z3, K4
	KUNPCKWD  K1, K2, K1
	KUNPCKWD  K3, K4, K3
	KUNPCKDQ  K1, K3, K1
	KMOVQ     K1, AX
	POPCNTQ   AX, AX
	ADDQ      AX, R8
	ADDQ      $256, SI
	SUBQ      $64, CX
	JNZ       loop
	MOVQ      R8, ret+16(FP)
	VZEROUPPER
	RET

// func count16AVX512(x *uint16, n int) int
TEXT ·count16AVX512(SB), NOSPLIT, $0-24
	MOVQ         x+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVL         $0x7fff7fff, AX
	VPBROADCASTD AX, Z16
	XORQ         R8, R8

loop:
	VMOVDQU32 (SI), Z0
	VMOVDQU32 64(SI), Z1
	VPTESTNMW Z16, Z0, K1
	VPTESTNMW Z16, Z1, K2
	KUNPCKDQ  K1, K2, K1
	KMOVQ     K1, AX
	POPCNTQ   AX, AX
	ADDQ      AX, R8
	ADDQ      $128, SI
	SUBQ      $64, CX
	JNZ       loop
	MOVQ      R8, ret+16(FP)
	VZEROUPPER
	RET

// func count8AVX512(x *uint8, n int) int
TEXT ·count8AVX512(SB), NOSPLIT, $0-24
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ R8, R8

loop:
	VMOVDQU32 (SI), Z0
	VPTESTNMB Z0, Z0, K1
	KMOVQ     K1, AX
	POPCNTQ   AX, AX
	ADDQ      AX, R8
	ADDQ      $64, SI
	SUBQ      $64, CX
	JNZ       loop
	MOVQ      R8, ret+16(FP)
	VZEROUPPER
	RET
