package method

// explanation is what people ask of a method beside its summary.
type explanation struct {
	// Formula is what is written, in the words of the package's comment: x_j are the models, b is the base, δ_j is
	// x_j - b.
	Formula string
	// Fits says when one would take the method.
	Fits string
	// Source is where it was published; "" if it is older than papers.
	Source string
}

// election is how the methods that end in ties add.
const election = "then of each element only those count whose sign is that of the sum over all models"

// explanations is the table, by the names of the methods.
var explanations = map[string]explanation{
	"linear": {
		"Σ w_j·x_j, divided by Σ w_j unless normalize is false",
		"Fine-tunes of one base with like settings, or checkpoints of one run (a model soup). Try it first.",
		"Wortsman et al., arXiv:2203.05482",
	},
	"slerp": {
		"the point at t on the arc between b and x, whole tensors taken as vectors; a straight line where they are " +
			"nearly parallel",
		"Two models that are to keep their length. t may differ by layer and by part of the layer.",
		"Shoemake, SIGGRAPH 1985",
	},
	"nuslerp": {
		"slerp between two models, or between their differences to a base, at t = w_2/(w_1+w_2)",
		"Two fine-tunes of one base: with base_model only what they changed is turned.",
		"mergekit",
	},
	"multislerp": {
		"one step from the weighted mean of the directions along the mean of the tangents there, at " +
			"the weighted mean " +
			"of the lengths",
		"Slerp of more than two models.",
		"mergekit",
	},
	"task_arithmetic": {
		"b + λ·Σ w_j·δ_j",
		"Adds what fine-tunes have learnt; a negative weight takes it away. Weights of .3 to 1.",
		"Ilharco et al., arXiv:2212.04089",
	},
	"ties": {
		"of each δ_j the density largest elements stay; " + election + ": b + λ·Σ w_j·δ_j/Σ w_j",
		"Three or more fine-tunes that contradict each other. density .2 to .5.",
		"Yadav et al., arXiv:2306.01708",
	},
	"dare_ties": {
		"of each δ_j a random density of the elements stays, divided by density; " + election,
		"Many fine-tunes with small differences, where density .1 to .5 loses nothing.",
		"Yu et al., arXiv:2311.03099",
	},
	"dare_linear": {
		"of each δ_j a random density of the elements stays, divided by density; b + λ·Σ w_j·δ_j",
		"As dare_ties, where signs seldom differ.",
		"Yu et al., arXiv:2311.03099",
	},
	"breadcrumbs": {
		"of each δ_j the gamma largest elements go and the next density stay; b + λ·Σ w_j·δ_j",
		"Fine-tunes with a few extreme changes, which would dominate the sum.",
		"Davari and Belilovsky, arXiv:2312.06795",
	},
	"breadcrumbs_ties": {
		"of each δ_j the gamma largest elements go and the next density stay; " + election,
		"As breadcrumbs, where signs contradict each other.",
		"Davari and Belilovsky, arXiv:2312.06795",
	},
	"della": {
		"elements stay at random with the probability density - epsilon to density + epsilon, by " +
			"their rank in the row, " +
			"divided by it; " + election,
		"As dare_ties, but large changes are likelier to stay.",
		"Deep et al., arXiv:2406.11617",
	},
	"della_linear": {
		"elements stay at random with the probability density - epsilon to density + epsilon, by " +
			"their rank in the row, " +
			"divided by it; b + λ·Σ w_j·δ_j",
		"As dare_linear, but large changes are likelier to stay.",
		"Deep et al., arXiv:2406.11617",
	},
	"model_stock": {
		"b + t·mean(δ_j), t = N·c/(1+(N-1)·c) with c the mean cosine of pairs of differences",
		"Fine-tunes of the same task with other seeds; there is nothing to set.",
		"Jang et al., arXiv:2403.19522",
	},
	"sce": {
		"of the differences the select_topk elements with most variance between models stay, each " +
			"model weighs by their " +
			"mean square, and the sign of the sum elects",
		"Strong models of different skills; weights follow from the tensors.",
		"Wan et al., arXiv:2408.07990",
	},
	"karcher": {
		"the mean of the models' directions on the sphere, found step by step, at the mean of their lengths",
		"Several models that are to count alike, without a base.",
		"Karcher 1977, as in mergekit",
	},
	"arcee_fusion": {
		"x where |x - b|·KL(softmax(x_row) ‖ softmax(b_row)) is above the median and 1.5 " +
			"interquartile ranges, b elsewhere",
		"A fine-tune of which only the salient changes are wanted.",
		"mergekit",
	},
	"nearswap": {
		"g·x + (1-g)·b, g = t/|b - x|, at most 1: elements that differ by less than t are x's",
		"A touch of another model.",
		"mergekit",
	},
	"passthrough": {
		"x, or scale·x",
		"Stacks layers of models on each other, with slices in the recipe.",
		"mergekit",
	},
	"ram": {
		"b + Σ δ_j where one model changed the element by more than epsilon, b + mean(δ_j) where several did",
		"Models trained by reinforcement, whose changes are sparse.",
		"arXiv:2601.13572",
	},
	"ramplus_tl": {
		"ram, with what one model alone changed times 1 + r·min(shared/unique, alpha) of its counts",
		"As ram, where much is shared and averaging weakens it.",
		"arXiv:2601.13572",
	},
	"consensus": {
		"b + alpha·Σ δ_j where at least k models have |δ_j| > lambda_j·|Σδ - δ_j|, b elsewhere",
		"Many tasks of which some are selfish; with task the mask gives one model back.",
		"Wang et al., arXiv:2405.07813",
	},
	"emr": {
		"b + the largest |δ_j| of the elected sign; with task masked by the signs of that model and " +
			"scaled to its length",
		"One stored difference that serves each task by a mask.",
		"Huang et al., arXiv:2405.17461",
	},
	"magmax": {
		"b + scale·(the δ_j of the largest magnitude, element by element)",
		"Models that were fine-tuned one after the other.",
		"Marczak et al., arXiv:2407.06322",
	},
	"pcb": {
		"b + Σ λ_t·δ_t·S_t/Σ S_t, S_t from how large an element is within its model and how well it " +
			"agrees with the sum; " +
			"the r largest S_t stay",
		"Fine-tunes that compete for the same weights.",
		"Du et al., arXiv:2410.02396",
	},
	"bitdelta": {
		"b + Σ w_j·mean|δ_j|·sign(δ_j), by tensor",
		"What one bit of each difference would keep.",
		"Liu et al., arXiv:2402.10193",
	},
	"fisher": {
		"Σ λ_j·F_j·x_j/Σ λ_j·F_j with the diagonal Fisher information F_j of each model",
		"Where each model has text of its task: compress merge statistics collects F_j.",
		"Matena and Raffel, arXiv:2111.09832",
	},
	"regmean": {
		"(Σ Ĝ_j)⁻¹·Σ Ĝ_j·W_j with the Gram matrices of each layer's inputs, whose elements off the " +
			"diagonal are multiplied " +
			"by alpha",
		"Where each model has text of its task: compress merge statistics collects the Gram matrices.",
		"Jin et al., arXiv:2212.09849",
	},
	"tsv_m": {
		"b + alpha·(of each δ_j the leading 1/N of the singular directions, both sides made orthogonal)",
		"Many tasks on one base, whose changes have low rank.",
		"Gargiulo et al., arXiv:2412.00081",
	},
	"iso_c": {
		"b + alpha·(Σ δ_j with every singular value replaced by their mean)",
		"Many tasks on one base, where the common directions drown the others.",
		"Marczak et al., arXiv:2502.04959",
	},
	"wudi": {
		"b + alpha·τ, τ from Σ δ_j by steps of Adam on Σ ‖(τ - δ_j)·δ_jᵀ‖²/‖δ_j‖²",
		"Many tasks on one base, without data.",
		"Cheng et al., arXiv:2503.08099",
	},
	"wudi_closed": {
		"b + alpha·τ, τ the damped minimum of Σ ‖(τ - δ_j)·δ_jᵀ‖²/‖δ_j‖², by one solve",
		"As wudi, in one step that damping keeps near the sum.",
		"Cheng et al., arXiv:2503.08099",
	},
	"opcm": {
		"one δ_j after the other, each without its part in the leading singular directions of the sum so far",
		"Models that come one by one: merged says how many the first already holds.",
		"Tang et al., arXiv:2501.09522",
	},
}

