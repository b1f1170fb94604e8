package optimize

import "github.com/modelcompress/compress/lm"

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
