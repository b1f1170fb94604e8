package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryVerbKeepsWhatStandsBeside: the files beside the weights of a model are in every model that is made of it,
// with the bytes that they had.
func TestEveryVerbKeepsWhatStandsBeside(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.CopyFS(in("base"), os.DirFS(filepath.Join(nano, "base"))); err != nil {
		t.Fatal(err)
	}

	beside := []string{"LICENSE", "NOTICE.txt", "preprocessor_config.json", "modeling_nano.py", "USE_POLICY.md"}
	put := func(name, text string) {
		if err := os.WriteFile(in(name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range beside {
		put(filepath.Join("base", name), `{"text": "`+name+`"}`)
	}

	models := "models:\n  - {model: " + in("base") + ", parameters: {weight: 1}}\n  - {model: " + nano +
		"/sums, parameters: {weight: 1}}\n"
	put("linear.yaml", "merge_method: linear\n"+models)
	put("union.yaml", "merge_method: linear\n"+models+"tokenizer_source: union\n")
	put("moe.yaml", "base_model: "+in("base")+"\ngate_mode: hidden\nexperts_per_token: 1\nexperts:\n- {source_model: "+
		nano+"/sums, positive_prompts: [\"3 + 4 =\"]}\n- {source_model: "+nano+
		"/tales, positive_prompts: [\"Long ago\"]}\n")

	for _, args := range [][]string{
		{"convert", in("base"), "--dtype", "bf16"},
		{"prune", in("base"), "--method", "magnitude"},
		{"prune", in("base"), "--method", "magnitude", "--save", "bitmask"},
		{"merge", in("linear.yaml")},
		{"merge", in("union.yaml")},
		{"merge", in("moe.yaml")},
		{"lora", "extract", in("base"), nano + "/sums", "--rank", "2"},
		{"lora", "fold", in("base"), "--adapter", in("extract")},
		{
			"lora", "train", in("base"), "--kind", "full", "--data", nano + "/train/news.jsonl", "--steps", "1",
			"--seqlen", "16",
		},
		{"edit", in("base"), "--edits", nano + "/edits.json", "--count", "1", "--method", "ft", "--texts", "0"},
	} {
		out := in("out")
		if args[1] == "extract" {
			out = in("extract")
		}

		var stdout, stderr strings.Builder
		if code := run(append(args, "--out", out, "--quiet"), &stdout, &stderr); code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, &stderr)
		}
		if args[1] == "extract" {
			continue // an adapter, no model
		}

		for _, name := range beside {
			text, err := os.ReadFile(filepath.Join(out, name))
			if err != nil || string(text) != `{"text": "`+name+`"}` {
				t.Errorf("%q: %q, %v", args, text, err)
			}
		}
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
	}
}
