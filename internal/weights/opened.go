package weights

import "sync"

// Quantised is a model that was opened whose values are decoded.
type Quantised struct {
	Path string `json:"path"` // of the GGUF file, where a folder holds one
	Form string `json:"form"` // as [Source.Quantisation] says it
}

// String is what a reader of a result has to know.
func (q Quantised) String() string {
	return q.Path + ": its values are those of a quantised model (" + q.Form + ")"
}

// record has the quantised models that the process has opened, in the order of their first opening. It is one for the
// process, so that no reader of weights can leave one out of what is reported.
var record struct {
	sync.Mutex
	list []Quantised
}

// note enters a model that is quantised.
func note(s *Source) {
	if s.quantisation == "" {
		return
	}
	record.Lock()
	defer record.Unlock()
	record.list = append(record.list, Quantised{s.Origin(), s.quantisation})
}

// Opened counts the openings of quantised models so far.
func Opened() int {
	record.Lock()
	defer record.Unlock()
	return len(record.list)
}

// OpenedSince lists the quantised models that were opened after so many openings, each once.
func OpenedSince(count int) (list []Quantised) {
	record.Lock()
	defer record.Unlock()

	seen := map[Quantised]bool{}
	for _, q := range record.list[count:] {
		if !seen[q] {
			list = append(list, q)
		}
		seen[q] = true
	}

	return list
}
