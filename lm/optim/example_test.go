package optim_test

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/optim"
)

// A training loop: clip, then apply every parameter with the schedule's learning rate.
func Example() {
	opt, err := optim.NewAdamW(optim.AdamWOptions{WeightDecay: 0.01})
	if err != nil {
		panic(err)
	}

	w, g := []float32{1, -2, 3}, make([]float32, 3)
	params := []optim.Param{{
		Name: "w", Value: kernels.MatOf(kernels.WrapF32(w), 1, 3),
		Grad: kernels.MatOf(kernels.WrapF32(g), 1, 3),
	}}

	schedule := optim.Linear(2, 100)
	for step := range 100 {
		copy(g, w) // the gradient of ½|w|²
		_, scale, err := optim.Clip(params, 1, 0)
		if err != nil {
			panic(err)
		}

		for _, p := range params {
			if err := opt.Apply(p, optim.Step{LR: 0.1 * schedule(step), GradScale: scale}); err != nil {
				panic(err)
			}
		}
	}

	fmt.Printf("%.1f\n", w)
	// Output: [-0.0 0.0 -0.0]
}

// ExampleNewSchedule shows a warm-up of two steps and a linear fall.
func ExampleNewSchedule() {
	s, err := optim.NewSchedule("linear", 2, 6)
	if err != nil {
		panic(err)
	}
	for step := range 7 {
		fmt.Print(s(step), " ")
	}
	// Output: 0 0.5 1 0.75 0.5 0.25 0
}
