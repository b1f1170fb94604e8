package searchcmd

import (
	"encoding/json"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzSpec: what a worker is told about a search. Windows are as long as the data, in their order.
func FuzzSpec(f *testing.F) {
	for _, s := range []string{
		`{"judge":"x","subjects":[{"name":"a","data":[[1,2,3],[],[],[],[],[]],"lengths":[[2,1],[],[],[],[],[]]}]}`,
		`{"subjects":[{"data":[[1]],"lengths":[[-1]]}]}`, `{"subjects":[{"data":[[1]],"lengths":[[2147483647,1]]}]}`,
		`{"subjects":null}`, `{"options":{"seed":-1}}`, `[`,
	} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		var spec Spec
		if json.Unmarshal(text, &spec) != nil {
			return
		}

		for _, s := range spec.Subjects {
			for i := range s.Data {
				list, err := windows(s.Data[i], s.Lengths[i])
				if err != nil {
					continue
				}

				n := 0
				for _, w := range list {
					n += len(w)
				}

				if n > len(s.Data[i]) || len(list) != len(s.Lengths[i]) {
					t.Errorf("%d ids in %d windows of %d ids and %d lengths", n, len(list), len(s.Data[i]),
						len(s.Lengths[i]))
				}
			}
		}
	})
}
