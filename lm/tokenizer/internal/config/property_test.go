package config

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// made is a random JSON value.
func made(random *rand.Rand, depth int) any {
	switch n := random.IntN(8); {
	case n == 0:
		return nil
	case n == 1:
		return random.IntN(2) == 0
	case n == 2:
		return float64(random.IntN(2001) - 1000)
	case n == 3:
		return random.NormFloat64() * 1e10
	case n < 6 || depth == 0:
		runes := []rune("ab\"\\/\n\t\u00e9\u2028😀\u0001")
		var s strings.Builder
		for range random.IntN(6) {
			s.WriteRune(runes[random.IntN(len(runes))])
		}
		return s.String()
	case n == 6:
		list := []any{}
		for range random.IntN(4) {
			list = append(list, made(random, depth-1))
		}
		return list
	}

	object := map[string]any{}
	for i := range random.IntN(4) {
		object[fmt.Sprintf("k%d\"", i)] = made(random, depth-1)
	}
	return object
}

// read reads a value with a cursor alone.
func read(c *Cursor) (any, error) {
	switch b := c.Peek(); {
	case b == '{':
		object := map[string]any{}
		err := c.Object(func(key string) (err error) {
			object[key], err = read(c)
			return err
		})
		return object, err
	case b == '[':
		list := []any{}
		err := c.Array(func() error {
			v, err := read(c)
			list = append(list, v)
			return err
		})
		return list, err
	case b == '"':
		return c.String()
	case b == '-' || b >= '0' && b <= '9':
		return c.Float()
	}

	v, err := c.Raw()
	if err != nil {
		return nil, err
	}
	return map[string]any{"true": true, "false": false, "null": nil}[v.Text], nil
}

// TestCursorReadsJSON: whatever encoding/json writes, packed or indented, a cursor reads the same of it, at once and
// through raw values; of a text that is cut anywhere it reads nothing without an error.
func TestCursorReadsJSON(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	for range 400 {
		want := made(random, 4)
		packed, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		indented, err := json.MarshalIndent(want, "", "\t")
		if err != nil {
			t.Fatal(err)
		}

		for _, text := range []string{string(packed), string(indented), " \r\n" + string(packed) + "\t"} {
			c, err := NewCursor(text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := read(c)
			if err == nil {
				err = c.End()
			}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: %v, %v", text, got, err)
			}

			if c, err = NewCursor(text); err != nil {
				t.Fatal(err)
			}
			raw, err := c.Raw()
			if err != nil || raw.Absent() != (want == nil) {
				t.Fatalf("%q: absent %v, %v", text, raw.Absent(), err)
			}
			if got, err = read(raw.Cursor()); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q, raw: %v, %v", text, got, err)
			}
		}

		if kind := packed[0]; kind == '{' || kind == '[' || kind == '"' {
			part := string(packed[:random.IntN(len(packed))])
			c, err := NewCursor(part)
			if err == nil {
				_, err = read(c)
			}
			if err == nil {
				t.Fatalf("%q of %q is read", part, packed)
			}
		}
	}
}

// TestFailNamesThePlace: a fault is named by its line and column, whatever has been read on the way, raw values too.
func TestFailNamesThePlace(t *testing.T) {
	c, err := NewCursor("{\"a\": 1,\n  \"b\": {\"c\": x}}")
	if err != nil {
		t.Fatal(err)
	}
	_, err = read(c)
	if err == nil {
		t.Fatal("a word is a value")
	}
	direct := err.Error()

	if c, err = NewCursor("{\"a\": 1,\n  \"b\": {\"c\": x}}"); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Raw(); err == nil || err.Error() != direct {
		t.Errorf("raw: %v, direct: %s", err, direct)
	}
}
