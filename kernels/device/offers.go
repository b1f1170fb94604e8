package device

import (
	"reflect"

	"github.com/modelcompress/compress/kernels"
)

// Operations lists the operations of the table that a device computes itself, in the table's order, and what it
// offers beyond them.
func Operations(dev kernels.Device) (own, beyond []string) {
	lacks := Fallbacks(dev)
	for i := range reflect.TypeFor[kernels.Ops]().NumField() {
		name := reflect.TypeFor[kernels.Ops]().Field(i).Name
		if _, missing := lacks[name]; !missing && name != "Sync" {
			own = append(own, name)
		}
	}

	for _, offer := range []struct {
		name string
		has  bool
	}{
		{"Assembler", has[kernels.Assembler](dev)},
		{"Merger", has[kernels.Merger](dev)},
		{"Scorer", has[kernels.Scorer](dev)},
		{"Solver", has[kernels.Solver](dev)},
		{"Stepper", has[kernels.Stepper](dev)},
	} {
		if offer.has {
			beyond = append(beyond, offer.name)
		}
	}

	return own, beyond
}

func has[T any](dev kernels.Device) bool {
	_, ok := kernels.As[T](dev)
	return ok
}

// Uses lists the ways in which work uses weights.
func Uses() []Use { return []Use{Batches, Tokens, Once} }
