package tune

import (
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzJournal: the journal of an interrupted search.
func FuzzJournal(f *testing.F) {
	for _, s := range []string{
		"{\"generation\":0,\"candidate\":0,\"values\":[0.5],\"score\":1.5}\n" +
			"{\"generation\":1,\"candidate\":3,\"values\":[],\"score\":-1,\"failed\":\"x\"}\n",
		"{\"generation\":1e99}\n", "{}\n{\n", "\n", "null\n", "{\"values\":[1e309]}\n",
	} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		s := search{o: Options{Journal: text}}
		if err := s.readJournal(); err == nil && len(s.journal) > len(text) {
			t.Errorf("%d steps from %d bytes", len(s.journal), len(text))
		}
	})
}
