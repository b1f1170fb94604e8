package openmodel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge/mediate"
)

// ExpertsFlag adds the flag that chooses experts.
func ExpertsFlag(cmd *cobra.Command, choice *string) {
	cmd.Flags().StringVar(choice, "experts", Auto, expertsHelp)
	cli.Complete(cmd, "experts", Auto, Likeliest, "dense")
}

const expertsHelp = "`MODE` how a Mediator checkpoint picks experts: auto (route each prompt, " +
	"foreign ones to none), top1 (the most probable expert alone), dense (none), NAME, or weights such as " +
	"a=0.6,b=0.4; auto:certain=1,cover=0.9,most=3,soften=1,outside=dense sets what auto does " +
	"(see compress experts route), auto:by=sentence routes every sentence for itself"

// Auto routes every request; Likeliest routes it to one expert, however uncertain.
const (
	Auto      = "auto"
	Likeliest = "top1"
)

// Experts is a mediated model at work.
type Experts struct {
	experts *mediate.Experts
	routed  *mediate.Routed
	tok     *tokenizer.Tokenizer // where sentences are looked for
	now     []float64            // the weights in use
	used    map[string]int
	Choice
}

// Choice is what --experts says.
type Choice struct {
	fixed  []float64 // nil: routed by request
	policy mediate.Policy
}

// OpenExperts attaches experts to a model that was loaded from a folder; nil for an ordinary folder. choice is what
// the flag says.
func OpenExperts(j *cli.Job, m *lm.Model, choice string) (*Experts, error) {
	if !mediate.IsFolder(m.Path()) {
		if choice != Auto && choice != "" {
			return nil, cli.Usagef("--experts %s: %s is no mediated folder", choice, m.Path())
		}
		return nil, nil
	}

	e, err := mediate.Open(j.Ctx, m.Path())
	if err != nil {
		return nil, err
	}

	x := &Experts{experts: e, used: map[string]int{}}
	if x.routed, err = e.Attach(m, 0); err == nil {
		x.Choice, err = x.Choose(choice)
	}
	if err == nil && x.BySentence() {
		if rope := m.Config().Rope; rope != nil && !rope.Static() {
			err = cli.Usagef("--experts %s: this model turns its keys anew with every length, so that sentences "+
				"cannot be computed one after another (HINT: leave out by=sentence)", choice)
		} else {
			x.tok, err = m.Tokenizer()
		}
	}
	if err == nil && x.Unrouted(choice) {
		j.Note("the folder has no router: the dense model answers (--experts chooses: %s)",
			strings.Join(x.experts.Names(), ", "))
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}

	return x, nil
}

// automatic reports whether a choice leaves it to the router, and how it is set.
func automatic(choice string) (word, settings string, ok bool) {
	word, settings, _ = strings.Cut(choice, ":")
	return word, settings, word == Auto || word == Likeliest || word == ""
}

// ByRouter reports whether a choice leaves it to the router, request by request.
func ByRouter(choice string) bool {
	_, _, ok := automatic(choice)
	return ok
}

// CheckWhole finds what is wrong with a choice before a model is opened, for verbs whose requests go one way: settings
// of the router that cannot be, or by=sentence. Names of experts are known only when the folder is open.
func CheckWhole(choice string) error {
	word, settings, ok := automatic(choice)
	if !ok {
		return nil
	}

	var c Choice
	if word == Likeliest {
		c.policy.Select = "top1"
	}
	if err := setPolicy(&c.policy, settings); err != nil {
		return err
	}
	return c.Whole()
}

// Unrouted reports whether a choice leaves it to a router that there is none of: the dense model answers.
func (x *Experts) Unrouted(choice string) bool {
	_, _, ok := automatic(choice)
	return ok && !x.experts.HasRouter()
}

// Choose reads what the flag, or a request, says.
func (x *Experts) Choose(choice string) (c Choice, err error) {
	word, settings, ok := automatic(choice)
	switch {
	case !ok:
		c.fixed, err = ParseWeights(x.experts, choice)
	case word == Likeliest:
		c.policy.Select = "top1"
		fallthrough
	default:
		err = setPolicy(&c.policy, settings)
		if x.Unrouted(choice) {
			c.fixed = make([]float64, len(x.experts.Names()))
		}
	}
	return c, err
}

