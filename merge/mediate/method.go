package mediate

import "github.com/modelcompress/compress/merge"

// Method describes mediate as [merge.Methods] does the methods that give one model.
func Method() merge.Method {
	set := func(name, value, meaning string) merge.Parameter {
		return merge.Parameter{Name: name, Of: "merge", Default: value, Meaning: meaning}
	}

	return merge.Method{
		Name:    "mediate",
		Summary: "a dense model, what each model changes where they conflict, and a router",
		Formula: "D + Σ_j w_j(prompt)·kept(x_j - D) in routed groups, D = mean x_j elsewhere",
		Fits:    "Models that contradict each other, when every one's own answers are to be kept in one folder.",
		Source:  "inspired by Mediator, arXiv 2502.04411",
		Base:    true, Least: 3,
		Parameters: []merge.Parameter{
			set("granularity", "layer", "what is routed or averaged as a whole: layer, block (attention and "+
				"MLP) or tensor"),
			set("metric", "disagree", "the conflict that select goes by: disagree, any, coactive, total, mass, cosine"),
			set("density", "0.2", "the share of each model's largest differences that count for conflict"),
			set("select", "{sigma: 0.5}", "which groups are routed: none, all, otsu, {sigma: S} above the mean by S "+
				"deviations, {threshold: T}, {quantile: Q}, {top_k: K}, {top_fraction: F}, {budget: 500MB}, "+
				"{layers: [1, 2]}"),
			set("average", "linear", "the method of groups that are not routed, with its parameters: {method: ties, "+
				"density: 0.5}"),
			set("dense", "mean", "what a routed group is without an expert: mean of the models, base, {expert: NAME} "+
				"or {method: …}. base suits adapters: a difference from the mean has the rank of all of them "+
				"together"),
			set("keep", "0.1", "what an expert keeps of its difference: a fraction of its largest elements, {bits: 3} "+
				"(1 to 8 an element), {lowrank: 8}, {energy: 0.9} of the squares, {random: 0.1}, sign1, or "+
				"{best: 0.05}: for each tensor the form that loses least, all together in that share of the tensors' "+
				"bytes"),
			set("route_embeddings", "false", "tensors outside of the layers may be routed too"),
			set("router", "none", "how prompts find experts: prompts: {NAME: FILE}, features: auto, embed_mean, "+
				"early, early_last, hidden_mean, hidden_last, external; classifier: nearest, lda, logistic, mlp; "+
				"foreign: FILE"),
		},
	}
}
