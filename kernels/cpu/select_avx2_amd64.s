//go:build amd64 && !noasm

#include "textflag.h"

// AVX2 bodies of the loops documented at selectKernels, on whole blocks as selectAsm says. They also use F16C, FMA and
// POPCNT, which every processor with AVX2 has.

// KEY turns the score in Y0 into its key: -0 becomes +0, negative floats have their magnitude bits flipped, NaN becomes
// the highest key. It assumes that Y14 is zero and Y15 is 0x7fffffff.
#define KEY \
	VADDPS    Y14, Y0, Y0     \
	VCMPPS    $3, Y0, Y0, Y1  \
	VPSRAD    $31, Y0, Y2     \
	VPAND     Y15, Y2, Y2     \
	VPXOR     Y2, Y0, Y0      \
	VBLENDVPS Y1, Y15, Y0, Y0

#define LOADF32 VMOVDQU (SI), Y0

#define LOADBF16 \
	VPMOVZXWD (SI), Y0 \
	VPSLLD    $16, Y0, Y0

#define LOADF16 VCVTPH2PS (SI), Y0

// KEYS is the body of the three functions that make keys; bytes is the size of 8 elements of x.
#define KEYS(load, bytes) \
	MOVQ         dst+0(FP), DI   \
	MOVQ         x+8(FP), SI     \
	MOVQ         col+16(FP), DX  \
	MOVQ         n+24(FP), CX    \
	MOVL abs+32(FP), AX \
	MOVQ AX, X13 \
	VPBROADCASTD X13, Y13 \
	VPXOR        Y14, Y14, Y14   \
	VPCMPEQD     Y15, Y15, Y15   \
	VPSRLD       $1, Y15, Y15    \
	TESTQ        DX, DX          \
	JZ           plain           \
scaled: \
	load                         \
	VPAND        Y13, Y0, Y0     \
	VMULPS       (DX), Y0, Y0    \
	KEY                          \
	VMOVDQU      Y0, (DI)        \
	ADDQ         $bytes, SI      \
	ADDQ         $32, DX         \
	ADDQ         $32, DI         \
	SUBQ         $8, CX          \
	JNZ          scaled          \
	VZEROUPPER                   \
	RET                          \
plain: \
	load                         \
	VPAND        Y13, Y0, Y0     \
	KEY                          \
	VMOVDQU      Y0, (DI)        \
	ADDQ         $bytes, SI      \
	ADDQ         $32, DI         \
	SUBQ         $8, CX          \
	JNZ          plain           \
	VZEROUPPER                   \
	RET

// func keysF32AVX2(dst *int32, x *float32, col *float32, n int, abs uint32)
TEXT ·keysF32AVX2(SB), NOSPLIT, $0-36
	KEYS(LOADF32, 32)

// func keysBF16AVX2(dst *int32, x *uint16, col *float32, n int, abs uint32)
TEXT ·keysBF16AVX2(SB), NOSPLIT, $0-36
	KEYS(LOADBF16, 16)

// func keysF16AVX2(dst *int32, x *uint16, col *float32, n int, abs uint32)
TEXT ·keysF16AVX2(SB), NOSPLIT, $0-36
	KEYS(LOADF16, 16)

// func withinAVX2(dst, keys *int32, n int, lo, hi int32, table *[256][8]uint8) (kept, below int)
TEXT ·withinAVX2(SB), NOSPLIT, $0-56
	MOVQ         dst+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         n+16(FP), CX
	MOVL lo+24(FP), AX
	MOVQ AX, X14
	VPBROADCASTD X14, Y14
	MOVL hi+28(FP), AX
	MOVQ AX, X15
	VPBROADCASTD X15, Y15
	MOVQ         table+32(FP), DX
	XORQ         R8, R8 // keys below lo
	MOVQ         DI, R9

