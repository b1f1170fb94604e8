package vocab

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Vocabulary is the output's tokenizer, and where the rows of its tokens come from.
type Vocabulary struct {
	Rows     int64    // of the output's token table, padding included; 0: the recipe leaves the vocabulary alone
	Tokens   int      // of the output
	Warnings []string // what the report should say

	plan     *plan.Plan
	inputs   []plan.Input // as plan.Models
	out      *tokens      // nil for Rows 0
	from     int          // the model whose other files are copied
	template string       // chat template; "" for that of the files
	perModel []*tokens
	ids      []string     // the output's tokens by id, "" for none
	rules    map[int]rule // by id
	maps     map[string]*mapping
}

// rule is a token's rule with its source looked up.
type rule struct {
	force  bool
	kind   recipe.TokenKind
	model  int // of TokenModel, TokenText, TokenID
	row    int // of TokenText and TokenID; of TokenModel the token's own
	at     strictyaml.Place
	active bool // it has a source
}

// Build makes the vocabulary that a plan's recipe asks for; inputs are those that the plan was made of. The error is a
// *strict.Problems for what the recipe says about single tokens.
func Build(p *plan.Plan, inputs []plan.Input) (*Vocabulary, error) {
	v := &Vocabulary{plan: p, from: p.Donor, maps: map[string]*mapping{}, rules: map[int]rule{}}
	v.inputs = make([]plan.Input, len(p.Models))
	for i, ref := range p.Models {
		j := slices.IndexFunc(inputs, func(in plan.Input) bool { return in.Ref == ref })
		if j < 0 {
			return nil, fmt.Errorf("%w: %s is not among the inputs given", recipe.ErrNotFound, ref)
		}
		v.inputs[i] = inputs[j]
	}

	if p.Tokenizer != nil {
		if err := v.tokenizers(); err != nil {
			return nil, err
		}
	}

	return v, v.chooseTemplate()
}

// warn notes something for the report.
func (v *Vocabulary) warn(format string, args ...any) {
	v.Warnings = append(v.Warnings, fmt.Sprintf(format, args...))
}

// tokenizers reads the models' tokenizers and builds the output's.
func (v *Vocabulary) tokenizers() error {
	base := v.plan.Donor
	v.perModel = make([]*tokens, len(v.inputs))
	var err error
	if v.perModel[base], err = readTokens(v.plan.Models[base].String(), v.inputs[base].Dir); err != nil {
		return err
	}

	// Tokens without a row in the table could never be merged, and their ids would clash with those of the other
	// models.
	if err := v.perModel[base].strip(configRows(v.inputs[base].Config, v.perModel[base])); err != nil {
		return err
	}

	for i := range v.inputs {
		if i == base {
			continue
		}

		v.perModel[i], err = readTokens(v.plan.Models[i].String(), v.inputs[i].Dir)
		switch {
		// A model that the recipe names as the source of the tokenizer must have one.
		case errors.Is(err, ErrNoTokenizer) && v.plan.Models[i] != v.plan.Tokenizer.Model:
			v.warn("%s has no tokenizer.json; its tokens are taken to be those of %s", v.plan.Models[i],
				v.plan.Models[base])
			v.perModel[i] = v.perModel[base]
		case err != nil:
			return err
		}
	}

	if err := v.compose(); err != nil {
		return err
	}

	return v.lookUpRules()
}

// configRows gives the size of a model's vocabulary as its configuration says, or as many as its tokens need.
func configRows(config []byte, t *tokens) int {
	o, err := orderedjson.Parse(config)
	if err == nil {
		for _, part := range []string{"", "text_config"} {
			var n int
			if x, ok := o.Find(part); ok && x.Decode("vocab_size", &n) && n > 0 {
				return n
			}
		}
	}

	return t.rows()
}

