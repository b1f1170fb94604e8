//go:build !linux

package safetensors

import "errors"

// childFull needs a file system of its own, which only Linux lets a process without privileges mount.
func childFull(string) error { return errors.ErrUnsupported }
