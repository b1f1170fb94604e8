package kernels

// Ops is the table of operations of a backend. A backend fills the fields it has; package device fills the others from
// the reference backend and counts how often they are used. Matrices are F32 unless said otherwise; "weight" means F32,
// BF16 or F16. Destinations may not overlap other operands unless an operation says so.
type Ops struct {
	// MatMulNT computes dst[m,n] = x[m,k] · w[n,k]ᵀ (+ bias, + dst); w is a weight: the layout of a linear layer.
	MatMulNT func(dst, x, w Mat, o MatMul)
	// MatMulNN computes dst[m,n] = x[m,k] · w[k,n] (+ bias, + dst); w is a weight: GPT-2's layout, and input gradients.
	MatMulNN func(dst, x, w Mat, o MatMul)
	// MatMulTN computes dst[m,n] = a[k,m]ᵀ · b[k,n] (+ dst): weight gradients and Gram matrices. Under [Fast],
	// both factors may be rounded to BF16.
	MatMulTN func(dst, a, b Mat, o MatMul)

	// MatMulSparse computes what MatMulNT computes with the weight that Expand makes of w: elements that are
	// not stored are zeros, which turn a NaN or infinity of x into NaN.
	MatMulSparse func(dst, x Mat, w Sparse, o MatMul)
	// Expand writes the elements of w to dst, of w's shape and element type, and +0 where none is stored.
	Expand func(dst Mat, w Sparse)

	// MatMulQuantised computes dst[m,n] = x[m,k] · w[n,k]ᵀ (+ bias, + dst) with the weight that ExpandQuantised makes
	// of w in F32. Under [Fast], every row of x may first be rounded to signed bytes times an F32 scale, in blocks of
	// at least 32 columns or, with a w of format Int8, as a whole: the scale is the largest magnitude of the block /
	// 127, so that a product with a row of w is off by Σ |w|·scale/2 at most. Sums within a block are then integers.
	// Blocks whose largest magnitude is below 2^-100 may count as zeros.
	MatMulQuantised func(dst, x Mat, w Quantised, o MatMul)
	// GatherQuantised writes row ids[i] of w, times scale, to row i of dst: embeddings.
	GatherQuantised func(dst Mat, w Quantised, ids []int32, scale float32)
	// ExpandQuantised writes the values of w to dst, of w's shape: F32, or rounded to BF16 or F16.
	ExpandQuantised func(dst Mat, w Quantised)

	// Gather copies row ids[i] of src (a weight), times scale, to row i of dst.
	Gather func(dst, src Mat, ids []int32, scale float32)
	// ScatterAdd adds row i of src, times scale[i], to row ids[i] of dst; the ids of one call are distinct.
	ScatterAdd func(dst, src Mat, ids []int32, scale []float32)

	// AddLowRank adds (x[i]·Aᵀ)·B to row i of dst, with A and B of pairs[i]: the changes of adapters, one to a row.
	// Rows without a pair stay as they are. What a row gets does not depend on the others.
	AddLowRank func(dst, x Mat, pairs []LowRank)

	// RMSNorm computes dst = x / sqrt(mean(x²) + eps) · w per row, or · (1 + w) with plusOne. w is a weight
	// [1,c]. dst may be x.
	RMSNorm func(dst, x, w Mat, eps float32, plusOne bool)
	// LayerNorm computes dst = (x - mean) / sqrt(var + eps) · w + b per row, var over c. w, b are weights
	// [1,c]; b may be absent. dst may be x.
	LayerNorm func(dst, x, w, b Mat, eps float32)
	// RoPE rotates x in place; see [Rope].
	RoPE func(x Mat, r Rope)
	// Attention computes causal softmax attention for one sequence; see [Attention].
	Attention func(dst, q, k, v Mat, a Attention)

	// Activate computes dst = f(x); dst may be x.
	Activate func(dst, x Mat, f Activation)
	// Gate computes dst = f(gate) · up, element by element; dst may be gate or up.
	Gate func(dst, gate, up Mat, f Activation)
	// Add computes dst = a + scale·b; dst may be a or b.
	Add func(dst, a, b Mat, scale float32)
	// Softcap computes dst = cap·tanh(x/cap); dst may be x.
	Softcap func(dst, x Mat, cap float32)
	// Softmax computes the softmax of every row; dst may be x.
	Softmax func(dst, x Mat)
	// CrossEntropy writes loss[i] = log Σ_j exp(logits[i,j]) - logits[i,labels[i]], natural logarithm, sums in F64;
	// a negative label writes 0. loss is F64 [1, rows].
	CrossEntropy func(loss, logits Mat, labels []int32)

	// RMSNormBackward adds the input gradient of RMSNorm to dx and its weight gradient to dw [1,c], which may
	// be absent. x and w are what RMSNorm got, dy is the gradient of its result. With u = 1/sqrt(mean(x²) +
	// eps) of a row and w' = w or 1 + w: dx += u·(dy·w' - x·u²·mean(dy·w'·x)), dw += Σ_i dy·x·u.
	RMSNormBackward func(dx, dw, dy, x, w Mat, eps float32, plusOne bool)
	// LayerNormBackward adds the input gradient of LayerNorm to dx, its weight gradient to dw and its bias
	// gradient to db [1,c]; dw and db may be absent. With n = (x - mean)/sqrt(var + eps) and g = dy·w: dx += (g
	// - mean(g) - n·mean(g·n)) / sqrt(var + eps), dw += Σ_i dy·n, db += Σ_i dy.
	LayerNormBackward func(dx, dw, db, dy, x, w Mat, eps float32)
	// AttentionBackward computes the gradients of Attention: dout is the gradient of its result out; q, k, v
	// and a are what it got, and a.LSE, required, is what it wrote. dq, dk and dv are overwritten in the
	// channels of the heads, which lie as those of q, k and v; dk and dv are [tk, …], zero for keys that no
	// query sees. A NaN or infinity may spread to queries and keys that are near, though the mask hides them.
	AttentionBackward func(dq, dk, dv, dout, q, k, v, out Mat, a Attention)
	// ActivateBackward computes dx = dy·f'(x); dx may be dy or x. The derivative of ReLU is 0 where x ≤ 0 and 1
	// elsewhere.
	ActivateBackward func(dx, dy, x Mat, f Activation)
	// GateBackward computes dgate = dy·up·f'(gate) and dup = dy·f(gate); dgate may be gate, and dup may be up.
	GateBackward func(dgate, dup, dy, gate, up Mat, f Activation)
	// SoftcapBackward computes dx = dy·(1 - (y/cap)²) with y the result of Softcap; dx may be dy.
	SoftcapBackward func(dx, dy, y Mat, cap float32)
	// SoftmaxBackward computes dx = y·(dy - Σ_j dy·y) per row with y the result of Softmax; dx may be dy.
	SoftmaxBackward func(dx, dy, y Mat)
	// CrossEntropyBackward computes dlogits[i] = scale·(softmax(logits[i]) - onehot(labels[i])), or zeros for a
	// negative label, and what CrossEntropy computes in loss, F64 [1, rows], unless that is absent. dlogits may
	// be logits.
	CrossEntropyBackward func(dlogits, loss, logits Mat, labels []int32, scale float32)
	// GatherBackward adds scale·dy[i] to row ids[i] of dtable; ids may repeat, and are summed in their order.
	GatherBackward func(dtable, dy Mat, ids []int32, scale float32)
	// ColSum adds Σ_i x[i,j] to acc[j]; acc is F32 or F64 [1,c], the sum is carried in F64. Bias gradients and means.
	ColSum func(acc, x Mat)
	// AddSquare adds (scale·x)² to acc, element by element: statistics of gradients.
	AddSquare func(acc, x Mat, scale float32)

	// Convert copies x to dst element by element with a change of type (F32, BF16, F16, F64 in any pair),
	// rounding to nearest even.
	Convert func(dst, x Mat)

	// ColSumSq adds Σ_i x[i,j]² to acc[j]; acc is F64 [1,c]. This is Wanda's statistic.
	ColSumSq func(acc, x Mat)
	// SelectRows writes the keep mask (U8, 1 = kept) that drops the drop lowest scores of every row; of equal
	// scores the lower column goes first.
	SelectRows func(mask Mat, s Score, drop int)
	// SelectAll writes the keep mask over the whole matrix that drops every score not above t, where t has rank
	// (0-based, ascending) drop among all scores: drop+1 or more go. drop < 0 keeps everything.
	SelectAll func(mask Mat, s Score, drop int)
	// SelectNM writes the keep mask that drops the n lowest scores in every m consecutive columns; of equal
	// scores the lower column goes first. A short last group loses min(n, its size).
	SelectNM func(mask Mat, s Score, n, m int)
	// ApplyMask writes +0 to w (a weight) wherever mask (U8) is 0.
	ApplyMask func(w, mask Mat)
	// NonFinite returns the row-major position of the first NaN or infinity of x (a weight), or -1.
	NonFinite func(x Mat) int
	// CountZero returns how many elements of x (a weight, or U8) are zero, of either sign.
	CountZero func(x Mat) int

	// Sync waits for all operations and returns the first failure since the last call.
	Sync func() error
}

