package mediate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/merge"
)

// ErrApart: models that are no fine-tunes of the base cannot be merged by their differences to it.
var ErrApart = errors.New("not a fine-tune of the base")

// ErrNothing: there are not two models that differ from the base.
var ErrNothing = errors.New("nothing to merge")

// RecommendOptions are the choices of [Recommend].
type RecommendOptions struct {
	ConflictOptions
	KeepBase bool // what the base can do counts more than what each model has learnt
}

// Candidate is a model that is to be merged.
type Candidate struct {
	Path  string  `json:"path"`
	Kind  string  `json:"kind"`           // "full" or "adapter"
	Rank  int     `json:"rank,omitempty"` // of an adapter
	Shift float64 `json:"shift"`          // length of its difference, as a fraction of the base's
}

// Alternative is another way, and when it is the better one.
type Alternative struct {
	Method string `json:"method"`
	When   string `json:"when"`
	Recipe string `json:"recipe,omitempty"` // empty: it is no recipe
}

// Recommendation is how models should be merged, and what speaks for it.
type Recommendation struct {
	Base     string          `json:"base"`
	Models   []Candidate     `json:"models"`
	Method   string          `json:"method"`
	Why      string          `json:"why"`
	Recipe   string          `json:"recipe"` // YAML
	Others   []Alternative   `json:"others"`
	Left     []string        `json:"left_out,omitempty"` // models that are the base
	Conflict *ConflictReport `json:"conflict"`
}

// What the figures mean. Two models that were trained apart are √2 times their own length from each other; a fine-tune
// is far nearer to its base.
const (
	apart    = 0.7  // length of a difference, from which on a model is no fine-tune
	alike    = 0.5  // mean cosine of two differences, from which on they are one direction with noise
	disjoint = 0.02 // fraction of all elements with both signs, up to which models hardly meet
	random   = 0.8  // conflict as a fraction of that of random signs, from which on it is as good as random
	uneven   = 3.0  // ratio of the longest difference to the shortest, from which on the longest drowns the others
)

// Recommend looks at what fine-tunes of one base have changed, and names the recipe that suits it: by the kinds of the
// models (full checkpoints or adapters), the lengths of their differences, the angles between them and how often they
// contradict each other. The errors are those of [Conflict], and wrap [ErrApart] or [ErrNothing] where no merge of
// differences makes sense.
func Recommend(ctx context.Context, base string, models []string, o RecommendOptions) (*Recommendation, error) {
	r := &Recommendation{Base: base}
	for _, path := range models {
		switch {
		case filepath.Clean(path) == filepath.Clean(base):
			r.Left = append(r.Left, path)
			continue
		case slices.ContainsFunc(r.Models, func(c Candidate) bool {
			return filepath.Clean(c.Path) == filepath.Clean(path)
		}):
			return nil, fmt.Errorf("%s: %w: it is there twice", path, ErrNothing)
		}

		c, err := examined(path)
		if err != nil {
			return nil, err
		}
		r.Models = append(r.Models, c)
	}
	if len(r.Models) < 2 {
		return nil, fmt.Errorf("%w: %d of the models differ from the base", ErrNothing, len(r.Models))
	}

	parsed, err := merge.Parse("recommend.yaml", []byte(r.recipe("task_arithmetic", "weight: 1")))
	if err != nil {
		return nil, err
	}
	if r.Conflict, err = Conflict(ctx, parsed, o.ConflictOptions); err != nil {
		return nil, err
	}

	if n := len(r.Conflict.Whole.Shift); n != len(r.Models) {
		return nil, fmt.Errorf("%w: of %d models %d were compared", ErrNothing, len(r.Models), n)
	}

	var kept []Candidate
	for i, shift := range r.Conflict.Whole.Shift {
		c := r.Models[i]
		c.Shift = shift
		switch {
		case shift > apart:
			return nil, fmt.Errorf("%s: %w: its difference is %.2f times as long as the base %s (models that were "+
				"trained apart are about 1.4 apart, fine-tunes below %.1f)", c.Path, ErrApart, shift, base, apart)
		case shift == 0:
			r.Left = append(r.Left, c.Path)
			continue
		}
		kept = append(kept, c)
	}
	r.Models = kept
	if len(kept) < 2 {
		return nil, fmt.Errorf("%w: %d of the models differ from the base", ErrNothing, len(kept))
	}

	r.decide(o)
	return r, nil
}

