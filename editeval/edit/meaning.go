package edit

// meanings says in a line what the methods do.
var meanings = map[string]string{
	"ft":   "gradient steps on one matrix until the answer is probable",
	"ft-l": "ft whose change of each element is bounded",
	"ft-m": "ft on the tokens of the answer alone",
	"lora": "trains a small adapter on the facts and folds it in",
	"rome": "one matrix gets one rank, so that the subject's key gives a new value (Meng et " +
		"al., arXiv:2202.05262)",
	"r-rome":    "rome with the same key in both places of the formula (Gupta et al., arXiv:2403.07175)",
	"memit":     "many facts at once, spread over several layers (Meng et al., arXiv:2210.07229)",
	"memit-seq": "memit whose earlier facts weigh like those of the batch",
	"encore": "memit whose search ends once the answer is first, with bounded norms (Gupta et " +
		"al., arXiv:2502.01636)",
	"pmet":      "memit with values of attention and MLP together (Li et al., arXiv:2308.08742)",
	"emmet":     "memit with the values met exactly (Gupta et al., arXiv:2403.14236)",
	"alphaedit": "memit whose change leaves the keys of ordinary text alone (Fang et al., arXiv:2410.02355)",
	"nas":       "alphaedit whose values are brought to one length",
	"lyaplock":  "writes all facts anew, with a weight of ordinary text that grows with the damage",
	"ultraedit": "one pass for all facts, without search and covariance",
	"grace":     "weights stay; a codebook answers for keys near the edit's (Hartvigsen et al., arXiv:2211.11031)",
	"wise":      "weights stay; a side memory of a matrix and a router (Wang et al., arXiv:2405.14768)",
	"memoir":    "weights stay; a side memory in which each fact uses a few inputs",
	"ike":       "weights stay; the fact is put before the prompt (Zheng et al., arXiv:2305.12740)",
}

// Meaning says in a line what a method of [Methods] does; "" for other words.
func Meaning(method string) string { return meanings[method] }
