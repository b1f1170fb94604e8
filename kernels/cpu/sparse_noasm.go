//go:build !amd64 || noasm

package cpu

// sparseExpanders returns none: this build expands in Go.
func sparseExpanders(features) expanders { return expanders{} }