// setPolicy reads what follows auto: names and values of a policy, with commas between.
func setPolicy(p *mediate.Policy, settings string) error {
	if settings == "" {
		return nil
	}

	given := map[string]bool{}
	for _, part := range strings.Split(settings, ",") {
		name, value, _ := strings.Cut(part, "=")
		if given[name] {
			return cli.Usagef("experts: %s is set twice", name)
		}

		given[name] = true
		number, err := strconv.ParseFloat(value, 64)
		switch name {
		case "certain":
			p.Certain = number
		case "cover":
			p.Cover = number
		case "most":
			p.Most, err = strconv.Atoi(value)
		case "soften":
			p.Soften = number
		case "outside":
			p.Outside, err = value, nil
		case "by":
			p.By, err = value, nil
		default:
			return cli.Usagef("experts: %.40q: want certain, cover, most, soften, outside or by", part)
		}
		if err != nil {
			return cli.Usagef("experts: %.40q: want a number after %s=", part, name)
		}
	}

	return cli.Usage(p.Validate())
}

// ParseWeights reads dense, the name of an expert, or weights by name.
func ParseWeights(e *mediate.Experts, text string) ([]float64, error) {
	byName := map[string]float64{}
	if slices.Contains(e.Names(), text) {
		byName[text] = 1
	} else if text != "dense" {
		for _, part := range strings.Split(text, ",") {
			name, value, ok := strings.Cut(part, "=")
			w, err := strconv.ParseFloat(value, 64)
			if !ok || err != nil {
				return nil, cli.Usagef("experts %q: want dense, a name (%s), or weights such as %s=1", text,
					strings.Join(e.Names(), ", "), e.Names()[0])
			}

			if _, twice := byName[name]; twice {
				return nil, cli.Usagef("experts %q: %s has two weights", text, name)
			}

			byName[name] = w
		}
	}

	w, err := e.Weights(byName)
	return w, cli.Usage(err)
}

// Close lets go of the experts.
func (x *Experts) Close() error {
	if x == nil {
		return nil
	}
	return x.experts.Close()
}

// Names are the experts.
func (x *Experts) Names() []string { return x.experts.Names() }

// MemorySize is the most bytes that the weights take which are made of the experts.
func (x *Experts) MemorySize() int64 { return x.routed.MemorySize() }

// ExpertsIdentity is a text that changes with everything that decides what the experts do.
func ExpertsIdentity(ctx context.Context, dir, choice string) (string, error) {
	if !mediate.IsFolder(dir) {
		return "", nil
	}
	sum, err := cli.FileHash(ctx, filepath.Join(dir, "mediator", "mediator.json"))
	return "mediated " + sum + " " + choice, err
}

// Route gives the weights for a request.
func (x *Experts) Route(ctx context.Context, ids []int32) ([]float64, error) {
	return x.RouteBy(ctx, x.Choice, ids)
}

// RouteBy is Route by another choice than the flag's.
func (x *Experts) RouteBy(ctx context.Context, c Choice, ids []int32) ([]float64, error) {
	if c.fixed != nil {
		return c.fixed, nil
	}
	if err := c.Whole(); err != nil {
		return nil, err
	}
	w, _, err := x.routed.Route(ctx, ids, c.policy)
	if err == nil {
		x.used[WeightsText(x.Names(), w)]++
	}
	return w, err
}

// Whole refuses a choice that splits requests, for those who compute them in one way.
func (c Choice) Whole() error {
	if c.fixed == nil && c.policy.By != "" {
		return cli.Usagef("experts: by=sentence is for generate, forward and ppl; here a request goes one way " +
			"(HINT: leave out by=sentence)")
	}
	return nil
}

// BySentence reports whether the sentences of a request may go different ways.
func (x *Experts) BySentence() bool {
	return x != nil && x.fixed == nil && x.policy.By == mediate.BySentence
}

// Pieces routes the sentences of a request.
func (x *Experts) Pieces(ctx context.Context, ids []int32) ([]mediate.Piece, error) {
	texts, decoder := make([]string, len(ids)), x.tok.StreamDecoder(false)
	for i, id := range ids {
		texts[i] = decoder.Next(id)
	}

	pieces, err := x.routed.RouteSentences(ctx, ids, mediate.SentenceEnds(texts), x.policy)
	for _, p := range pieces {
		x.used[WeightsText(x.Names(), p.Weights)]++
	}
	return pieces, err
}

// Sentences lets the next passes over requests compute each sentence in its way. They are those that run alone.
func (x *Experts) Sentences(ctx context.Context, requests [][]int32) error {
	var lens []int
	var weights [][]float64
	for _, ids := range requests {
		pieces, err := x.Pieces(ctx, ids)
		if err != nil {
			return err
		}
		for _, p := range pieces {
			lens, weights = append(lens, p.Len), append(weights, p.Weights)
		}
	}

	// One way for all is cheaper, and rounds effective weights as a request that is routed as a whole does.
	if !slices.ContainsFunc(weights, func(w []float64) bool { return !slices.Equal(w, weights[0]) }) {
		return x.Use(weights[0])
	}
	_, err := x.routed.Mixed(lens, weights)
	if errors.Is(err, mediate.ErrMixed) {
		err = fmt.Errorf("sentences that go different ways: %w (HINT: generate and ppl can do it, or leave out "+
			"by=sentence)", err)
	}
	return err
}

