//go:build !noasm

#include "textflag.h"

// func adamAVX2(k *adamStep)
//
// One step of AdamW for k.n values, a positive multiple of 8. No operations are fused.
TEXT ·adamAVX2(SB), NOSPLIT, $0-8
	MOVQ         k+0(FP), BX
	MOVQ         0(BX), DI
	MOVQ         8(BX), R8
	MOVQ         16(BX), R9
	MOVQ         24(BX), SI
	MOVQ         32(BX), CX
	VBROADCASTSS 40(BX), Y8
	VBROADCASTSS 44(BX), Y9
	VBROADCASTSS 48(BX), Y10
	VBROADCASTSS 52(BX), Y11
	VBROADCASTSS 56(BX), Y12
	VBROADCASTSS 60(BX), Y13
	VBROADCASTSS 64(BX), Y14
	VBROADCASTSS 68(BX), Y15
	SHLQ         $2, CX
	XORQ         AX, AX

loop:
	VMULPS  (SI)(AX*1), Y8, Y0   // g·scale
	VMOVUPS (R8)(AX*1), Y1
	VSUBPS  Y1, Y0, Y2           // g - m
	VMULPS  Y2, Y10, Y2
	VADDPS  Y2, Y1, Y1
	VMOVUPS Y1, (R8)(AX*1)
	VMULPS  (R9)(AX*1), Y11, Y3  // v·β₂
	VMULPS  Y0, Y12, Y4
	VMULPS  Y0, Y4, Y4
	VADDPS  Y4, Y3, Y3
	VMOVUPS Y3, (R9)(AX*1)
	VSQRTPS Y3, Y3
	VDIVPS  Y13, Y3, Y3
	VADDPS  Y14, Y3, Y3
	VMULPS  Y1, Y15, Y1
	VDIVPS  Y3, Y1, Y1
	VMULPS  (DI)(AX*1), Y9, Y5
	VADDPS  Y1, Y5, Y5
	VMOVUPS Y5, (DI)(AX*1)
	ADDQ    $32, AX
	CMPQ    AX, CX
	JLT     loop
	VZEROUPPER
	RET
