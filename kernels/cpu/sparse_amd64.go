//go:build !noasm

package cpu

// sparseExpanders picks the best expanders that the instruction sets allow.
func sparseExpanders(f features) expanders { return expanders{} }
