package optimize

import (
	"fmt"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/lm"
)

// Request is an edit as token ids.
type Request struct {
	Prompts [][]int32 // every template with the prompt in it, without the target; the first is the prompt alone
	Lookup  []int     // position of the subject's last token in each
	// sizes of consecutive groups of prompts: a key is the mean over groups of the mean inside a group
	Groups   []int
	Target   []int32 // what shall follow
	KL       []int32 // a sentence about the subject whose continuation shall stay
	KLLookup int     // the position whose continuation that is
}

// Validate checks that positions lie in their prompts and that groups are those of the prompts. The error wraps
// [probe.ErrTokens].
func (r *Request) Validate() error {
	if len(r.Prompts) == 0 || len(r.Lookup) != len(r.Prompts) || len(r.Target) == 0 {
		return fmt.Errorf("%w: a request has prompts, a position in each, and a target", site.ErrTokens)
	}

	total := 0
	for _, n := range r.Groups {
		if n < 1 {
			return fmt.Errorf("%w: an empty group of prompts", site.ErrTokens)
		}
		total += n
	}

	if total != len(r.Prompts) {
		return fmt.Errorf("%w: groups of %d prompts, there are %d", site.ErrTokens, total, len(r.Prompts))
	}

	for i, p := range r.Prompts {
		if r.Lookup[i] < 0 || r.Lookup[i] >= len(p) {
			return fmt.Errorf("%w: prompt %d: position %d of %d", site.ErrTokens, i, r.Lookup[i], len(p))
		}
	}

	if len(r.KL) > 0 && (r.KLLookup < 0 || r.KLLookup >= len(r.KL)) {
		return fmt.Errorf("%w: position %d of %d in the sentence about the subject", site.ErrTokens, r.KLLookup,
			len(r.KL))
	}

	return nil
}

// Bare is the prompt alone.
func (r *Request) Bare() []int32 { return r.Prompts[0] }

// Places are all prompts at the subject's last token.
func (r *Request) Places() []site.Place {
	var out []site.Place
	for i, p := range r.Prompts {
		out = append(out, site.Place{IDs: p[:r.Lookup[i]+1], At: r.Lookup[i]})
	}
	return out
}

// sequences are what a search runs, the tokens from where the vector acts, and the labels of these.
func (r *Request) sequences() (ids [][]int32, from []int, labels [][]int32) {
	for i, p := range r.Prompts {
		at := r.Lookup[i]
		text := append(append([]int32(nil), p...), r.Target...)
		l := Ignored(len(text) - at)
		copy(l[len(p)-at:], r.Target)
		ids, from, labels = append(ids, text), append(from, at), append(labels, l)
	}

	if len(r.KL) > 0 { // one more, so that the last position predicts something
		at := r.KLLookup
		text := append(append([]int32(nil), r.KL...), 0)
		l := Ignored(len(text) - at)
		l[1] = text[at+1]
		ids, from, labels = append(ids, text), append(from, at), append(labels, l)
	}

	return ids, from, labels
}

// Ignored are labels none of which counts.
func Ignored(n int) []int32 {
	labels := make([]int32, n)
	for i := range labels {
		labels[i] = lm.IgnoreLabel
	}
	return labels
}
