package tokenizer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// BenchmarkEncode measures English text line by line and in one call, for the tokenizers in the shared folder and for
// our own, and reports MB/s.
func BenchmarkEncode(b *testing.B) {
	text := englishText(b)
	lines := strings.SplitAfter(text, "\n")
	for name, tok := range benchTokenizers(b) {
		b.Run(name+"/lines", func(b *testing.B) { benchEncode(b, tok, lines, len(text)) })
		b.Run(name+"/whole", func(b *testing.B) { benchEncode(b, tok, []string{text}, len(text)) })
	}
}

func benchEncode(b *testing.B, tok *tokenizer.Tokenizer, texts []string, size int) {
	b.SetBytes(int64(size))
	b.ReportAllocs()

	var ids []int32
	for b.Loop() {
		for _, s := range texts {
			var err error
			if ids, err = tok.AppendEncode(ids[:0], s, tokenizer.EncodeOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkOdd measures texts without words: a megabyte of the same thing.
func BenchmarkOdd(b *testing.B) {
	texts := oddTexts(1 << 20)
	for name, tok := range benchTokenizers(b) {
		for kind, s := range texts {
			b.Run(name+"/"+kind, func(b *testing.B) { benchEncode(b, tok, []string{s}, len(s)) })
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for name, dir := range big {
		path := sharedPath(b, dir)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := tokenizer.Load(path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	text := englishText(b)
	for name, tok := range benchTokenizers(b) {
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: true})
		if err != nil {
			b.Fatal(err)
		}

		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Decode(ids, true)
			}
		})
	}
}

func englishText(b *testing.B) string {
	data, err := os.ReadFile(sharedPath(b, "text/wizard_of_oz.txt"))
	if err != nil {
		b.Fatal(err)
	}
	return string(data)
}

// benchTokenizers returns those of the shared folder that are there, and those of the zoo.
func benchTokenizers(b *testing.B) map[string]*tokenizer.Tokenizer {
	all := map[string]*tokenizer.Tokenizer{}
	for name, dir := range big {
		if _, err := os.Stat(filepath.Join(shared, dir)); err == nil {
			all[name] = load(b, filepath.Join(shared, dir))
		}
	}

	files, _ := filepath.Glob(filepath.Join(zoo(), "*.json"))
	for _, file := range files {
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = load(b, file)
	}

	return all
}

// oddTexts are texts of n bytes that are hard on tokenizers.
func oddTexts(n int) map[string]string {
	fill := func(s string) string { return strings.Repeat(s, n/len(s)+1)[:n] }
	noise := make([]byte, n)
	state := uint64(1)
	for i := range noise {
		state = state*6364136223846793005 + 1442695040888963407
		noise[i] = byte(state >> 56)
	}

	return map[string]string{
		"letter": fill("a"), "spaces": fill(" "), "newlines": fill("\n"), "pairs": fill("ab"), "noise": string(noise),
		"emoji": strings.Repeat("😀", n/4), "marks": strings.Repeat("\u0301", n/2), "digits": fill("0123456789"),
		"spaced": fill(" \t"), "punctuation": fill("!?"), "quotes": fill("'"), "ideographs": strings.Repeat("中文", n/6),
	}
}
