// Package gp searches for pruning metrics: formulas over weights, gradients and activation statistics whose
// lowest scores say which weights to drop. It knows nothing of models.
//
// # Use
//
//	fit := gp.Func(func(ctx context.Context, e *gp.Expr) (float64, error) { … }) // lower is better
//	r, err := gp.Search(ctx, gp.PaperGrammar(), fit, gp.Options{
//		Population: 100, Generations: 50, Journal: "journal.jsonl",
//	})
//	fmt.Println(r.Best.Formula, r.Best.Quality)
//
// Package prune/fitness makes fitnesses of models; the Result has the best expression of every size, the last
// population and what became of all candidates.
//
// # Expressions
//
// An [Expr] is a tree of terminals and operators. It is read from and written as the JSON of Pruner-Zero (arXiv
// 2406.02924; objects with data, left and right) and an infix notation:
//
//	abs(W*W) * mms(G)     the metric published with Pruner-Zero
//	W * sqrt(X)           Wanda
//
// Terminals: W is |weight| [out, in], G a gradient magnitude [out, in], X the squared norm of every input [1,
// in]; the extended set adds norms of W's rows (Wr1, Wr2; [out, 1]) and columns (Wc1, Wc2; [1, in]), the mean
// and variance of every input (Xm, Xv), and the diagonals of the Hessian and of its inverse (H, Hi).
//
// Operators compute in float32 with these guards, whole-matrix statistics in float64 rounded to float32:
//
//	sqr pow   x·x                       log    ln(|x| + 0.001)
//	neg abs   -x, |x|                   exp    e^min(x, 100), which may overflow to +Inf
//	sqrt      √|x|                      tanh   tanh x
//	skp       x                         mms    (x - min) / (max - min)
//	zsn       (x - mean) / std, std over n-1
//	+ - *     with broadcasting         /      x / ‖y‖: the Frobenius norm of all of y, broadcast first
//
// and, in the extended set, pdiv(x, y) = x / (|y| + 1e-8), min, max, and rnorm and cnorm, which divide by the
// sum of |x| over every row or column plus 1e-8. NaN and infinities follow IEEE rules; mms and zsn of a
// constant are NaN.
//
// # Whole parts
//
// Expressions may also score what goes out of a model as a whole: neurons, heads, layers. A reduction makes one value
// for every part out of one for every weight: gsum, gmean, gmax and gl2 over all weights of a part, the same with i
// over those that read what enters it (rows of gate and up, of q, k and v), with o over those that what leaves it flows
// through (columns of down, of o). Terminals of parts: of neurons and heads A, Am, Av (squared norm, squared mean and
// variance of what leaves them, X, Xm² and Xv summed) and Ma (Minitron's score); of layers Bi (block influence), and
// Sx, Sy and Sd (mean squared norms of the stream before, behind and of what is added). Types keep parts and weights
// apart:
//
//	osum(W*sqrt(X))       Wanda-sp
//	Ma                    Minitron
//	gsum(W*G)             LLM-Pruner's first order
//	osum(sqr(W)*Xv)       FLAP
//	W*gsum(G)             no formula: weights and parts meet
//
// Above a reduction, operators work in float64 on the vector of all parts that are compared. Below one, rsum and rl2
// reduce to rows, csum and cl2 to columns, by sums of |x| and by norms. [CompileParts] makes programs of such
// expressions, [PartsGrammar] is their grammar.
//
// # Programs
//
// [Compile] turns an expression into a [Program]: straight-line code over rows, with every whole-matrix
// statistic hoisted into as few earlier passes as
// possible. Results depend neither on the number of threads nor on the instruction set.
//
// # Search
//
// [Search] evolves expressions of a [Grammar] against a [Fitness]. Candidates are simplified, checked and
// compared with what has been tried before any model is touched. With a journal, a search that was killed
// continues to the result that it would have had.
package gp
