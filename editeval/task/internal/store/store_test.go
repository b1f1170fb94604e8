package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// filled writes three passes of two answers each.
func filled(t *testing.T) (path string, text []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "answers")
	s, err := Open(path, "m")
	if err != nil {
		t.Fatal(err)
	}

	for i := range int32(6) {
		if err := s.Add(key(i), Answer{LL: -1.5 - float64(i)/3, Greedy: i == 2}); err != nil {
			t.Fatal(err)
		}

		if i%2 == 1 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	text, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return path, text
}

func key(i int32) Key { return KeyOf("likelihood", [][]int32{{i}}) }

// TestEarlierBuild: lines of a build that did not say how many belong together are taken as they are.
func TestEarlierBuild(t *testing.T) {
	path, text := filled(t)
	old := bytes.SplitAfterN(text, []byte("\n"), 2)[0]
	for i := range int32(3) {
		k := key(i)
		ll := -1.5 - float64(i)/3
		l, err := line{Key: hex.EncodeToString(k[:]), LL: &ll, Greedy: i == 2, Last: i == 2}.seal()
		if err != nil {
			t.Fatal(err)
		}
		old = append(old, l...)
	}

	if have, damaged, after := reopen(t, path, old); have != "012" || damaged != 0 || !bytes.Equal(after, old) {
		t.Errorf("answers %s, %d damaged", have, damaged)
	}
}

// reopen opens a file with another text and says which answers it has.
func reopen(t *testing.T, path string, text []byte) (have string, damaged int, after []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}

	s, err := Open(path, "m")
	if err != nil {
		t.Fatal(err)
	}

	for i := range int32(6) {
		a, ok := s.Get(key(i))
		if ok {
			have += string(rune('0' + i))
		}

		if want := (Answer{LL: -1.5 - float64(i)/3, Greedy: i == 2}); ok && a != want {
			t.Errorf("answer %d: %+v", i, a)
		}
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	after, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return have, s.Damaged(), after
}

// What was cut or damaged is dropped with all that was made durable together with it, and is gone from the file.
func TestDamage(t *testing.T) {
	path, text := filled(t)
	lines := bytes.SplitAfter(text, []byte("\n"))
	join := func(at int, line string) []byte {
		list := bytes.Join(lines[:at], nil)
		return append(append(list, line...), bytes.Join(lines[at+1:], nil)...)
	}

	of := func(i int) string { return string(lines[i]) }
	unsigned := of(4)[:strings.Index(of(4), `,"s":`)] + "}\n"
	for name, c := range map[string]struct {
		text    []byte
		have    string
		damaged int
	}{
		"whole":           {text, "012345", 0},
		"torn":            {text[:len(text)-9], "0123", 0},
		"torn by a line":  {text[:len(text)-len(lines[6])], "0123", 0},
		"digit":           {join(3, strings.Replace(of(3), `"ll":-2`, `"ll":-3`, 1)), "0145", 1},
		"greedy":          {join(3, strings.Replace(of(3), `"g":true,`, ``, 1)), "0145", 1},
		"zero byte":       {join(1, "\x00"+of(1)[1:]), "2345", 1},
		"end of a pass":   {join(2, "\x00"+of(2)[1:]), "45", 1},
		"key":             {join(5, strings.Replace(of(5), `"k":"`, `"k":"0`, 1)), "0123", 1},
		"no checksum":     {join(4, unsigned), "0145", 1},
		"missing":         {join(3, ""), "0145", 1},
		"twice":           {join(3, of(3)+of(3)), "0145", 1},
		"twice, at last":  {append(bytes.Clone(text), lines[3]...), "012345", 0},
		"end missing":     {join(4, ""), "01", 1},
		"only the header": {lines[0], "", 0},
	} {
		have, damaged, after := reopen(t, path, c.text)
		if have != c.have || damaged != c.damaged {
			t.Errorf("%s: answers %s, %d damaged; want %s, %d", name, have, damaged, c.have, c.damaged)
		}
		if again, damaged, _ := reopen(t, path, after); again != c.have || damaged != 0 {
			t.Errorf("%s, read again: answers %s, %d damaged", name, again, damaged)
		}
	}

	if err := os.WriteFile(path, []byte("something\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, "m"); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, "n"); !errors.Is(err, ErrOther) {
		t.Error(err)
	}
}