// compose makes the output's tokenizer.
func (v *Vocabulary) compose() error {
	w := v.plan.Tokenizer
	if w.Vocabulary == recipe.FromRef {
		v.from = slices.Index(v.plan.Models, w.Model)
	}

	var err error
	if v.out, err = v.perModel[v.from].clone(); err != nil {
		return err
	}

	if w.Vocabulary == recipe.Union {
		if err := v.unite(); err != nil {
			return err
		}
	}

	// After the union, so that a token that some model has keeps its own entry.
	for _, x := range w.Tokens {
		if err := v.out.add(x.Text, nil); err != nil {
			return err
		}
	}

	v.Tokens = len(v.out.ids)
	n := v.out.rows()
	v.ids = make([]string, n)
	for token, id := range v.out.ids {
		v.ids[id] = token
	}
	if m := w.Multiple; m > 0 && n%m != 0 { // a multiple of 64, say, which matrix kernels like
		n += m - n%m
	}

	v.Rows = int64(n)
	return v.check()
}

// unite adds the other models' tokens: first their ordinary ones, then their added ones.
func (v *Vocabulary) unite() error {
	// Added tokens of all models first: what is special anywhere must not enter as an ordinary one.
	special := map[string]*added{}
	var order []string
	for _, i := range v.order() {
		t := v.perModel[i]
		rows := configRows(v.inputs[i].Config, t)
		for j := range t.added {
			a := &t.added[j]
			if a.id >= rows {
				continue
			}

			if first, known := special[a.content]; !known {
				special[a.content] = a
				order = append(order, a.content)
			} else if first.special != a.special {
				v.warn("%q is an added token of several models with different settings; the first one's hold",
					a.content)
			}
		}
	}

	for _, i := range v.order() {
		t := v.perModel[i]
		rows, beyond := configRows(v.inputs[i].Config, t), 0
		for _, token := range t.byID() {
			if t.plain[token] >= rows {
				beyond++
				continue
			}

			if special[token] != nil {
				continue
			}
			if err := v.out.add(token, nil); err != nil {
				return err
			}
		}

		if beyond > 0 {
			v.warn("%s: %d tokens have ids beyond its %d rows and are left out", v.plan.Models[i], beyond, rows)
		}
	}

	for _, token := range order {
		if err := v.out.add(token, special[token]); err != nil {
			return err
		}
	}

	return nil
}

// order lists the models, the base first, then as in the recipe.
func (v *Vocabulary) order() []int {
	out := []int{v.plan.Donor}
	for i := range v.plan.Models {
		if i != v.plan.Donor {
			out = append(out, i)
		}
	}
	return out
}

// check reads the output's tokenizer as its users will.
func (v *Vocabulary) check() error {
	text, err := v.out.write()
	if err != nil {
		return err
	}
	if _, err := tokenizer.Parse(text); err != nil {
		return fmt.Errorf("the merged tokenizer cannot be read: %w", err)
	}
	return nil
}

// lookUpRules finds the sources of the recipe's token rules.
func (v *Vocabulary) lookUpRules() error {
	r := v.plan.Document.Reader()
	for _, x := range v.plan.Tokenizer.Tokens {
		out := rule{force: x.Force, kind: x.Source.Kind, at: x.Place, active: x.Source.Kind != recipe.TokenDefault}
		if k := x.Source.Kind; k == recipe.TokenModel || k == recipe.TokenText || k == recipe.TokenID {
			out.model = slices.Index(v.plan.Models, x.Source.Model)
			text := x.Text
			if k == recipe.TokenText {
				text = x.Source.Text
			}

			row, ok := v.perModel[out.model].ids[text]
			if k == recipe.TokenID {
				row, ok = x.Source.ID, true
			}
			if !ok {
				r.Add(x.Place, strictyaml.ErrValue, "%s does not have the token %q", x.Source.Model, text)
			}

			out.row = row
		}

		v.rules[v.out.ids[x.Text]] = out
	}

	return r.Err()
}
