package chat

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// TestRenderedAsJinja compares renderings with those of Python's jinja2, with the settings of the transformers
// library (testdata/rendered.json).
func TestRenderedAsJinja(t *testing.T) {
	raw, err := os.ReadFile("testdata/rendered.json")
	if err != nil {
		t.Fatal(err)
	}

	var list []struct {
		Name, Template string
		Messages       []Message
		Prompt, Fails  bool
		Want           string
	}

	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}

	for _, c := range list {
		tpl, err := Parse(c.Template, map[string]string{"bos_token": "<s>", "eos_token": "</s>"}, nil)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}

		got, err := tpl.Render(t.Context(), c.Messages, c.Prompt)
		if (err != nil) != c.Fails || got != c.Want {
			t.Errorf("%s, prompt %t: got %q (%v), want %q", c.Name, c.Prompt, got, err, c.Want)
		}
	}
}

func TestAnswers(t *testing.T) {
	tpl, err := Parse("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if "+
		"add_generation_prompt %}<assistant>{% endif %}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	text, spans, err := tpl.Answers(t.Context(),
		[]Message{{"user", "1"}, {"assistant", "two"}, {"user", "3"}, {"assistant", "four"}})
	if err != nil || len(spans) != 2 {
		t.Fatal(text, spans, err)
	}

	if a, b := text[spans[0][0]:spans[0][1]], text[spans[1][0]:spans[1][1]]; a != "two</>" || b != "four</>" {
		t.Errorf("answers %q and %q", a, b)
	}
	if _, _, err := tpl.Answers(t.Context(), []Message{{"user", "1"}}); !errors.Is(err, ErrTemplate) {
		t.Error(err)
	}
}

// TestEndless: templates that would fill memory or never end are errors.
func TestEndless(t *testing.T) {
	for _, src := range []string{
		"{% set x = 'ab' %}{% for a in range(99) %}{% set ns = namespace() %}{% endfor %}{% for i in range(2000000) " +
			"%}{% for j in range(2000000) %}{% endfor %}{% endfor %}",
		"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
		"{% set n = namespace(x=[1,2]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
		"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x.replace('a', 'aaaa') %}{% endfor %}",
		"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
		strings.Repeat("(", 500) + "1",
		"{{ " + strings.Repeat("(", 500) + "1" + strings.Repeat(")", 500) + " }}",
		"{{ " + strings.Repeat("-", 500) + "1 }}", strings.Repeat("{% if 1 %}", 500),
	} {
		tpl, err := Parse(src, nil, nil)
		if err == nil {
			_, err = tpl.Render(t.Context(), nil, false)
		}
		if err == nil && strings.Contains(src, "{") {
			t.Errorf("%.60q renders", src)
		}
	}
}

// FuzzTemplate: no template panics, in reading or rendering.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{% for m in messages %}{{ m.role }}{% endfor %}", "{{ messages[0]['content'][1:] | trim }}",
		"{%- set ns = namespace(a=1) -%}{% set ns.a = ns %}{{ ns == ns }}{{ ns | tojson }}",
		"{{ 'a' if x is defined else \"b\\n\" }}", "{# #}{{ [1,[2]] | join(',') }}{{ 7 // 0 }}", "{{ x.y }}",
		"{% if a %}{% elif b %}{% else %}{% endif %}", "{{ messages[::-1] | first }}",
		"{% for a, b in messages[0].items() %}{{ a ~ b }}{{ loop.nextitem }}{% endfor %}",
		"{{ 'é'[0] }}{{ range(3) | list | length }}{{ -1 % 3 }}",
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, src string) {
		defer fuzzlimit.Watch(t, len(src))()
		tpl, err := Parse(src, map[string]string{"bos_token": "<s>"}, nil)
		if err != nil {
			return
		}
		_, _, _ = tpl.Answers(t.Context(), []Message{{"user", "Hi"}, {"assistant", "there"}})
	})
}

// TestRenderTools: tools and the keys of messages reach the template as they are, and no tools are none.
func TestRenderTools(t *testing.T) {
	const source = "{% if tools is not none %}{% for t in tools %}{{ t.function.name }}({{ t | tojson }}) " +
		"{% endfor %}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}" +
		"{% if m.tool_calls %}{{ m.tool_calls[0].name }}{% endif %};{% endfor %}"
	tmpl, err := Parse(source, nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	value := func(text string) []any {
		v, err := pyvalue.ParseJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return v.([]any)
	}
	messages := value(`[{"role": "user", "content": "hi"},
		{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]`)
	for tools, want := range map[string]string{
		`[]`: "user:hi;assistant:f;",
		`[{"type": "function", "function": {"name": "f"}}]`: `f({"type": "function", "function": {"name": "f"}}) ` +
			"user:hi;assistant:f;",
	} {
		got, err := tmpl.RenderTools(t.Context(), messages, value(tools), true)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v", tools, got, err)
		}
	}
}