loop:
	VMOVDQU   (SI), Y0
	VPCMPGTD  Y0, Y14, Y1 // lo > key
	VPCMPGTD  Y15, Y0, Y2 // key > hi
	VPOR      Y1, Y2, Y2
	VMOVMSKPS Y1, AX
	VMOVMSKPS Y2, BX
	XORL      $0xff, BX
	VPMOVZXBD (DX)(BX*8), Y3
	VPERMD    Y0, Y3, Y4
	VMOVDQU   Y4, (DI)
	POPCNTL   AX, AX
	POPCNTL   BX, BX
	ADDQ      AX, R8
	LEAQ      (DI)(BX*4), DI
	ADDQ      $32, SI
	SUBQ      $8, CX
	JNZ       loop

	SUBQ R9, DI
	SHRQ $2, DI
	MOVQ DI, kept+40(FP)
	MOVQ R8, below+48(FP)
	VZEROUPPER
	RET

// BYTES turns two vectors of 0 or -1 into 16 bytes of 0 or 1 at address at. It assumes that X13 holds ones.
#define BYTES(lo, hi, lox, hix, at) \
	VPACKSSDW    hi, lo, lo       \
	VPERMQ       $0xd8, lo, lo    \
	VEXTRACTI128 $1, lo, hix      \
	VPACKSSWB    hix, lox, lox    \
	VPAND        X13, lox, lox    \
	VMOVDQU      lox, at

// func aboveAVX2(mask *uint8, keys *int32, n int, t int32) (equal int)
TEXT ·aboveAVX2(SB), NOSPLIT, $0-40
	MOVQ         mask+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         n+16(FP), CX
	MOVL t+24(FP), AX
	MOVQ AX, X15
	VPBROADCASTD X15, Y15
	MOVL         $0x01010101, AX
	MOVQ         AX, X13
	VPBROADCASTD X13, X13
	XORQ         R8, R8

loop:
	VMOVDQU   (SI), Y0
	VMOVDQU   32(SI), Y1
	VPCMPEQD  Y15, Y0, Y2
	VPCMPEQD  Y15, Y1, Y3
	VPCMPGTD  Y15, Y0, Y0
	VPCMPGTD  Y15, Y1, Y1
	VMOVMSKPS Y2, AX
	VMOVMSKPS Y3, BX
	POPCNTL   AX, AX
	POPCNTL   BX, BX
	ADDQ      AX, R8
	ADDQ      BX, R8
	BYTES(Y0, Y1, X0, X1, (DI))
	ADDQ      $64, SI
	ADDQ      $16, DI
	SUBQ      $16, CX
	JNZ       loop

	MOVQ R8, equal+32(FP)
	VZEROUPPER
	RET

// COUNT adds one to the lanes of count whose key is higher than the key that the rotation in Y8, Y9 pairs it with.
#define COUNT(key, count, tmp) \
	VPERMD   key, Y8, tmp     \
	VPADDD   Y9, tmp, tmp     \
	VPCMPGTD tmp, key, tmp    \
	VPSUBD   tmp, count, count

// KEEP stores the mask of one vector: 1 where at least n keys are lower. It assumes that Y15 is n-1 and X13 ones.
#define KEEP(count, countx, tmpx, at) \
	VPCMPGTD     Y15, count, count    \
	VEXTRACTI128 $1, count, tmpx      \
	VPACKSSDW    tmpx, countx, countx \
	VPACKSSWB    countx, countx, countx \
	VPAND        X13, countx, countx  \
	VMOVQ        countx, at

// func groupsAVX2(mask *uint8, keys *int32, vectors, step, turns int, turn *rotation, n int32, ahead uintptr)
TEXT ·groupsAVX2(SB), NOSPLIT, $0-64
	MOVQ         mask+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         vectors+16(FP), CX
	MOVQ         step+24(FP), DX
	MOVQ         turns+32(FP), R8
	MOVQ         turn+40(FP), R9
	MOVL n+48(FP), AX
	MOVQ AX, X15
	VPBROADCASTD X15, Y15
	VPCMPEQD     Y14, Y14, Y14
	VPADDD       Y14, Y15, Y15
	MOVL         $0x01010101, AX
	MOVQ         AX, X13
	VPBROADCASTD X13, X13
	LEAQ         (DX)(DX*2), R10
	MOVQ         ahead+56(FP), R13
	SUBQ         $4, CX
	JL           rest

