//go:build linux && (amd64 || arm64)

package cuda

// programs are modules made at run time.
type programs struct{}

// drop unloads them.
func (p *programs) drop(*Device) {}
