package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// lesson is a tutorial: the files that it has the reader save, and its commands with what they show.
type lesson struct {
	name  string
	path  string
	text  string
	files map[string]string
	steps []command
}

var (
	savedFile = regexp.MustCompile("(?s)Save as `([^`]+)`:\n\n```[a-z]*\n(.*?)```")
	consoles  = regexp.MustCompile("(?s)```console\n(.*?)```")
)

// lessons reads the tutorials, and the README with its commands on a real model.
func lessons(t *testing.T) (list []lesson) {
	t.Helper()
	pages, err := filepath.Glob("../../docs/tutorials/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d tutorials: %v", len(pages), err)
	}

	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		l := lesson{name: filepath.Base(page), path: page, text: string(text), files: map[string]string{}}
		for _, m := range savedFile.FindAllStringSubmatch(string(text), -1) {
			l.files[m[1]] = m[2]
		}
		for _, block := range consoles.FindAllStringSubmatch(string(text), -1) {
			for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
				line, want, _ := strings.Cut(part, "\n")
				l.steps = append(l.steps, command{line, want})
			}
		}
		list = append(list, l)
	}

	return list
}

// TestTutorialLines: the program takes every command of the README, the tutorials and the how-tos.
func TestTutorialLines(t *testing.T) {
	check := func(page, line string) {
		line, _, _ = strings.Cut(line, " | ")
		for _, words := range exampleLines(t, line) {
			if words[0] != "compress" || slices.Contains(words, "…") {
				continue
			}
			if err := parses(words); err != nil {
				t.Errorf("%s: %s: %v", page, line, err)
			}
		}
	}

	for _, l := range lessons(t) {
		for _, c := range l.steps {
			check(l.name, c.line)
		}
	}

	pages, err := filepath.Glob("../../docs/howto/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:    |\$ )(compress .*)$`).FindAllStringSubmatch(string(text), -1) {
			line, _, _ := strings.Cut(m[1], " #")
			check(page, strings.TrimSpace(line))
		}
	}
}

// TestTutorials runs the commands of the tutorials and of the README where the model is: COMPRESS_REAL_MODEL names a
// folder with SmolLM2-135M-Instruct, COMPRESS_REAL_DATA one with the texts that the tutorials fetch (valid.txt and
// test.txt of WikiText-2, tinyshakespeare.txt). Every command ends well, and each line that the page shows is printed:
// figures apart, which differ between processors, and what models say. With -rewrite the pages get what is printed.
func TestTutorials(t *testing.T) {
	model, data := os.Getenv("COMPRESS_REAL_MODEL"), os.Getenv("COMPRESS_REAL_DATA")
	if model == "" || data == "" {
		t.Skip("COMPRESS_REAL_MODEL and COMPRESS_REAL_DATA name no folders")
	}
	binary := program(t)

	for _, l := range lessons(t) {
		t.Run(l.name, func(t *testing.T) {
			dir := t.TempDir()
			link := func(from, to string) {
				if err := os.Symlink(from, filepath.Join(dir, to)); err != nil {
					t.Fatal(err)
				}
			}
			link(binary, "compress")
			link(model, "SmolLM2-135M-Instruct")
			texts, err := filepath.Glob(filepath.Join(data, "*.txt"))
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range texts {
				link(text, filepath.Base(text))
			}
			for name, text := range l.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}

			for _, c := range l.steps {
				if regexp.MustCompile(`^(curl|compress pull|compress serve)`).MatchString(c.line) {
					continue
				}
				out := shell(t, dir, c.line)
				t.Logf("$ %s\n%s", c.line, out) // the figures, which the test does not compare
				if *rewrite {
					l.text = strings.Replace(l.text, "\n$ "+c.line+"\n"+c.want, "\n$ "+c.line+"\n"+out, 1)
					continue
				}
				if !strings.Contains(c.line, " generate ") {
					sameLines(t, c.line, out, c.want)
				}
			}
			if *rewrite {
				if err := os.WriteFile(l.path, []byte(l.text), 0o644); err != nil { //nolint:gosec // a page
					t.Fatal(err)
				}
			}
		})
	}
}

// shell runs a line with the program in the path, and returns what it prints.
func shell(t *testing.T, dir, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, stderr.String())
	}
	return string(out)
}

// sameLines reports the lines that a page shows and the program does not print, figures and rules apart.
func sameLines(t *testing.T, line, got, want string) {
	t.Helper()
	figures := regexp.MustCompile(`[-+]?[0-9][0-9.,e+-]*|[─\s]+`)
	plain := func(s string) string { return figures.ReplaceAllString(s, "") }
	have := plain(got)
	for shown := range strings.Lines(want) {
		if p := plain(shown); p != "" && strings.TrimSpace(shown) != "…" && !strings.Contains(have, p) {
			t.Errorf("%s: the page shows %q, but it prints\n%s", line, shown, got)
		}
	}
}
