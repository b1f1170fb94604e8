package store

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzOpen: kept answers, as they are and with the checksums that belong to them. What a file keeps when it is
// opened, it keeps.
func FuzzOpen(f *testing.F) {
	const key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	head := "{\"format\":\"" + format + "\",\"of\":\"m\"}\n"
	for _, s := range []string{
		`{"k":"` + key + `","ll":-1.5,"g":true,"z":true}` + "\n",
		`{"k":"` + key + `","t":"x","n":2,"e":"stop"}` + "\n" + `{"k":"` + key + `","z":true}` + "\n",
		`{"k":"00","z":true}` + "\n", "{}\n", "{", "null\n",
	} {
		f.Add([]byte(head+s), false)
		f.Add([]byte(head+s), true)
	}

	f.Add([]byte("{\"format\":\"other\"}\n"), false)
	path := filepath.Join(f.TempDir(), "answers")
	f.Fuzz(func(t *testing.T, text []byte, sealed bool) {
		defer fuzzlimit.Watch(t, len(text))()

		if sealed {
			text = seal(text)
		}
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		s, err := Open(path, "m")
		if err != nil {
			return
		}

		kept := len(s.answers)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		again, err := Open(path, "m")
		if err != nil {
			t.Fatal(err)
		}

		if len(again.answers) != kept || again.Damaged() > 0 {
			t.Errorf("%d answers, then %d; %d damaged lines were left", kept, len(again.answers), again.Damaged())
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// seal gives every line but the first the checksum of what it says.
func seal(text []byte) (out []byte) {
	for i, body := range bytes.SplitAfter(text, []byte("\n")) {
		var l line
		if i > 0 && json.Unmarshal(body, &l) == nil {
			if whole, err := l.seal(); err == nil {
				body = whole
			}
		}

		out = append(out, body...)
	}

	return out
}
