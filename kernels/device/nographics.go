//go:build nogpu || !linux || !(amd64 || arm64)

package device

import (
	"fmt"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
)

// backends are the kinds of devices that this build can open.
var backends = []string{"cpu", "ref"}

// graphics is the error of a build without the backend.
func graphics(index int, _ func(string)) (kernels.Device, error) {
	_, err := Graphics()
	return nil, fmt.Errorf("cuda:%d: %w", index, err)
}

// automatic finds nothing.
func automatic(Options) kernels.Device { return nil }

// Graphics describes the graphics processors of the machine. The error says why there is none.
func Graphics() ([]kernels.Info, error) {
	return nil, failure.Hinted(fmt.Errorf("%w: this build has no backend for GPUs", ErrNoDevice),
		"use --device cpu, or a build for Linux without -tags nogpu")
}
