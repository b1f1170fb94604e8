package cli

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// forecastFrom is the least time that is worth telling before it begins.
const forecastFrom = 30 * time.Second

// slowestRate is how many operations a machine does in a second at least, in products.
const slowestRate = 5e9

// FirstLook are settings of calibration that are good for a first look.
const FirstLook = "--samples 32 --seqlen 512"

const firstLookTokens = 32 * 512

// Forecast says on stderr, before long work, how long the stages that were announced take and how much memory they
// need, after a look at how fast the machine is now. Their work is in tokens that pass a decoder layer. w is what the
// model runs over; calibration says that its size is the user's choice, so that less may do for a first look.
// Nothing is said of work of less than half a minute, nor with --quiet.
func (j *Job) Forecast(m *lm.Model, w corpus.Windows, memory int64, calibration bool) error {
	if j.Quiet || len(w.IDs) == 0 {
		return nil
	}

	work := 0.0
	for _, s := range j.pace.ahead {
		work += s.Work
	}
	// A product takes two operations for each weight. Small work is done in time on any machine, without a look.
	if work*2*float64(m.NumParameters())/float64(m.Blocks()) < slowestRate*forecastFrom.Seconds() {
		return nil
	}

	pace, err := m.Pace(j.Ctx, w.IDs)
	if err != nil {
		return err
	}
	about := time.Duration(pace * work * float64(time.Second))
	if about < forecastFrom {
		return nil
	}

	tokens := Tokens(w)
	text := fmt.Sprintf("%s, about %s", windows(w, tokens), RoughTime(about))
	if memory > 0 {
		text += " and " + Size(memory)
	}
	if calibration && firstLookTokens <= tokens/2 {
		// What is not for the tokens of calibration stays as it is, but is little.
		part := share(float64(firstLookTokens) / float64(tokens))
		text += fmt.Sprintf("; %s takes %s for a first look", FirstLook, part)
	}
	j.Note("%s", text)
	return nil
}

// Tokens is how many tokens sequences have in all.
func Tokens(w corpus.Windows) (n int) {
	for _, ids := range w.IDs {
		n += len(ids)
	}
	return n
}

// windows says how much text a model runs over.
func windows(w corpus.Windows, tokens int) string {
	if tokens == w.SeqLen*len(w.IDs) {
		return fmt.Sprintf("%d × %d tokens", len(w.IDs), w.SeqLen)
	}
	return fmt.Sprintf("%d sequences of %d tokens in all", len(w.IDs), tokens)
}

// RoughTime is a duration as one says it of what is not known exactly: two digits at most.
func RoughTime(d time.Duration) string {
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%.2g s", d.Seconds())
	case d < 100*time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 10*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	case d < 72*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// share says a part of a whole in words.
func share(x float64) string {
	n := math.Round(1 / x)
	names := map[float64]string{
		2: "half", 3: "a third", 4: "a quarter", 8: "an eighth", 10: "a tenth", 16: "a sixteenth",
	}
	if name := names[n]; name != "" {
		return name
	}
	return fmt.Sprintf("1/%.0f", n)
}

// PassMemory is about how many bytes a process takes that runs sequences through a model layer by layer, batch tokens
// at a time, with the states of all of them in memory.
func PassMemory(m *lm.Model, tokens, batch int) int64 {
	const program = 64 << 20 // itself, with a tokenizer
	const float = 4
	c := m.Config()

	largest := int64(0)
	for l := range m.Blocks() {
		weights := int64(0)
		for _, lin := range m.Linears(l) {
			weights += int64(lin.In) * int64(lin.Out)
		}
		largest = max(largest, weights)
	}

	inner := c.Inner
	if c.Experts > 0 {
		inner = max(inner, c.TopK*c.ExpertInner+c.SharedInner)
	}
	row := 3*c.Hidden + 2*(c.Heads+c.KVHeads)*c.HeadDim + 3*inner // the stream and its norms, attention, MLP
	table := int64(c.Vocab) * int64(c.Hidden)
	states := int64(tokens) * int64(c.Hidden)

	return program + float*(table+largest+states+int64(min(batch, tokens))*int64(row))
}

// HessianWork is what summing x·xᵀ over the inputs of all matrices takes, and solving with the sums, in passes of a
// token through a block.
func HessianWork(m *lm.Model, tokens float64) (work float64) {
	for l := range m.Blocks() {
		sums, solves := 0.0, 0.0
		weights := 0.0
		seen := map[int]bool{} // matrices of one width mostly have one input: q, k and v, gate and up
		for _, lin := range m.Linears(l) {
			in, out := float64(lin.In), float64(lin.Out)
			weights += in * out
			solves += in * in * out
			if !seen[lin.In] {
				sums += in * in
				solves += in * in * in
			}
			seen[lin.In] = true
		}
		work += (sums*tokens + solves) / max(1, weights)
	}
	return work
}

// HessianMemory is about how many bytes those sums take for a block, and the factors of the widest; most is the limit
// on the sums, 0 for the libraries' own of 2 GiB.
func HessianMemory(m *lm.Model, most int64) int64 {
	sum, widest := int64(0), int64(0)
	for _, lin := range m.Linears(m.Blocks() / 2) {
		in := int64(lin.In)
		sum, widest = sum+4*in*in, max(widest, in)
	}
	const factors = 2 * 8 // in double precision
	return min(sum, cmp.Or(most, 2<<30)) + factors*widest*widest
}