four:
	// Memory works while the groups are ranked: the weights of the next chunk.
	PREFETCHT0 (R13)
	PREFETCHT0 64(R13)
	ADDQ       $128, R13
	VMOVDQU (SI), Y0
	VMOVDQU (SI)(DX*4), Y1
	VMOVDQU (SI)(DX*8), Y2
	VMOVDQU (SI)(R10*4), Y3
	VPXOR   Y4, Y4, Y4
	VPXOR   Y5, Y5, Y5
	VPXOR   Y6, Y6, Y6
	VPXOR   Y7, Y7, Y7
	MOVQ    R9, R11
	MOVQ    R8, R12

turn4:
	VMOVDQU (R11), Y8
	VMOVDQU 64(R11), Y9
	COUNT(Y0, Y4, Y10)
	COUNT(Y1, Y5, Y11)
	COUNT(Y2, Y6, Y12)
	COUNT(Y3, Y7, Y10)
	ADDQ    $128, R11
	DECQ    R12
	JNZ     turn4

	KEEP(Y4, X4, X10, (DI))
	KEEP(Y5, X5, X11, (DI)(DX*1))
	KEEP(Y6, X6, X12, (DI)(DX*2))
	KEEP(Y7, X7, X10, (DI)(R10*1))
	LEAQ (DI)(DX*4), DI
	LEAQ (SI)(DX*8), SI
	LEAQ (SI)(DX*8), SI
	SUBQ $4, CX
	JGE  four

rest:
	ADDQ $4, CX
	JZ   done

one:
	VMOVDQU (SI), Y0
	VPXOR   Y4, Y4, Y4
	MOVQ    R9, R11
	MOVQ    R8, R12

turn:
	VMOVDQU (R11), Y8
	VMOVDQU 64(R11), Y9
	COUNT(Y0, Y4, Y10)
	ADDQ    $128, R11
	DECQ    R12
	JNZ     turn

	KEEP(Y4, X4, X10, (DI))
	ADDQ DX, DI
	LEAQ (SI)(DX*4), SI
	DECQ CX
	JNZ  one

done:
	VZEROUPPER
	RET

// func wideGroupsAVX2(mask *uint8, keys *int32, groups, m int, left *[16]int32, n int32)
//
// Groups of 9 to 16 keys lie in two vectors; every key of the group in turn is compared with all of them.
TEXT ·wideGroupsAVX2(SB), NOSPLIT, $0-44
	MOVQ         mask+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         groups+16(FP), CX
	MOVQ         m+24(FP), DX
	MOVQ         left+32(FP), R9
	MOVL n+40(FP), AX
	MOVQ AX, X15
	VPBROADCASTD X15, Y15
	VPCMPEQD     Y14, Y14, Y14
	VPADDD       Y14, Y15, Y15
	MOVL         $0x01010101, AX
	MOVQ         AX, X13
	VPBROADCASTD X13, X13

group:
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VPXOR   Y4, Y4, Y4
	VPXOR   Y5, Y5, Y5
	MOVQ    R9, R11
	XORQ    R12, R12

key:
	VPBROADCASTD (SI)(R12*4), Y2
	VPADDD       (R11), Y2, Y3
	VPADDD       32(R11), Y2, Y2
	VPCMPGTD     Y3, Y0, Y3
	VPCMPGTD     Y2, Y1, Y2
	VPSUBD       Y3, Y4, Y4
	VPSUBD       Y2, Y5, Y5
	ADDQ         $64, R11
	INCQ         R12
	CMPQ         R12, DX
	JLT          key

	VPCMPGTD Y15, Y4, Y4
	VPCMPGTD Y15, Y5, Y5
	BYTES(Y4, Y5, X4, X5, (DI))
	ADDQ DX, DI
	LEAQ (SI)(DX*4), SI
	DECQ CX
	JNZ  group
	VZEROUPPER
	RET

