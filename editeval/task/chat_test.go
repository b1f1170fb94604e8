package task

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/prompt"
)

const (
	turnsTemplate = `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe helpful<|im_end|>\n' }}{% endif %}` +
		`{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`
	instTemplate = "{%- if messages[0].role == 'system' %}\n" +
		"  {%- set sys = messages[0].content %}\n" +
		"  {%- set turns = messages[1:] %}\n" +
		"{%- else %}\n  {%- set turns = messages %}\n{%- endif %}\n{{- bos_token }}\n{%- for m in turns %}\n  {%- " +
		"if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\n" +
		"  {%- if m.role == 'user' %}\n" +
		"    {{- '[INST] ' + (('<<' + sys + '>> ') if sys is defined and loop.first else '') + m.content | trim + ' " +
		"[/INST]' }}\n  {%- else %}\n    {{- ' ' + m.content | trim + eos_token }}\n  {%- endif %}\n{%- endfor %}\n"
	strictTemplate = `{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}`
)

// begun is a task whose answers begin in the prompt.
const begun = `task: begun
dataset_path: json
dataset_kwargs: {data_files: {test: begun.jsonl}}
test_split: test
output_type: multiple_choice
description: "Choose {{kind}}."
doc_to_text: "Q: {{q}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{a}}"
gen_prefix: "The answer to {{kind}} is"
target_delimiter: "_"
fewshot_delimiter: "##"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
`

// TestChatPrompts: the second prompt and its first continuation as lm-evaluation-harness 0.4.13 with
// transformers 5.23 makes them of the same task and templates (simple_evaluate with apply_chat_template, two
// examples).
func TestChatPrompts(t *testing.T) {
	var lines strings.Builder
	for i := range 8 {
		fmt.Fprintf(&lines, `{"kind": %q, "q": "what is %d? ", "choices": ["a%d", "b%d", "c"], "a": %d}`+"\n",
			[]string{"one", "two"}[i%2], i, i, i, i%3)
	}

	dir := write(t, map[string]string{"begun.yaml": begun, "begun.jsonl": lines.String()})
	const turn = "<|im_start|>"
	for _, c := range []struct {
		template, system string
		multi            bool
		prompt           string
	}{
		{
			turnsTemplate, "s", true,
			turn + "system\ns##Choose two.<|im_end|>\n" + turn + "user\nQ: what is 0? <|im_end|>\n" + turn +
				"assistant\nThe answer to one is a0<|im_end|>\n" +
				turn + "user\nQ: what is 7? <|im_end|>\n" + turn + "assistant\nThe answer to two is b7<|im_end|>\n" +
				turn +
				"user\nQ: what is 1? <|im_end|>\n" + turn + "assistant\nThe answer to two is",
		},
		{turnsTemplate, "s", false, turn + "system\ns##Choose two.<|im_end|>\n" + turn + "user\nQ: what is 0? The " +
			"answer to one is a0##Q: what is 7? The answer to two is b7##Q: what is 1? <|im_end|>\n" +
			turn + "assistant\nThe answer to two is"},
		{instTemplate, "", true, "<|endoftext|>[INST] <<Choose two.>> Q: what is 0? [/INST] The answer to one is " +
			"a0<|endoftext|>[INST] Q: what is 7? [/INST] The answer to two is b7<|endoftext|>[INST] Q: what is 1? " +
			"[/INST] The answer to two is"},
	} {
		s, err := Load([]string{filepath.Join(dir, "begun.yaml")})
		if err != nil {
			t.Fatal(err)
		}

		shots := 2
		o := &Options{
			Shots: &shots, System: c.system,
			Chat: &Chat{
				Template:  c.template,
				Tokens:    map[string]string{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
				Multiturn: c.multi,
			},
		}

		p, err := s.prompter(t.Context(), "begun", o)
		if err != nil {
			t.Fatal(err)
		}

		err = p.Documents(2, func(d *prompt.Document) error {
			if d.ID == 1 && (d.Requests[0].Context != c.prompt || d.Requests[0].Continuation != "_a1") {
				t.Errorf("%q %q\nwant %q", d.Requests[0].Context, d.Requests[0].Continuation, c.prompt)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestReadChat: where templates are looked for, and what is said where there is none.
func TestReadChat(t *testing.T) {
	several := `{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "d"}, {"name": "tools", "template": "t"}]}`
	for _, c := range []struct {
		files      map[string]string
		name, want string
		fault      string
	}{
		{map[string]string{"tokenizer_config.json": `{"chat_template": "one"}`}, "", "one", ""},
		{map[string]string{"tokenizer_config.json": `{"chat_template": "one"}`}, "any", "one", ""},
		{
			map[string]string{"tokenizer_config.json": `{"chat_template": "one"}`, "chat_template.jinja": "file"},
			"",
			"file", "",
		},
		{map[string]string{"tokenizer_config.json": several}, "tools", "t", ""},
		{map[string]string{"tokenizer_config.json": several}, "", "d", ""},
		{map[string]string{"tokenizer_config.json": several}, "rag", "", `no template "rag"; there: default, tools`},
		{map[string]string{"tokenizer_config.json": `{}`}, "", "", "there: none"},
		{map[string]string{"tokenizer_config.json": `{"chat_template": 3}`}, "", "", "neither a text nor a list"},
	} {
		got, err := ReadChat(write(t, c.files), c.name)
		if c.fault != "" {
			if !errors.Is(err, ErrChat) || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%v: %v", c.files, err)
			}
			continue
		}

		if err != nil || got.Template != c.want || !got.Multiturn {
			t.Errorf("%v: %+v %v", c.files, got, err)
		}
	}
}

// TestPadToken: a template that writes the padding token gets the one that lm-evaluation-harness gives a
// tokenizer without.
func TestPadToken(t *testing.T) {
	for config, want := range map[string]string{
		`{"chat_template": "x", "eos_token": "<e>"}`:                                         "<e>",
		`{"chat_template": "x", "eos_token": "<e>", "unk_token": "<u>"}`:                     "<u>",
		`{"chat_template": "x", "eos_token": "<e>", "unk_token": "<u>", "pad_token": "<p>"}`: "<p>",
		`{"chat_template": "x", "eos_token": "<e>", "pad_token": null, "unk_token": null}`:   "<e>",
		`{"chat_template": "x", "bos_token": "<b>"}`:                                         "",
	} {
		got, err := ReadChat(write(t, map[string]string{"tokenizer_config.json": config}), "")
		if err != nil || got.Tokens["pad_token"] != want {
			t.Errorf("%s: %q %v", config, got.Tokens["pad_token"], err)
		}
	}
}

// TestChatWithoutSystem: a template that refuses the system's message gets the conversation without it.
func TestChatWithoutSystem(t *testing.T) {
	dir := write(t, map[string]string{"small.yaml": small(), "small.jsonl": smallData})
	s, err := Load([]string{filepath.Join(dir, "small.yaml")})
	if err != nil {
		t.Fatal(err)
	}

	p, err := s.prompter(t.Context(), "small", &Options{System: "Be kind.", Chat: &Chat{Template: strictTemplate}})
	if err != nil {
		t.Fatal(err)
	}

	err = p.Documents(1, func(d *prompt.Document) error {
		if got := d.Requests[0].Context; !strings.HasPrefix(got, "<user>") {
			t.Errorf("%q", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	if _, err := s.prompter(t.Context(), "small", &Options{Chat: &Chat{Template: "{% if %}"}}); !errors.Is(err,
		ErrChat) {
		t.Error(err)
	}
}