// EachPiece routes the sentences of a request and calls run for the tokens of each piece, which are to be computed with
// its experts.
func (x *Experts) EachPiece(ctx context.Context, ids []int32, run func(begin, end int) error) error {
	pieces, err := x.Pieces(ctx, ids)
	if err != nil {
		return err
	}

	begin := 0
	for _, p := range pieces {
		if err := x.Use(p.Weights); err != nil {
			return err
		}
		if err := run(begin, begin+p.Len); err != nil {
			return err
		}
		begin += p.Len
	}
	return nil
}

// Read computes a prompt but for its last token into a session, each sentence in its way, that of the last one from
// then on, and says which ways they were.
func (x *Experts) Read(ctx context.Context, s *lm.Session, ids []int32) (string, error) {
	var ways []string
	err := x.EachPiece(ctx, ids, func(begin, end int) error {
		ways = append(ways, fmt.Sprintf("%s (%d tokens)", WeightsText(x.Names(), x.now), end-begin))
		if end = min(end, len(ids)-1); end == begin {
			return nil
		}
		_, err := s.Append(ctx, ids[begin:end])
		return err
	})
	return strings.Join(ways, ", "), err
}

// Use computes with weights from now on.
func (x *Experts) Use(w []float64) error {
	x.now = w
	return x.routed.Use(w)
}

// Enter routes a request and computes with its weights from now on.
func (x *Experts) Enter(ctx context.Context, ids []int32) ([]float64, error) {
	w, err := x.Route(ctx, ids)
	if err != nil {
		return nil, err
	}
	return w, x.Use(w)
}

// EnterFor is Enter with a description of the weights; without experts it does nothing.
func (x *Experts) EnterFor(ctx context.Context, ids []int32) (string, error) {
	if x == nil {
		return "", nil
	}
	w, err := x.Enter(ctx, ids)
	return WeightsText(x.Names(), w), err
}

// Used counts how many requests went to which weights; nil without routing.
func (x *Experts) Used() map[string]int {
	if x == nil || x.fixed != nil {
		return nil
	}
	return x.used
}

// WeightsText writes weights for people: dense, the name of an expert that answers alone, or names with weights.
func WeightsText(names []string, w []float64) string {
	var parts []string
	alone := "" // the last one of weight 1
	for i, v := range w {
		if v == 1 {
			alone = names[i]
		}
		if v != 0 {
			parts = append(parts, fmt.Sprintf("%s=%.4g", names[i], v))
		}
	}

	switch {
	case len(parts) == 0:
		return "dense"
	case len(parts) == 1 && alone != "":
		return alone
	}

	return strings.Join(parts, ",")
}

// Group is requests that are computed with the same weights.
type Group struct {
	Weights []float64
	At      []int // positions of the requests
}

// Groups routes requests and puts those together that go the same way, in the order of their first ones.
func (x *Experts) Groups(ctx context.Context, requests [][]int32) ([]Group, error) {
	var list []Group
	for i, ids := range requests {
		w, err := x.Route(ctx, ids)
		if err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}

		k := slices.IndexFunc(list, func(g Group) bool { return slices.Equal(g.Weights, w) })
		if k < 0 {
			k = len(list)
			list = append(list, Group{Weights: w})
		}

		list[k].At = append(list[k].At, i)
	}

	return list, nil
}

// Together computes sequences that go different ways in one pass from now on, or those of the only group with
// its weights. It returns false, and changes nothing, where a pass for each group is cheaper or where one for
// all is not possible.
func (x *Experts) Together(ids [][]int32, groups []Group) (bool, error) {
	if len(groups) == 1 {
		return true, x.Use(groups[0].Weights)
	}

	lens, weights := make([]int, len(ids)), make([][]float64, len(ids))
	for _, g := range groups {
		for _, i := range g.At {
			lens[i], weights[i] = len(ids[i]), g.Weights
		}
	}

	if !x.routed.MixedIsCheaper(lens, weights) {
		return false, nil
	}

	_, err := x.routed.Mixed(lens, weights)
	if errors.Is(err, mediate.ErrMixed) {
		return false, nil
	}

	return err == nil, err
}

// Router is what evaluations ask; nil where there is nothing to ask.
func (x *Experts) Router() func(ctx context.Context, prompts [][]int32, run func(at []int) error) error {
	if x == nil {
		return nil
	}

	return func(ctx context.Context, prompts [][]int32, run func(at []int) error) error {
		groups, err := x.Groups(ctx, prompts)
		for _, g := range groups {
			if err == nil {
				err = x.Use(g.Weights)
			}
			if err == nil {
				err = run(g.At)
			}
		}

		return err
	}
}
