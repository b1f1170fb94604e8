package strictyaml

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// span is a value with a written form of its own.
type span time.Duration

func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = span(d)
	return err
}

// point takes itself apart.
type point struct{ x, y float64 }

func (p *point) DecodeYAML(r *Reader, n *Node) {
	if list := r.List(n, "a point"); len(list) == 2 {
		p.x, p.y = r.Number(list[0], "x"), r.Number(list[1], "y")
	}
}

// settings has a field of every kind that schemas have.
type settings struct {
	Name   string   `yaml:"name"`
	Count  int      `yaml:"count"`
	Share  float64  `yaml:"share"`
	On     bool     `yaml:"on"`
	Limit  *int     `yaml:"limit"`
	Tags   []string `yaml:"tags"`
	Any    any      `yaml:"any"`
	Wait   span     `yaml:"wait"`
	At     point    `yaml:"at"`
	Inner  inner    `yaml:"inner"`
	Others []inner  `yaml:"others"`
	Hidden string   `yaml:"-"`
	Plain  string
}

type inner struct {
	Key string `yaml:"key,omitempty"`
	N   int    `yaml:"n"`
}

func decoded(t *testing.T, text string, into *settings) error {
	t.Helper()
	src, err := Parse("s.yaml", []byte(text))
	if err != nil {
		return err
	}
	r := src.NewReader()
	r.Decode(src.Documents[0], "the settings", into)
	return r.Err()
}

// TestDecodeFillsEveryKind: and leaves what the file does not mention, or has nothing for, as it was; lists are new.
func TestDecodeFillsEveryKind(t *testing.T) {
	s := settings{
		Name: "before", Count: 7, Tags: []string{"old", "older"}, Hidden: "h", Plain: "p", Inner: inner{"k", 3},
	}
	err := decoded(t, `
share: 1e-3
on: True
limit: 5
tags: [a, '2']
any: 2.5
wait: 1m30s
at: [1, -2]
inner: {key: new}
others: [{n: 1}, {key: x, n: 2}]
count: ~
`, &s)
	if err != nil {
		t.Fatal(err)
	}

	if s.Name != "before" || s.Count != 7 || s.Share != 1e-3 || !s.On || *s.Limit != 5 || s.Any != 2.5 ||
		time.Duration(s.Wait) != 90*time.Second || s.At != (point{1, -2}) || s.Inner != (inner{"new", 3}) ||
		s.Hidden != "h" || s.Plain != "p" {
		t.Errorf("%+v", s)
	}
	if strings.Join(s.Tags, " ") != "a 2" || len(s.Others) != 2 || s.Others[0] != (inner{"", 1}) ||
		s.Others[1] != (inner{"x", 2}) {
		t.Errorf("%+v %+v", s.Tags, s.Others)
	}

	for text, want := range map[string]any{
		"any: true": true, "any: 'true'": "true", "any: yes": "yes", "any: 1": 1.0, "any: 12": 12.0, "any: '12'": "12",
		"any: word": "word",
	} {
		var s settings
		if err := decoded(t, text, &s); err != nil || s.Any != want {
			t.Errorf("%s: %v %v, want %v", text, s.Any, err, want)
		}
	}
}

// TestDecodeRefuses: each fault with its place, its kind and what was there; all of them, not the first alone.
func TestDecodeRefuses(t *testing.T) {
	for text, want := range map[string]struct {
		message string
		kind    error
	}{
		"count: '5'":       {`s.yaml:1:8: count must be a whole number, not "5"`, ErrType},
		"count: 1.5":       {`s.yaml:1:8: count must be a whole number, not "1.5"`, ErrType},
		"count: true":      {`s.yaml:1:8: count must be a whole number, not "true"`, ErrType},
		"count: yes":       {`count must be a whole number, not "yes"`, ErrType},
		"count: 1e300":     {"count must be from -9007199254740992 to 9007199254740992", ErrValue},
		"share: '0.5'":     {`s.yaml:1:8: share must be a number, not "0.5"`, ErrType},
		"share: .nan":      {`share must be a number, not ".nan"`, ErrType},
		"share: off":       {`share must be a number, not "off"`, ErrType},
		"share: [1]":       {"share must be a number, not a list", ErrType},
		"on: 1":            {`s.yaml:1:5: on must be true or false, not "1"`, ErrType},
		"on: 'true'":       {`on must be true or false, not "true"`, ErrType},
		"on: yes":          {`on must be true or false, not "yes"`, ErrType},
		"limit: many":      {`limit must be a whole number, not "many"`, ErrType},
		"tags: a":          {`s.yaml:1:7: tags must be a list, not "a"`, ErrType},
		"tags: [a, [b]]":   {"s.yaml:1:11: an entry of tags must be text, not a list", ErrType},
		"name: [a]":        {"s.yaml:1:7: name must be text, not a list", ErrType},
		"wait: soon":       {`s.yaml:1:7: wait: time: invalid duration "soon"`, ErrValue},
		"wait: [1]":        {"s.yaml:1:7: wait must be text, not a list", ErrType},
		"at: 3":            {`s.yaml:1:5: a point must be a list, not "3"`, ErrType},
		"at: [a, 1]":       {`s.yaml:1:6: x must be a number, not "a"`, ErrType},
		"inner: 3":         {`s.yaml:1:8: inner must be a map of keys, not "3"`, ErrType},
		"inner: {m: 3}":    {`s.yaml:1:9: unknown key "m" in inner; did you mean "n"?`, ErrUnknownKey},
		"others: [{n: a}]": {`s.yaml:1:14: n must be a whole number, not "a"`, ErrType},
		"nme: a":           {`s.yaml:1:1: unknown key "nme" in the settings; did you mean "name"?`, ErrUnknownKey},
		"Hidden: a":        {`unknown key "Hidden"`, ErrUnknownKey},
		"'-': a":           {`unknown key "-"`, ErrUnknownKey},
		"Plain: a":         {`unknown key "Plain"`, ErrUnknownKey},
		"- a":              {"the settings must be a map of keys, not a list", ErrType},
	} {
		var s settings
		if err := decoded(t, text, &s); err == nil || !strings.Contains(err.Error(), want.message) ||
			!errors.Is(err, want.kind) {
			t.Errorf("%s: %v, want %s", text, err, want.message)
		}
	}

	err := decoded(t, "count: a\nshare: b\non: c\ninner: {n: d}\nxyz: 1\n", &settings{})
	if err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("of five faults: %v", err)
	}
}

// TestOnly: further documents are a fault where they begin; no document is none.
func TestOnly(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1": "", "": "", "a: 1\n---\nb: 2\n": "s.yaml:3:1: a plan is one document; another one begins here",
	} {
		src, err := Parse("s.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}

		r := src.NewReader()
		n := r.Only(src, "a plan")
		got := ""
		if err := r.Err(); err != nil {
			got = err.Error()
		}
		if got != want || (n == nil) != (text == "") {
			t.Errorf("%q: %v %q, want %q", text, n, got, want)
		}
	}
}

// TestLongWordsAreCutInMessages: whatever stands there, a message stays a line that can be read.
func TestLongWordsAreCutInMessages(t *testing.T) {
	err := decoded(t, "count: "+strings.Repeat("é", 5000), &settings{})
	if err == nil || len(err.Error()) > 200 || !strings.Contains(err.Error(), strings.Repeat("é", 40)+"…") {
		t.Errorf("%.300v", err)
	}
}