// meanings says what parameters do: by method and name where a name means several things, otherwise by name.
var meanings = map[string]string{
	"weight":             "how much the model counts",
	"normalize":          "divide by the sum of the weights",
	"int8_mask":          "accepted for mergekit's recipes, without effect",
	"lambda":             "factor of the whole sum",
	"rescale":            "make up for what was left out: by the norm of each difference",
	"rescale_norm":       "norm that rescale restores: l1, l2 or linf; l1 if rescale is true",
	"density":            "fraction of each difference that stays, 0 to 1",
	"scope":              "where the largest elements are looked for: tensor (in each by itself) or model (over all)",
	"gamma":              "fraction of the largest elements that goes",
	"epsilon":            "the probability differs from density by at most this",
	"alpha":              "factor of the sum",
	"task":               "number of the model to give back, from 1; all of them if it is absent",
	"slerp t":            "0 is the base, 1 the other model",
	"nearswap t":         "difference below which elements are the other model's",
	"nuslerp_flatten":    "turn the whole tensor; with false each row or column by itself",
	"nuslerp_row_wise":   "rows instead of columns, if nuslerp_flatten is false",
	"normalize_weights":  "divide the weights by their sum",
	"eps":                "added to lengths before they divide",
	"filter_wise":        "find t for every row instead of every tensor",
	"select_topk":        "fraction of the elements with the largest variance that stay",
	"max_iter":           "steps at most",
	"tol":                "a shorter step ends the iteration",
	"passthrough scale":  "factor of the tensor",
	"magmax scale":       "factor of what is added",
	"ram epsilon":        "a change above this counts as one",
	"ramplus_tl epsilon": "a change above this counts as one",
	"ramplus_tl r":       "how much what one model alone changed is enlarged",
	"ramplus_tl alpha":   "the ratio of shared to unique changes counts up to this",
	"consensus lambda":   "how large a model's part of the sum has to be to count as its vote",
	"consensus k":        "votes that an element needs",
	"pcb r":              "fraction of the scores that stays, by rank",
	"pcb lambda":         "factor of the model's difference",
	"fisher":             "file of the model's Fisher information",
	"gram":               "file of the Gram matrices of the model's inputs",
	"regmean alpha":      "factor of the elements off the diagonal",
	"transposed":         "square matrices are stored as [in, out]",
	"iterations":         "steps of Adam",
	"rate":               "step size of Adam",
	"damping":            "keeps the result near the sum of the differences where no model has rows",
	"opcm alpha":         "fraction of the sum's singular values that later models leave alone",
	"opcm lambda":        "what all is divided by; the mean length of the differences if it is absent",
	"merged":             "how many models the first one already holds",
}

// Explain gives the formula of the method, when it fits, and where it was published.
func (m *Method) Explain() (formula, fits, source string) {
	e := explanations[m.Spec.Name]
	return e.Formula, e.Fits, e.Source
}

// Meaning says what a parameter of the method does.
func (m *Method) Meaning(param string) string {
	if text, ok := meanings[m.Spec.Name+" "+param]; ok {
		return text
	}
	return meanings[param]
}
