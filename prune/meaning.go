package prune

// meanings says in a line what the words of pruning stand for. In formulas W is a weight, s the mean
// square of its input
// over the calibration text, G its gradient, H the inputs' Hessian.
var meanings = map[string]string{
	"magnitude":     "|W|: no calibration text is needed",
	"wanda":         "|W|·√s, within every output neuron (Sun et al., arXiv:2306.11695)",
	"wanda-variant": "wanda's scores; every neuron loses the same share of its total score instead of as many weights",
	"ria":           "(|W|/Σ_column|W| + |W|/Σ_row|W|)·s^¼, over the whole matrix (Zhang et al., ICLR 2024)",
	"gblm":          "|W|·√s and |W|·|G| together: needs gradients (Das et al., arXiv:2311.04902)",
	"sparsegpt": "W²/[H⁻¹] column by column; those that stay, to the right, make up for what goes (Frantar and " +
		"Alistarh, arXiv:2301.00774); as an update the same for masks of other metrics",
	"pruner-zero": "the formula that the publication's search found: needs gradients (Dong et al., arXiv:2406.02924)",
	"wanda++": "|W|·(√s + 100·g): wanda with gradients of each block's own output (Yang et al., " +
		"Wanda++, arXiv:2503.04992)",
	"oats":        "a sparse matrix and one of low rank in turn (Zhang and Papyan, arXiv:2409.13652)",
	FormulaPrefix: "expr:FORMULA, a formula of your own",
	TreePrefix:    "tree:FILE, a formula that compress search found",
	Uniform:       "every matrix loses the same share",
	OWL:           "layers with more outliers among the scores keep more (Yin et al., arXiv:2310.05175)",
	OWLMixed:      "owl for N:M: layers differ in N",
	Alpha:         "layers whose spectra have heavier tails keep more (AlphaPruning, arXiv:2410.10912)",
	Global:        "one threshold for all matrices, on scores over the mean of their matrix",
	Search: "an evolutionary search over layers, measured by the divergence of predictions " +
		"(EvoPress, arXiv:2410.14649)",
	NoUpdate: "weights that stay keep their values",
	DSnoT:    "exchanges kept and removed weights of a row, without training (arXiv:2310.08915)",
	ADMM:     "alternating directions, then conjugate gradients (arXiv:2401.02938)",
	Exact:    "least squares over what stays, solved for every row (OPTIMA, arXiv:2512.13886)",
}

// Meaning says in a line what the name of a metric, an allocation or an update stands for; "" for other words.
func Meaning(word string) string { return meanings[word] }
