package quantize

// meanings says in a line what the words of quantising stand for.
var meanings = map[string]string{
	RTN: "every weight is rounded to the nearest number; needs no text",
	GPTQ: "inputs that are still to come make up for the errors of those before them " +
		"(Frantar et al., arXiv:2210.17323)",
	AWQ: "inputs get factors by which the outputs err less, which norms take out again " +
		"(Lin et al., arXiv:2306.00978)",
	AWQGPTQ: "awq's factors, then gptq",
	HQQ: "moves zero points and scales to where the weights err least, without text; for " +
		"schemes with zero points",
	RangeMinMax:  "the range of the weights that share the scale",
	RangeMSE:     "the range of least error of the weights",
	RangeImatrix: "the range of least error, weighted by the inputs' mean squares",
	RangeClip:    "the range of least error of the outputs on some calibration text",
}

// Meaning says in a line what the name of a method or a range stands for; "" for other words.
func Meaning(word string) string { return meanings[word] }
