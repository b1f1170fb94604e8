package prune

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/internal/paired"
)

// Contender is one way to prune, under a name.
type Contender struct {
	Name    string
	Options Options // Out and Masks must be nil
}

// Comparison is what Compare found. Losses are in nats a token.
type Comparison struct {
	Calibration corpus.Windows `json:"calibration"`
	Test        corpus.Windows `json:"test"`
	Dense       Outcome        `json:"dense"`
	Runs        []Outcome      `json:"runs"`
	Pairs       []Pair         `json:"pairs"` // of every two runs
}

// Outcome is a model's loss on the test windows.
type Outcome struct {
	Name       string    `json:"name"`
	Sparsity   float64   `json:"sparsity"` // of the pruned matrices
	Loss       float64   `json:"loss"`     // mean over all predicted tokens
	LossSE     float64   `json:"loss_se"`  // standard error over windows
	Perplexity float64   `json:"perplexity"`
	PPLSE      float64   `json:"perplexity_se"` // Perplexity·LossSE
	Windows    []float64 `json:"windows"`       // mean loss of each
	Seconds    float64   `json:"seconds"`       // of pruning
	Report     *Report   `json:"report,omitempty"`
}

// Pair is a paired t-test of two runs over the test windows.
type Pair struct {
	A          string  `json:"a"`
	B          string  `json:"b"`
	Difference float64 `json:"difference"` // mean over windows of A's loss less B's
	SE         float64 `json:"se"`
	P          float64 `json:"p"` // two-sided; not corrected for the number of pairs
}

// Compare prunes a model in several ways, all with the same calibration data, and measures each on the same test windows, from
// position 0 each. open loads the dense model anew; Compare closes it. done, which may be nil, is called after every run. The
// errors are those of open, Model and lm.Model.Forward, with the contender's name.
func Compare(ctx context.Context, open func(context.Context) (*lm.Model, error), calib, test corpus.Windows, runs []Contender, done func(Outcome)) (*Comparison, error) {
	c := &Comparison{Calibration: calib, Test: test}
	if err := checkContenders(test, runs); err != nil {
		return nil, err
	}
	var err error
	if c.Dense, err = compete(ctx, open, calib, test, nil); err != nil {
		return nil, fmt.Errorf("dense model: %w", err)
	}
	for i := range runs {
		out, err := compete(ctx, open, calib, test, &runs[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", runs[i].Name, err)
		}
		if c.Runs = append(c.Runs, out); done != nil {
			done(out)
		}
	}
	for i, a := range c.Runs {
		for _, b := range c.Runs[i+1:] {
			p := Pair{A: a.Name, B: b.Name}
			p.Difference, p.SE, p.P = paired.Test(a.Windows, b.Windows)
			c.Pairs = append(c.Pairs, p)
		}
	}
	return c, nil
}

func checkContenders(test corpus.Windows, runs []Contender) error {
	names := map[string]bool{}
	for _, r := range runs {
		switch {
		case r.Name == "" || names[r.Name]:
			return fmt.Errorf("%w: run %q: every run needs a name of its own", ErrOptions, r.Name)
		case r.Options.Out != nil || r.Options.Masks != nil:
			return fmt.Errorf("%w: run %s: a comparison writes no model and no masks", ErrOptions, r.Name)
		}
		if err := r.Options.Validate(); err != nil {
			return fmt.Errorf("run %s: %w", r.Name, err)
		}
		names[r.Name] = true
	}
	for i, w := range test.IDs {
		if len(w) < 2 {
			return fmt.Errorf("%w: %s: test window %d has %d tokens; want at least 2", ErrOptions, test.Source, i, len(w))
		}
	}
	if len(test.IDs) == 0 {
		return fmt.Errorf("%w: no test windows", ErrOptions)
	}
	return nil
}

// compete prunes, unless run is nil, and measures.
func compete(ctx context.Context, open func(context.Context) (*lm.Model, error), calib, test corpus.Windows, run *Contender) (Outcome, error) {
	m, err := open(ctx)
	if err != nil {
		return Outcome{}, err
	}
	defer m.Close()
	out := Outcome{Name: "dense"}
	batch := 8192
	if run != nil {
		out.Name = run.Name
		start := time.Now()
		if out.Report, err = Model(ctx, m, calib, run.Options); err != nil {
			return out, err
		}
		out.Seconds, out.Sparsity, batch = time.Since(start).Seconds(), out.Report.Total.Sparsity, out.Report.Options.BatchTokens
	}
	return out, out.measure(ctx, m, test.IDs, batch)
}

// measure runs the test windows, about so many tokens at a time.
func (o *Outcome) measure(ctx context.Context, m *lm.Model, ids [][]int32, batchTokens int) error {
	total, tokens := 0.0, 0
	for lo := 0; lo < len(ids); {
		hi, n := lo, 0
		for hi < len(ids) && (hi == lo || n+len(ids[hi]) <= batchTokens) {
			n += len(ids[hi])
			hi++
		}
		r, err := m.Forward(ctx, ids[lo:hi], lm.ForwardOptions{})
		if err != nil {
			return err
		}
		for _, window := range r.LossPerToken {
			sum := 0.0
			for _, loss := range window {
				sum += loss
			}
			o.Windows = append(o.Windows, sum/float64(len(window)))
			total, tokens = total+sum, tokens+len(window)
		}
		lo = hi
	}
	o.Loss = total / float64(tokens)
	_, o.LossSE = paired.Mean(o.Windows)
	o.Perplexity = math.Exp(o.Loss)
	o.PPLSE = o.Perplexity * o.LossSE
	return nil
}
