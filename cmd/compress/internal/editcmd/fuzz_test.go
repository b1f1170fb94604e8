package editcmd

import (
	"errors"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/corpus"
)

// FuzzRecord: a line of the texts that second moments are taken of.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{`"a"`, `{"text":"b"}`, `{"text":null}`, `{}`, `[`, `1`, `"\ud800"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		defer fuzzlimit.Watch(t, len(line))()
		if _, err := record(line); err != nil && !errors.Is(err, corpus.ErrRecord) {
			t.Error(err)
		}
	})
}
