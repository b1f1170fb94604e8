package chat

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestReadMessages(t *testing.T) {
	want := []Message{{"system", "Be short."}, {"user", "Hi"}}
	for _, text := range []string{
		`[{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]`,
		`{"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}], "id": 4}`,
		`{"role": "system", "content": "Be short."}` + "\n" + `{"role": "user", "content": "Hi"}` + "\n",
		`[{"role": "system", "content": "Be short."},
		  {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]`,
	} {
		if got, err := ReadMessages([]byte(text)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}

	for text, says := range map[string]string{
		"":   "there are no messages",
		"[]": "there are no messages",
		"{":  "byte",
		"3":  "role and content",

		`[{"role": "user"}]`:                  "message 1: want an object with role and content",
		`{"role": "user", "content": null}`:   "no text",
		`{"role": "", "content": "x"}`:        "role",
		`{"role": "user", "content": 3}`:      "no text",
		`[[]]`:                                "role",
		`{"messages": []} {"messages": []}`:   "several",
		`[{"role":"user","content":"a"}] [3]`: "several",

		`{"role": "user", "content": [{"type": "image", "url": "x"}]}`: `type "image"`,
		strings.Repeat(`{"role":"user","content":""}`, 10_001):         "more than",
	} {
		if _, err := ReadMessages([]byte(text)); !errors.Is(err, ErrMessages) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

func TestUnanswered(t *testing.T) {
	of := func(roles string) (list []Message) {
		for r := range strings.FieldsSeq(roles) {
			list = append(list, Message{Role: r})
		}
		return list
	}
	for roles, want := range map[string][]int{
		"user": {1}, "system user": {2}, "user assistant user": {3}, "user user": {1, 2}, "user assistant": nil,
		"system": nil, "": nil,
	} {
		if got := Unanswered(of(roles)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", roles, got, want)
		}
	}

	if got := With("s", of("system user")); len(got) != 2 || got[0] != (Message{"system", "s"}) {
		t.Errorf("%v", got)
	}
	if got := With("s", of("user")); len(got) != 2 || got[0].Role != "system" {
		t.Errorf("%v", got)
	}
	if got := With("", of("user")); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestEnd(t *testing.T) {
	for source, want := range map[string]string{
		`{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}`: `<|im_end|>\n`,
		`{% for m in messages %}{{ m.content | trim }}{{ eos_token }}{% endfor %}`:                 `</s>`,
		`{% for m in messages %}{{ m.role }}{% endfor %}`:                                          "",
	} {
		tpl, err := Parse(source, map[string]string{"eos_token": "</s>"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if end, err := tpl.End(t.Context()); err != nil || end != want {
			t.Errorf("%s: %q, %v", source, end, err)
		}
	}
}
