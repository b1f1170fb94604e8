//go:build (!amd64 && !arm64) || noasm

package linalg

var kernel = portable