// MatMul holds the options of a matrix product.
type MatMul struct {
	Bias       Mat  // a weight [1,n] added to every row; absent by default
	Accumulate bool // add to dst instead of overwriting it
	Precision  Precision
}

// LowRank is a matrix of low rank, B transposed times A: A is F32 [rank, in] and B F32 [rank, out]. An absent A stands
// for zeros.
type LowRank struct{ A, B Mat }

// Rope describes a rotation of the first Dim channels of every head of x [tokens, …]. For row t and pair i the angle's
// cosine and sine are Cos[Pos[t], i] and Sin[Pos[t], i]. With a, b the channels (i, i+Dim/2), or (2i, 2i+1) if
// Interleaved: a' = a·c - b·s, b' = b·c + a·s.
type Rope struct {
	Heads      int
	HeadDim    int
	HeadStride int // elements between the starts of two heads in a row; 0 means HeadDim
	Dim        int // rotated channels, even
	// Cos and Sin are F32 [positions, Dim/2].
	Cos, Sin    Mat
	Pos         []int32
	Interleaved bool
	Inverse     bool // rotate by the negative angles: the backward pass of the rotation
}

// Attention describes causal attention of one sequence: q is [tq, …], k and v are [tk, …]. Query row i has
// position Pos+i and sees keys j with max(0, Pos+i-Window+1) ≤ j ≤ Pos+i (Window 0: no lower bound). Query head
// h reads key/value head h / (Heads/KVHeads). dst is [tq, Heads·HeadDim].
type Attention struct {
	Heads, KVHeads, HeadDim int
	QHeadStride             int     // elements between two heads in a row of q; 0 means HeadDim
	KVHeadStride            int     // the same for k and v
	Pos                     int     // of the first query
	Window                  int     // keys that a query sees; 0: all before it
	Scale                   float32 // of the scores q·k
	Softcap                 float32 // scores become Softcap·tanh(score/Softcap) before the mask; 0: off

	// LSE, F32 [tq, Heads], receives log Σ exp of the scores that each query and head sees, natural logarithm, for
	// AttentionBackward. Absent by default.
	LSE Mat
}

// Activation names an element-wise function.
type Activation uint8

const (
	// SiLU is x·sigmoid(x).
	SiLU Activation = iota + 1
	// GELU is x·½(1 + erf(x/√2)).
	GELU
	// GELUTanh is ½x(1 + tanh(√(2/π)(x + 0.044715x³))), "gelu_new" and "gelu_pytorch_tanh".
	GELUTanh
	// ReLU is max(x, 0).
	ReLU
)

// Score describes a pruning score without storing it: |X[i,j]| · Col[j], with Col absent meaning 1, in F32. Raw takes
// X[i,j] itself, sign included. X is a weight [rows, cols]; Col is F32 [1, cols].
type Score struct {
	X   Mat
	Col Mat
	Raw bool
}
