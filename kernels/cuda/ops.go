//go:build linux && (amd64 || arm64)

package cuda

import "github.com/modelcompress/compress/kernels"

// fill makes the operation table. Every operation is computed on the device.
func (d *Device) fill() {
	d.ops = kernels.Ops{
		MatMulNT: d.matMulNT, MatMulNN: d.matMulNN, MatMulTN: d.matMulTN, MatMulSparse: d.matMulSparse,
		Expand:          d.expand,
		MatMulQuantised: d.matMulQuantised, GatherQuantised: d.gatherQuantised, ExpandQuantised: d.expandQuantised,
		Gather: d.gather, ScatterAdd: d.scatterAdd, AddLowRank: d.addLowRank,
		RMSNorm: d.rmsNorm, LayerNorm: d.layerNorm, RoPE: d.rope,
		Attention: d.attention,
		Activate:  d.activate, Gate: d.gate, Add: d.add, Softcap: d.softcap, Softmax: d.softmax,
		CrossEntropy:    d.crossEntropy,
		RMSNormBackward: d.rmsNormBackward, LayerNormBackward: d.layerNormBackward,
		AttentionBackward: d.attentionBackward,
		ActivateBackward:  d.activateBackward, GateBackward: d.gateBackward, SoftcapBackward: d.softcapBackward,
		SoftmaxBackward: d.softmaxBackward, CrossEntropyBackward: d.crossEntropyBackward,
		GatherBackward: d.gatherBackward,
		ColSum:         d.colSum, AddSquare: d.addSquare, Convert: d.convert, ColSumSq: d.colSumSq,
		SelectRows: d.selectRows,
		SelectAll:  d.selectAll, SelectNM: d.selectNM, ApplyMask: d.applyMask, NonFinite: d.nonFinite,
		CountZero: d.countZero,
		Sync:      d.sync,
	}
}
