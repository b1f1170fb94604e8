package gp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/kernels"
)

// small makes inputs of two outputs and four inputs.
func small() gp.Inputs {
	w := []float32{0.5, -1, 0.25, 2, 1, 0.2, -0.3, 0.4}
	g := []float32{0.2, 0.1, 0.9, 0.05, 0.4, 2, 0.7, 0.6}
	return gp.Inputs{
		W: kernels.MatOf(kernels.WrapF32(w), 2, 4),
		G: kernels.MatOf(kernels.WrapF32(g), 2, 4),
		X: []float32{4, 9, 16, 25},
	}
}

func ExampleParse() {
	e, err := gp.Parse("abs(W*W) * mms(G)")
	if err != nil {
		fmt.Println(err)
		return
	}

	text, _ := json.Marshal(gp.Simplify(e))
	fmt.Println(e, "has", e.Size(), "nodes")
	fmt.Println(string(text))
	_, err = gp.Parse("W * sqr(Y)")
	fmt.Println(err.Error()[:32])
	// Output:
	// abs(W*W)*mms(G) has 7 nodes
	// {"data":"mul","left":{"data":"sqr","left":{"data":"W"}},"right":{"data":"mms","left":{"data":"G"}}}
	// column 9: "Y": unknown name; kno
}

func ExampleProgram_Eval() {
	e, _ := gp.Parse("W*sqrt(X)")
	p, err := gp.Compile(e)
	if err != nil {
		fmt.Println(err)
		return
	}

	scores := kernels.MatOf(kernels.NewHost(kernels.F32, 8), 2, 4)
	if err := p.Eval(scores, small(), gp.Exec{Finite: true}); err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(scores.RowF32(0), "in", p.Passes, "pass")
	// Output: [1 3 1 10] in 1 pass
}

func ExampleScorer() {
	e, _ := gp.Parse("abs(W*W)*mms(G)")
	p, _ := gp.Compile(e)
	for n, i := range p.Code {
		fmt.Println(n, i.Op, i.Shape, "after pass", i.Pass)
	}

	s, err := p.Scorer(small(), gp.Exec{}) // finds the extremes of G
	if err != nil {
		fmt.Println(err)
		return
	}

	err = s.Each(1, func(first int, scores kernels.Mat) error {
		fmt.Printf("row %d: %.3f\n", first, scores.RowF32(0))
		return nil
	})

	fmt.Println(err)
	// Output:
	// 0 load [out, in] after pass 0
	// 1 sqr [out, in] after pass 0
	// 2 load [out, in] after pass 0
	// 3 affine [out, in] after pass 1
	// 4 mul [out, in] after pass 1
	// row 0: [0.019 0.026 0.027 0.000]
	// row 1: [0.179 0.040 0.030 0.045]
	// <nil>
}

func ExampleSearch() {
	// A fitness that wants the scores of the first row to fall from left to right.
	fitness := gp.Func(func(_ context.Context, e *gp.Expr) (float64, error) {
		p, err := gp.Compile(e)
		if err != nil {
			return 0, err
		}

		scores := kernels.MatOf(kernels.NewHost(kernels.F32, 8), 2, 4)
		if err := p.Eval(scores, small(), gp.Exec{Threads: 1}); err != nil {
			return 0, err
		}

		row, quality := scores.RowF32(0), 0.0
		for j := range 3 {
			if row[j] <= row[j+1] {
				quality++
			}
		}

		return quality + 0.01*math.Log(float64(e.Size())), nil
	})

	r, err := gp.Search(context.Background(), gp.PaperGrammar(), fitness,
		gp.Options{Seed: 1, Population: 20, Generations: 5})
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(r.Best.Quality < 1, len(r.History), r.Stopped)
	// Output: true 6 generations
}
