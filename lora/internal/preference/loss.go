// Package preference has the losses that learn which of two answers is the better one, or which are good and which are
// not: DPO (Rafailov et al., arXiv 2305.18290), ORPO (Hong et al., arXiv 2403.07691) and KTO (Ethayarajh et al., arXiv
// 2402.01306), as the TRL library computes them. With l the log-probability of an answer's tokens after its prompt, r =
// l minus that of the reference, and σ the logistic function:
//
//	dpo   -(1-ε)·log σ(βz) - ε·log σ(-βz)      z = r of the chosen answer - r of the rejected one; mean over pairs
//	orpo  NLL(prompt and chosen answer) - β·log σ(odds(c) - odds(j))
//	      odds(x) = x - log(1 - eˣ) of the mean log-probability of a token of the chosen (c) and the rejected
//	      answer (j); the NLL is the mean over all tokens
//	kto   λ·(1 - σ(β(r - k))) of a good answer, λ'·(1 - σ(β(k - r))) of a bad one; mean over answers; k ≥ 0 is
//	      the mean r of answers that belong to other prompts, of which no gradient is taken
//
// A step first measures the log-probabilities of its answers, then says by how much each token counts: all three losses
// are functions of sums over tokens, so that the gradient of the logits is that of the cross-entropy times a number for
// each sequence.
package preference

import (
	"context"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/batches"
)

// The objectives.
const (
	DPO  = "dpo"
	ORPO = "orpo"
	KTO  = "kto"
)

// Settings of a loss.
type Settings struct {
	Objective   string
	Beta        float64
	Smoothing   float64 // ε of dpo
	Desirable   float64 // λ of kto
	Undesirable float64 // λ' of kto
}

// Group is how many sequences of the data belong together: the chosen and the rejected answer, or an answer and another
// prompt's answer after the same prompt.
const Group = 2

// Rewards are β·r, of orpo β times the mean log-probability of a token.
type Rewards struct {
	Chosen   float64 `json:"chosen"`   // mean over the better answers; of kto the good ones
	Rejected float64 `json:"rejected"` // of the others
	Margin   float64 `json:"margin"`
	// Accuracy is the fraction of pairs whose chosen answer has the higher reward; of kto, of answers whose reward is
	// above β·k where they are good, and below where not.
	Accuracy float64 `json:"accuracy"`
}

// Loss is the loss of the steps of a run.
type Loss struct {
	Settings
	Refs []float64 // log-probabilities with the reference of the sequences of the data; orpo has none
	Good []bool    // of kto: marks of the groups

	seqs  []sequence // of the step, in the order of its batches
	value float64
	taken tally
}

// sequence is what is known of one sequence of a step.
type sequence struct {
	number int // in the data
	logp   float64
	tokens int
	nll    float64 // of all tokens, of orpo
	all    int
	weight float64 // of the loss of each token of the answer
	whole  float64 // of each token, of orpo, beside that
}

// tally adds rewards up.
type tally struct {
	chosen, rejected sum
	right            sum
}

// sum is some numbers and how many.
type sum struct {
	total float64
	n     int
}

func (s *sum) add(v float64) {
	s.total += v
	s.n++
}

func (s sum) mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.total / float64(s.n)
}

// Start begins a step.
func (l *Loss) Start() { l.seqs = l.seqs[:0] }

// Value is the loss of the step that was weighed last.
func (l *Loss) Value() float64 { return l.value }

// Groups is the number of groups of the step.
func (l *Loss) Groups() int { return len(l.seqs) / Group }

// Rewards are those of all steps since they were asked for last.
func (l *Loss) Rewards() *Rewards {
	t := l.taken
	l.taken = tally{}
	r := &Rewards{Chosen: t.chosen.mean(), Rejected: t.rejected.mean(), Accuracy: t.right.mean()}
	if t.chosen.n > 0 && t.rejected.n > 0 {
		r.Margin = r.Chosen - r.Rejected
	}
	return r
}

// Sums gives the log-probability of the answer of each sequence of a batch.
func Sums(ctx context.Context, m *lm.Model, b batches.Batch) ([]float64, error) {
	r, err := m.Forward(ctx, b.IDs, lm.ForwardOptions{Labels: b.Labels})
	if err != nil {
		return nil, err
	}

	list := make([]float64, len(b.IDs))
	for i, losses := range r.LossPerToken {
		for _, v := range losses { // 0 where a token does not count
			list[i] -= v
		}
	}
	return list, nil
}

// Measure adds the sequences of a batch to the step.
func (l *Loss) Measure(ctx context.Context, m *lm.Model, b batches.Batch) error {
	labels := b.Labels
	if l.Objective == ORPO {
		labels = nil // all tokens: the chosen answers' loss has those of the prompts too
	}

	r, err := m.Forward(ctx, b.IDs, lm.ForwardOptions{Labels: labels})
	if err != nil {
		return err
	}

	for i, losses := range r.LossPerToken {
		s := sequence{number: int(b.Seqs[i])}
		for t, v := range losses {
			if b.Labels[i][t+1] >= 0 {
				s.logp -= v
				s.tokens++
			}
			s.nll += v
			s.all++
		}
		l.seqs = append(l.seqs, s)
	}
	return nil
}

