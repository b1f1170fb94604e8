//go:build !amd64 || noasm

package linalg

var kernel = portable
