package lora

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/dataset"
	"github.com/modelcompress/compress/lora/internal/preference"
)

// Objectives are the ways to learn from preferences.
var Objectives = []string{preference.DPO, preference.ORPO, preference.KTO}

// Rewards say how much better than the reference the answers of a step or an evaluation were: β times the difference of
// their log-probabilities, of orpo β times the mean log-probability of a token.
type Rewards struct {
	Chosen   float64 `json:"chosen"`   // mean over the better answers; of kto the good ones
	Rejected float64 `json:"rejected"` // of the others
	Margin   float64 `json:"margin"`
	// Accuracy is the fraction of pairs whose chosen answer has the higher reward; of kto, of answers whose reward is
	// above that of other prompts' answers where they are good, and below where not.
	Accuracy float64 `json:"accuracy"`
}

// Prefer makes the training of an adapter learn which answers are better: dpo and orpo from pairs, kto from single
// answers. The data is what [ReadPreferences] makes. The reference of dpo and kto is the model without the adapter,
// which is asked about all answers that the run will see before the first step.
type Prefer struct {
	Objective string `json:"objective"` // see [Objectives]
	// Beta is how much a difference to the reference weighs, of orpo the part of the preferences in the loss; default
	// 0.1.
	Beta float64 `json:"beta"`
	// Smoothing is the fraction of pairs whose order may be wrong, of dpo; default 0.
	Smoothing float64 `json:"label_smoothing,omitempty"`
	// Desirable and Undesirable are the weights of good and bad answers, of kto; default 1.
	Desirable   float64 `json:"desirable_weight,omitempty"`
	Undesirable float64 `json:"undesirable_weight,omitempty"`

	Good     []bool `json:"-"`               // kto: marks of the answers of the data
	EvalGood []bool `json:"-"`               // and of the held-out ones
	Marks    string `json:"marks,omitempty"` // a hash of Good, which the training writes here
}

// withDefaults fills in what is not set.
func (p Prefer) withDefaults() Prefer {
	p.Beta = or(p.Beta, 0.1)
	if p.Objective == preference.KTO {
		p.Desirable, p.Undesirable = or(p.Desirable, 1), or(p.Undesirable, 1)
	}
	if len(p.Good) > 0 {
		h := sha256.New()
		fmt.Fprint(h, p.Good)
		p.Marks = hex.EncodeToString(h.Sum(nil))
	}
	return p
}

// Validate returns every fault of the settings.
func (p Prefer) Validate() error {
	p = p.withDefaults()
	var faults []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
		}
	}

	bad(!slices.Contains(Objectives, p.Objective), "objective %.60q; known: %s", p.Objective,
		strings.Join(Objectives, ", "))
	bad(!(p.Beta > 0) || math.IsInf(p.Beta, 0), "beta %g is not a positive number", p.Beta)
	bad(!(p.Smoothing >= 0 && p.Smoothing < 0.5), "label smoothing %g is not in [0, 0.5): at a half both orders "+
		"count alike", p.Smoothing)
	bad(p.Smoothing > 0 && p.Objective != preference.DPO, "label smoothing is for objective dpo, not %s", p.Objective)
	for _, w := range []float64{p.Desirable, p.Undesirable} {
		bad(w != 0 && p.Objective != preference.KTO, "weights of good and bad answers are for objective kto, not %s",
			p.Objective)
		bad(!(w >= 0) || math.IsInf(w, 0), "weight %g of answers is not a positive number", w)
	}
	return errors.Join(faults...)
}

// ReadPreferences reads records of answers of which some are preferred, for [Prefer]: "prompt", "chosen" and
// "rejected", texts or turns of conversations; conversations may also share their beginning instead of a prompt. For
// kto also "prompt", "completion" and "label", true or false; good has the marks then. Pairs whose answers are the same
// are left out and counted.
func ReadPreferences(ctx context.Context, path string, m *lm.Model, tok Tokenizer, o DataOptions, objective string) (
	w corpus.Windows, good []bool, counts DataCounts, err error,
) {
	d, err := o.dataset(ctx, m)
	if err != nil {
		return w, nil, counts, err
	}

	w, good, n, err := dataset.ReadPreferences(ctx, path, tok, d, objective == preference.KTO)
	if err == nil {
		err = w.Check(m.Config().Vocab)
	}
	return w, good, DataCounts(n), err
}

// group is how many sequences of the data belong together.
func (o Options) group() int {
	if o.Prefer == nil {
		return 1
	}
	return preference.Group
}

// prefers makes the losses of a run, and asks the reference about its answers. It comes before the adapter acts.
func (o Options) prefers(ctx context.Context, m *lm.Model, data corpus.Windows) (train, held *preference.Loss,
	err error,
) {
	if o.Prefer == nil {
		return nil, nil, nil
	}

	p, err := o.layout(m, data)
	if err != nil {
		return nil, nil, err
	}
	if train, err = o.loss(ctx, m, data, p, o.Prefer.Good); err != nil || o.Eval == nil {
		return train, nil, err
	}

	d := batches.Data{IDs: o.Eval.IDs, Labels: o.Eval.Labels}
	if p, err = batches.New(d, o.evalBatches()); err != nil {
		return nil, nil, fmt.Errorf("evaluation data: %w", err)
	}
	held, err = o.loss(ctx, m, *o.Eval, p, o.Prefer.EvalGood)
	return train, held, err
}

// loss is that of the data of a plan.
func (o Options) loss(ctx context.Context, m *lm.Model, data corpus.Windows, p *batches.Plan, good []bool) (
	*preference.Loss, error,
) {
	s := o.Prefer.withDefaults()
	if data.Labels == nil || len(data.IDs)%preference.Group != 0 ||
		s.Objective == preference.KTO && len(good) != len(data.IDs)/preference.Group {
		return nil, fmt.Errorf("%w: the data are no preferences", ErrConfig)
	}

	l := &preference.Loss{
		Settings: preference.Settings{
			Objective: s.Objective, Beta: s.Beta, Smoothing: s.Smoothing,
			Desirable: s.Desirable, Undesirable: s.Undesirable,
		},
		Good: good,
	}
	if s.Objective == preference.ORPO {
		return l, nil
	}

	l.Refs = make([]float64, len(data.IDs))
	known := make([]bool, len(data.IDs))
	for step := range p.Steps {
		list, _ := p.At(step)
		for _, b := range list {
			if !slices.ContainsFunc(b.Seqs, func(i int32) bool { return !known[i] }) {
				continue
			}
			sums, err := preference.Sums(ctx, m, b)
			if err != nil {
				return nil, fmt.Errorf("reference: %w", err)
			}
			for k, i := range b.Seqs {
				if !known[i] { // the first answer holds, in whichever company it was
					l.Refs[i], known[i] = sums[k], true
				}
			}
		}
	}
	return l, nil
}