// Weigh computes the loss of the step, and by how much the tokens of its sequences count.
func (l *Loss) Weigh() {
	l.value = 0
	switch l.Objective {
	case DPO:
		l.dpo()
	case ORPO:
		l.orpo()
	case KTO:
		l.kto()
	}
}

func (l *Loss) ratio(s *sequence) float64 { return s.logp - l.Refs[s.number] }

// pair notes the rewards of a pair.
func (l *Loss) pair(chosen, rejected float64) {
	l.taken.chosen.add(chosen)
	l.taken.rejected.add(rejected)
	right := 0.0
	if chosen > rejected {
		right = 1
	}
	l.taken.right.add(right)
}

func (l *Loss) dpo() {
	n := float64(l.Groups())
	for i := 0; i < len(l.seqs); i += Group {
		good, bad := &l.seqs[i], &l.seqs[i+1]
		c, j := l.ratio(good), l.ratio(bad)
		z := l.Beta * (c - j)
		l.value += (-(1-l.Smoothing)*logSigmoid(z) - l.Smoothing*logSigmoid(-z)) / n

		// What counts is -∂loss/∂l: it multiplies the gradient of -l.
		w := l.Beta * ((1-l.Smoothing)*sigmoid(-z) - l.Smoothing*sigmoid(z)) / n
		good.weight, bad.weight = w, -w
		l.pair(l.Beta*c, l.Beta*j)
	}
}

func (l *Loss) orpo() {
	n, tokens := float64(l.Groups()), 0.0
	for i := 0; i < len(l.seqs); i += Group {
		tokens += float64(l.seqs[i].all)
	}

	for i := 0; i < len(l.seqs); i += Group {
		good, bad := &l.seqs[i], &l.seqs[i+1]
		c, j := good.logp/float64(good.tokens), bad.logp/float64(bad.tokens)
		odds := c - j - (logRest(c) - logRest(j))
		l.value += good.nll/tokens - l.Beta*logSigmoid(odds)/n

		w := l.Beta * sigmoid(-odds) / n
		good.whole = 1 / tokens
		good.weight = -w / math.Expm1(c) / float64(good.tokens)
		bad.weight = w / math.Expm1(j) / float64(bad.tokens)
		l.pair(l.Beta*c, l.Beta*j)
	}
}

func (l *Loss) kto() {
	n, k := float64(l.Groups()), 0.0
	for i := 0; i < len(l.seqs); i += Group {
		k += l.ratio(&l.seqs[i+1]) / n
	}
	k = max(k, 0)

	for i := 0; i < len(l.seqs); i += Group {
		s := &l.seqs[i]
		good := l.Good[s.number/Group]
		r := l.ratio(s)
		sign, factor := 1.0, l.Desirable
		if !good {
			sign, factor = -1, l.Undesirable
		}

		p := sigmoid(sign * l.Beta * (r - k))
		l.value += factor * (1 - p) / n
		s.weight = sign * factor * l.Beta * p * (1 - p) / n

		right := 0.0
		if sign*(r-k) > 0 {
			right = 1
		}
		l.taken.right.add(right)
		if good {
			l.taken.chosen.add(l.Beta * r)
		} else {
			l.taken.rejected.add(l.Beta * r)
		}
	}
}

// Pass is what a backward pass of the step takes: sequences, labels, and the objective that weighs their tokens. from
// is the number of sequences in the step before the batch.
func (l *Loss) Pass(m *lm.Model, b batches.Batch, from int) (ids, labels [][]int32,
	objective func(logits kernels.Mat, labels []int32, losses []float64) error,
) {
	var weights []float32
	for i := range b.IDs {
		s := &l.seqs[from+i]
		answer := b.Labels[i]
		counts := answer
		switch {
		case l.Objective == KTO && i%Group == 1:
			continue // of other prompts' answers no gradient is taken
		case l.Objective == ORPO && i%Group == 0:
			counts = b.IDs[i]
		}

		ids, labels = append(ids, b.IDs[i]), append(labels, counts)
		for t := 1; t < len(counts); t++ {
			if counts[t] < 0 {
				continue
			}
			w := s.whole
			if answer[t] >= 0 {
				w += s.weight
			}
			weights = append(weights, float32(w))
		}
	}

	ops := m.Device().Ops()
	at := 0 // the head comes with some rows at a time, in order
	return ids, labels, func(logits kernels.Mat, labels []int32, _ []float64) error {
		own := weights[at : at+len(labels)]
		at += len(labels)
		for lo := 0; lo < len(own); {
			hi := lo + 1
			for hi < len(own) && own[hi] == own[lo] {
				hi++
			}
			rows := logits.RowRange(lo, hi)
			ops.CrossEntropyBackward(rows, kernels.Mat{}, rows, labels[lo:hi], own[lo])
			lo = hi
		}
		return ops.Sync()
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// logSigmoid is log σ(x) without loss of small ones.
func logSigmoid(x float64) float64 { return min(x, 0) - math.Log1p(math.Exp(-math.Abs(x))) }

// logRest is log(1 - eˣ).
func logRest(x float64) float64 { return math.Log(-math.Expm1(x)) }
