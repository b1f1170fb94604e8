package layer

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// The gate of gpt-oss: the channels of gate and up alternate in one matrix, gate is limited from above and up on both
// sides, and the result is g·sigmoid(α·g)·(u + 1). It runs on the host: no operation does it.

// clampedGate computes mid [rows, n] from both [rows, 2·n].
func (p *Pass) clampedGate(mid, both kernels.Mat) error {
	alpha, limit := float64(p.Config.GateAlpha), p.Config.GateLimit
	return p.onHost(func(rows [][]float32) {
		for i := range rows[0] {
			g, u := min(rows[1][2*i], limit), min(max(rows[1][2*i+1], -limit), limit)
			rows[0][i] = float32(float64(g) / (1 + math.Exp(-alpha*float64(g))) * (float64(u) + 1))
		}
	}, mid, both)
}

// clampedGateBackward replaces both by its gradient, for the gradient dmid of clampedGate's result.
func (p *Pass) clampedGateBackward(both, dmid kernels.Mat) error {
	alpha, limit := float64(p.Config.GateAlpha), p.Config.GateLimit
	return p.onHost(func(rows [][]float32) {
		for i, d := range rows[1] {
			rawG, rawU := rows[0][2*i], rows[0][2*i+1]
			g, u := float64(min(rawG, limit)), float64(min(max(rawU, -limit), limit))
			s := 1 / (1 + math.Exp(-alpha*g))

			// A limited value is a constant; at the limit itself the gradient passes, as PyTorch's clamp has it.
			rows[0][2*i], rows[0][2*i+1] = 0, 0
			if rawG <= limit {
				rows[0][2*i] = float32(float64(d) * (u + 1) * s * (1 + alpha*g*(1-s)))
			}
			if rawU >= -limit && rawU <= limit {
				rows[0][2*i+1] = float32(float64(d) * g * s)
			}
		}
	}, both, dmid)
}
