package jobs

import (
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzResult: messages that should be results. Each item gets its first one, and none that nobody waits for is kept.
func FuzzResult(f *testing.F) {
	for _, s := range []string{
		`{"id":"a","data":"AAE=","attempt":1}`, `{"id":"a","failure":"x","attempt":2}`,
		`{"id":"b"}`, `{"id":1}`, `{`, `null`,
	} {
		f.Add([]byte(s), []byte(`{"id":"a","worker":"second","attempt":1}`))
	}

	f.Fuzz(func(t *testing.T, first, second []byte) {
		defer fuzzlimit.Watch(t, len(first)+len(second))()

		calls := 0
		d := &doing{
			items: []Item{{ID: "a"}}, done: func(Result) { calls++ }, found: map[string]Result{},
			wanted: map[string]int{"a": 0}, arrived: make(chan struct{}, 1),
		}
		d.take("a", first)
		was, had := d.found["a"]
		d.take("a", second)
		if now := d.found["a"]; len(d.found) > 1 || calls != len(d.found) || had && now.Worker != was.Worker {
			t.Errorf("%d results, %d calls: %v, then %v", len(d.found), calls, was, now)
		}
	})
}