// func sumSq1AVX2(acc *float64, x *float32, n int)
TEXT ·sumSq1AVX2(SB), NOSPLIT, $0-24
	MOVQ acc+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VMOVUPD     (DI), Y0
	VCVTPS2PD   (SI), Y1
	VFMADD231PD Y1, Y1, Y0
	VMOVUPD     Y0, (DI)
	ADDQ        $16, SI
	ADDQ        $32, DI
	SUBQ        $4, CX
	JNZ         loop
	VZEROUPPER
	RET

// func sumSq4AVX2(acc *float64, x *float32, n, stride int)
TEXT ·sumSq4AVX2(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ stride+24(FP), DX
	LEAQ (DX)(DX*2), R8

loop:
	VMOVUPD     (DI), Y0
	VCVTPS2PD   (SI), Y1
	VCVTPS2PD   (SI)(DX*4), Y2
	VCVTPS2PD   (SI)(DX*8), Y3
	VCVTPS2PD   (SI)(R8*4), Y4
	VFMADD231PD Y1, Y1, Y0
	VFMADD231PD Y2, Y2, Y0
	VFMADD231PD Y3, Y3, Y0
	VFMADD231PD Y4, Y4, Y0
	VMOVUPD     Y0, (DI)
	ADDQ        $16, SI
	ADDQ        $32, DI
	SUBQ        $4, CX
	JNZ         loop
	VZEROUPPER
	RET

// func zero32AVX2(w *float32, mask *uint8, n int)
TEXT ·zero32AVX2(SB), NOSPLIT, $0-24
	MOVQ  w+0(FP), DI
	MOVQ  mask+8(FP), SI
	MOVQ  n+16(FP), CX
	VPXOR Y15, Y15, Y15

loop:
	VPMOVZXBD (SI), Y0
	VPCMPEQD  Y15, Y0, Y0
	VPANDN    (DI), Y0, Y0
	VMOVDQU   Y0, (DI)
	ADDQ      $8, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET

// func zero16AVX2(w *uint16, mask *uint8, n int)
TEXT ·zero16AVX2(SB), NOSPLIT, $0-24
	MOVQ  w+0(FP), DI
	MOVQ  mask+8(FP), SI
	MOVQ  n+16(FP), CX
	VPXOR Y15, Y15, Y15

loop:
	VPMOVZXBW (SI), Y0
	VPCMPEQW  Y15, Y0, Y0
	VPANDN    (DI), Y0, Y0
	VMOVDQU   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// The finite functions return where the first block with a hit starts, or n. Bits of the exponent that are missing are
// ~x & inf; a hit misses none.

// func finite32AVX2(x *float32, n int) int
TEXT ·finite32AVX2(SB), NOSPLIT, $0-24
	MOVQ         x+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVL         $0x7f800000, AX
	MOVQ         AX, X14
	VPBROADCASTD X14, Y14
	VPXOR        Y15, Y15, Y15
	XORQ         DX, DX

loop:
	VMOVDQU   (SI)(DX*4), Y0
	VMOVDQU   32(SI)(DX*4), Y1
	VMOVDQU   64(SI)(DX*4), Y2
	VMOVDQU   96(SI)(DX*4), Y3
	VMOVDQU   128(SI)(DX*4), Y4
	VMOVDQU   160(SI)(DX*4), Y5
	VMOVDQU   192(SI)(DX*4), Y6
	VMOVDQU   224(SI)(DX*4), Y7
	VPANDN    Y14, Y0, Y0
	VPANDN    Y14, Y1, Y1
	VPANDN    Y14, Y2, Y2
	VPANDN    Y14, Y3, Y3
	VPANDN    Y14, Y4, Y4
	VPANDN    Y14, Y5, Y5
	VPANDN    Y14, Y6, Y6
	VPANDN    Y14, Y7, Y7
	VPMINUD   Y0, Y1, Y0
	VPMINUD   Y2, Y3, Y2
	VPMINUD   Y4, Y5, Y4
	VPMINUD   Y6, Y7, Y6
	VPMINUD   Y0, Y2, Y0
	VPMINUD   Y4, Y6, Y4
	VPMINUD   Y0, Y4, Y0
	VPCMPEQD  Y15, Y0, Y0
	VPTEST    Y0, Y0
	JNZ       done
	ADDQ      $64, DX
	CMPQ      DX, CX
	JLT       loop

done:
	MOVQ DX, ret+16(FP)
	VZEROUPPER
	RET

// func finite16AVX2(x *uint16, n int, inf uint16) int
TEXT ·finite16AVX2(SB), NOSPLIT, $0-32
	MOVQ         x+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVWLZX inf+16(FP), AX
	MOVQ AX, X14
	VPBROADCASTW X14, Y14
	VPXOR        Y15, Y15, Y15
	XORQ         DX, DX

loop:
	VMOVDQU  (SI)(DX*2), Y0
	VMOVDQU  32(SI)(DX*2), Y1
	VMOVDQU  64(SI)(DX*2), Y2
	VMOVDQU  96(SI)(DX*2), Y3
	VPANDN   Y14, Y0, Y0
	VPANDN   Y14, Y1, Y1
	VPANDN   Y14, Y2, Y2
	VPANDN   Y14, Y3, Y3
	VPMINUW  Y0, Y1, Y0
	VPMINUW  Y2, Y3, Y2
	VPMINUW  Y0, Y2, Y0
	VPCMPEQW Y15, Y0, Y0
	VPTEST   Y0, Y0
	JNZ      done
	ADDQ     $64, DX
	CMPQ     DX, CX
	JLT      loop

done:
	MOVQ DX, ret+24(FP)
	VZEROUPPER
	RET

// ZEROS adds to R8 the bytes that equal finds zero in one vector at address at, after masking with Y14.
#define ZEROS(equal, at, tmp, r) \
	VPAND     at, Y14, tmp    \
	equal     Y15, tmp, tmp   \
	VPMOVMSKB tmp, r          \
	POPCNTL   r, r            \
	ADDQ      r, R8

// func count32AVX2(x *float32, n int) int
TEXT ·count32AVX2(SB), NOSPLIT, $0-24
	MOVQ     x+0(FP), SI
	MOVQ     n+8(FP), CX
	VPCMPEQD Y14, Y14, Y14
	VPSRLD   $1, Y14, Y14
	VPXOR    Y15, Y15, Y15
	XORQ     R8, R8

loop:
	ZEROS(VPCMPEQD, (SI), Y0, AX)
	ZEROS(VPCMPEQD, 32(SI), Y1, BX)
	ADDQ $64, SI
	SUBQ $16, CX
	JNZ  loop
	SHRQ $2, R8
	MOVQ R8, ret+16(FP)
	VZEROUPPER
	RET

// func count16AVX2(x *uint16, n int) int
TEXT ·count16AVX2(SB), NOSPLIT, $0-24
	MOVQ     x+0(FP), SI
	MOVQ     n+8(FP), CX
	VPCMPEQD Y14, Y14, Y14
	VPSRLW   $1, Y14, Y14
	VPXOR    Y15, Y15, Y15
	XORQ     R8, R8

loop:
	ZEROS(VPCMPEQW, (SI), Y0, AX)
	ZEROS(VPCMPEQW, 32(SI), Y1, BX)
	ADDQ $64, SI
	SUBQ $32, CX
	JNZ  loop
	SHRQ $1, R8
	MOVQ R8, ret+16(FP)
	VZEROUPPER
	RET

// func count8AVX2(x *uint8, n int) int
TEXT ·count8AVX2(SB), NOSPLIT, $0-24
	MOVQ     x+0(FP), SI
	MOVQ     n+8(FP), CX
	VPCMPEQD Y14, Y14, Y14
	VPXOR    Y15, Y15, Y15
	XORQ     R8, R8

loop:
	ZEROS(VPCMPEQB, (SI), Y0, AX)
	ZEROS(VPCMPEQB, 32(SI), Y1, BX)
	ADDQ $64, SI
	SUBQ $64, CX
	JNZ  loop
	MOVQ R8, ret+16(FP)
	VZEROUPPER
	RET