// examined looks at what lies at a path.
func examined(path string) (Candidate, error) {
	c := Candidate{Path: path, Kind: "full"}
	text, err := safefile.ReadFile(filepath.Join(path, "adapter_config.json"), 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}

	var config struct {
		R int `json:"r"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return c, fmt.Errorf("%s: adapter_config.json: %w", path, err)
	}
	c.Kind, c.Rank = "adapter", config.R
	return c, nil
}

// decide names the method by the figures.
func (r *Recommendation) decide(o RecommendOptions) {
	whole := r.Conflict.Whole
	cosine := 1 - whole.Cosine
	least, most := math.Inf(1), 0.0
	for _, m := range r.Models {
		least, most = min(least, m.Shift), max(most, m.Shift)
	}

	figures := fmt.Sprintf("their differences have a mean cosine of %.2f and contradict each other %.2f times as "+
		"often as random signs would", cosine, whole.Excess.Disagree)
	wudi := Alternative{
		Method: "wudi_closed",
		When: "what each model has learnt counts most, and the result is measured: its sum may go too far, and alpha " +
			"below 1 shortens it",
		Recipe: r.recipe("wudi_closed"),
	}
	opcm := Alternative{
		Method: "opcm", When: "what the base can do must stay, or models come one after the other",
		Recipe: r.recipe("opcm"),
	}

	switch {
	case cosine >= alike:
		r.take(Alternative{Method: "linear", Recipe: r.recipe("linear", "weight: 1")}, figures+
			": they go one way, as runs of one training do, and their mean keeps it")
		r.Others = []Alternative{wudi}
	case whole.Total <= disjoint && whole.Excess.Disagree < random:
		r.take(Alternative{Method: "task_arithmetic", Recipe: r.recipe("task_arithmetic", "weight: 1")},
			fmt.Sprintf("%s, and they meet with both signs at %.1f %% of the elements alone: their sum keeps each",
				figures, 100*whole.Total))
		r.Others = []Alternative{wudi, opcm}
	case o.KeepBase:
		r.take(opcm, figures+": each is added without what would disturb those before it, and the sum stays as long "+
			"as one of them, so that the base is kept (docs/merging.md)")
		r.Others = []Alternative{wudi}
	case len(r.Models) > 2:
		r.take(Alternative{Method: "consensus", Recipe: r.recipe("consensus")}, figures+": a mean would shrink and a "+
			"sum would mix them; half of the sum is kept where two of them want it, which lost least of fourteen "+
			"merges of a real model (docs/evidence/real.md)")
		r.Others = []Alternative{wudi, opcm}
	default:
		r.take(wudi, figures+": a mean would shrink and a sum would mix them; what each has changed is kept where it "+
			"has its rows (docs/merging.md)")
		r.Others = []Alternative{opcm}
	}
	r.Why = fmt.Sprintf("%s of one base: %s", r.kinds(), r.Why)
	if most/least >= uneven {
		r.Why += fmt.Sprintf("; the longest difference is %.1f times the shortest, and methods that do not weigh each "+
			"by its length (task_arithmetic, ties) let it drown the others", most/least)
	}

	r.Others = append(r.Others, Alternative{Method: "regmean++", When: "there is text for each model"})
	if whole.Excess.Disagree >= random {
		r.Others = append(r.Others, Alternative{
			Method: "mediate",
			When:   "a folder may keep each model's own answers, which no merge of such models does",
			Recipe: r.recipe("mediate"),
		})
	}
	if !slices.ContainsFunc(r.Models, func(c Candidate) bool { return c.Kind != "adapter" }) {
		r.Others = append(r.Others, Alternative{Method: "lora combine", When: "the result shall be an adapter"})
	}
}

// take takes a method.
func (r *Recommendation) take(a Alternative, why string) {
	r.Method, r.Recipe, r.Why = a.Method, a.Recipe, why
}

// kinds says what the models are.
func (r *Recommendation) kinds() string {
	n := 0
	for _, m := range r.Models {
		if m.Kind == "adapter" {
			n++
		}
	}
	switch full := len(r.Models) - n; {
	case n == 0:
		return fmt.Sprintf("%d full fine-tunes", full)
	case full == 0:
		return fmt.Sprintf("%d adapters", n)
	default:
		return fmt.Sprintf("%d full fine-tunes and %d adapters", full, n)
	}
}

// recipe is a recipe of the models, YAML with every path quoted as JSON does.
func (r *Recommendation) recipe(method string, each ...string) string {
	quoted := func(s string) string {
		text, _ := json.Marshal(s) // of a string there is no error
		return string(text)
	}

	var b strings.Builder
	fmt.Fprintf(&b, "merge_method: %s\n", method)
	if method != "linear" { // which would count the base among the models
		fmt.Fprintf(&b, "base_model: %s\n", quoted(r.Base))
	}
	b.WriteString("models:\n")
	for _, m := range r.Models {
		path := m.Path
		if m.Kind == "adapter" {
			path = r.Base + "+" + m.Path
		}
		fmt.Fprintf(&b, "  - model: %s\n", quoted(path))
		if len(each) > 0 {
			fmt.Fprintf(&b, "    parameters: {%s}\n", strings.Join(each, ", "))
		}
	}
	return b.String()
}
