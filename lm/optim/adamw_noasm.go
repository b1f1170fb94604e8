//go:build (!amd64 && !arm64) || noasm

package optim

// run makes the step for one stretch.
func (k adamStep) run(p, m, v, g []float32) { k.portable(p, m, v, g) }
