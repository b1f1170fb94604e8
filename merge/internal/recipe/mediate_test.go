package recipe

import (
	"reflect"
	"strings"
	"testing"
)

// mediated parses the parameters of a recipe by mediate.
func mediated(parameters string) (*Mediate, error) {
	text := "merge_method: mediate\nbase_model: m/base\nmodels: [{model: m/a}, {model: m/b, name: second}]\n"
	if parameters != "" {
		text += "parameters: " + parameters + "\n"
	}
	docs, err := Parse("r.yaml", []byte(text), nil)
	if err != nil {
		return nil, err
	}
	return docs[0].Mediate, nil
}

// TestMediateParameters: what is left out has the defaults that the manual gives, and every key sets what it names.
func TestMediateParameters(t *testing.T) {
	for parameters, set := range map[string]func(m *Mediate){
		"":                           func(*Mediate) {},
		"{granularity: block}":       func(m *Mediate) { m.Granularity = "block" },
		"{metric: cosine}":           func(m *Mediate) { m.Metric = "cosine" },
		"{density: 1}":               func(m *Mediate) { m.Density = 1 },
		"{route_embeddings: true}":   func(m *Mediate) { m.RouteEmbeddings = true },
		"{select: all}":              func(m *Mediate) { m.Select = Select{Rule: "all"} },
		"{select: {sigma: 2}}":       func(m *Mediate) { m.Select = Select{Rule: "sigma", Value: 2} },
		"{select: {top_k: 3}}":       func(m *Mediate) { m.Select = Select{Rule: "top_k", Value: 3} },
		"{select: {quantile: 0.9}}":  func(m *Mediate) { m.Select = Select{Rule: "quantile", Value: 0.9} },
		"{select: {budget: 2MB}}":    func(m *Mediate) { m.Select = Select{Rule: "budget", Bytes: 2_000_000} },
		"{select: {budget: 1GiB}}":   func(m *Mediate) { m.Select = Select{Rule: "budget", Bytes: 1 << 30} },
		"{select: {layers: [3, 1]}}": func(m *Mediate) { m.Select = Select{Rule: "layers", Layers: []int{3, 1}} },
		"{dense: base}":              func(m *Mediate) { m.Dense = Dense{Kind: "base"} },
		"{dense: {expert: second}}":  func(m *Mediate) { m.Dense = Dense{Kind: "expert", Expert: "second"} },
		"{keep: 0.25}":               func(m *Mediate) { m.Keep = Keep{"magnitude", 0.25} },
		"{keep: {energy: 0.5}}":      func(m *Mediate) { m.Keep = Keep{"energy", 0.5} },
		"{keep: {random: 1}}":        func(m *Mediate) { m.Keep = Keep{"random", 1} },
		"{keep: {lowrank: 8}}":       func(m *Mediate) { m.Keep = Keep{"lowrank", 8} },
		"{keep: {bits: 3}}":          func(m *Mediate) { m.Keep = Keep{"bits", 3} },
		"{keep: {best: 0.05}}":       func(m *Mediate) { m.Keep = Keep{"best", 0.05} },
		"{keep: sign1}":              func(m *Mediate) { m.Keep = Keep{Kind: "sign1"} },
		"{router: {features: external, classifier: mlp, shrinkage: 0.5}}": func(m *Mediate) {
			m.Router = Router{Features: "external", Classifier: "mlp", Shrinkage: 0.5}
		},
		"{router: {features: external}}": func(m *Mediate) {
			m.Router = Router{Features: "external", Classifier: "lda", Shrinkage: 0.1}
		},
		"{router: {classifier: lda}}": func(m *Mediate) { // as recipes were written when it was the default
			m.Router = Router{Features: "hidden_mean", Classifier: "lda", Shrinkage: 0.1}
		},
	} {
		want := &Mediate{
			Granularity: "layer", Metric: "disagree", Density: 0.2, Select: Select{Rule: "sigma", Value: 0.5},
			Average: StaticMerge{Method: "linear"}, Dense: Dense{Kind: "mean"}, Keep: Keep{"magnitude", 0.1},
			Router: Router{Features: "auto", Classifier: "nearest", Shrinkage: 0.1},
		}
		set(want)
		if got, err := mediated(parameters); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", parameters, got, err)
		}
	}

	m, err := mediated("{average: {method: ties, density: 0.5}, router: {prompts: {a: x.jsonl, second: y.jsonl}}}")
	if err != nil || m.Average.Method != "ties" || len(m.Average.Parameters) != 1 || len(m.Router.Prompts) != 2 ||
		m.Router.Prompts[1].Expert != "second" || m.Router.Prompts[1].File != "y.jsonl" {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestMediateFaults: every fault is named at its line and column, with the word that was meant where one is near.
func TestMediateFaults(t *testing.T) {
	for parameters, want := range map[string]string{
		"{density: 0}":   "r.yaml:4:23: density must be above 0",
		"{density: 1.5}": "r.yaml:4:23: density must be from 0 to 1, not 1.5",
		"{router: {features: auto, classifier: lda}}":         "features auto belong to the classifier nearest",
		"{router: {features: external, classifier: nearest}}": "external features come without",
		"{granularty: layer}":                                 `unknown key "granularty"`,
		"{metric: cosin}":                                     `not "cosin"`,
		"{select: sigmoid}":                                   "select must be one of",
		"{select: {top_fraction: 0}}":                         "top_fraction 0 selects no layer; select: none says so",
		"{select: {top_k: 0}}":                                "top_k must be from 1 to",
		"{select: {top: 3}}":                                  `r.yaml:4:23: unknown rule "top" in select`,
		"{select: {top_k: 1, sigma: 1}}":                      "select must be a word or a map of one key",
		"{select: {budget: much}}":                            `budget must be a number of bytes such as 500MB or 1GiB, not "much"`,
		"{keep: 2}":                                           "keep must be from 0 to 1, not 2",
		"{keep: {bit: 3}}":                                    `unknown kind "bit" in keep; did you mean "bits"?`,
		"{keep: {best: 0}}":                                   "best must be above 0",
		"{keep: {bits: 9}}":                                   "bits",
		"{keep: {sign1: 1}}":                                  "sign1 takes no value: write keep: sign1",
		"{dense: {expert: third}}":                            `no expert has the name "third"`,
		"{average: {method: mediate}}":                        "takes a method that gives one tensor, not mediate",
		"{router: {prompts: [a]}}":                            "prompts must be a map of experts and files, not",
		"{router: {prompts: {b: x.jsonl}}}":                   `no expert has the name "b"`,
		"{router: {features: hidden_means}}":                  `not "hidden_means"`,
	} {
		if _, err := mediated(parameters); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", parameters, err, want)
		}
	}
}
