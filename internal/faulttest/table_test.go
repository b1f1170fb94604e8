//go:build linux && amd64

package faulttest

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTable writes the page about a campaign from its results.
func TestTable(t *testing.T) {
	if *table == "" || *results == "" {
		t.Skip("there is nothing to write without -args -table FILE -results FILE")
	}

	var list []record
	for name := range strings.SplitSeq(*results, ",") {
		part, err := readRecords(name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, part...)
	}

	if err := os.WriteFile(*table, []byte(page(list)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func page(list []record) string {
	var b strings.Builder
	b.WriteString(`# What faults do

**After every fault at a chosen moment, a resumed run ended with the bytes of a run that was left alone; what did not is bold below.**

Every verb that writes was run with faults at chosen moments by ` + "`internal/faulttest`" +
		` (its package comment says how). Repeat it with

    go test ./internal/faulttest -run Campaign -timeout 0 -args -long -results faults.jsonl     # hours; a second call goes on
    go test ./internal/faulttest -run Table -args -results faults.jsonl -table docs/evidence/faults.md   # this page

`)

	seeds := map[uint64]bool{}
	for _, r := range list {
		seeds[r.Seed] = true
	}

	fmt.Fprintf(&b, "%d faults, seed %s. Each cell has\n\n"+
		"- the faults that were reached and, after what went wrong was put right and the run was resumed, ended with "+
		"the bytes of a run that was left alone;\n"+
		"- in brackets, how many of them did so without a second run, since the program could do without the call;\n"+
		"- if there are any, small text inputs that changed before they were read and are in the result as they "+
		"were then, and **defects**.\n"+
		"\n"+
		"Points that a run did not reach do not count.\n"+
		"\n",
		len(list), strings.Trim(fmt.Sprint(slices.Sorted(maps.Keys(seeds))), "[]"))

	cells(&b, list, func(kind string) bool { return !strings.HasPrefix(kind, "flip") })
	b.WriteString("\nA killed run may be killed again while it is resumed. Bits were flipped in what a killed run " +
		"had left, and in inputs before a run:\n" +
		"\n")
	flips(&b, list)
	b.WriteString(`
What counts as equal leaves out:

- times, memory, flags and the time a run ended in reports; pages are only checked for being whole, and logs for being there;
- of what the verb run keeps for the next one, the session's name and hashes of outputs, which hold times: the outputs are compared themselves.

A short write is a call that ends with fewer bytes. Weights that are cut off at several moments of every verb that computes from them have a test of their own, TestShortenedWeights.
`)

	b.WriteString("\n## What is said\n\nOne message of each way of saying something, by verb (numbers and folders " +
		"taken out):\n\n")
	said := map[string]bool{}
	for _, line := range messages(list) {
		verb, text, _ := strings.Cut(line, ": ")
		parts := strings.Split(text, ": ")
		if key := verb + parts[len(parts)-1]; !said[key] {
			said[key] = true
			fmt.Fprintf(&b, "- `%s`\n", strings.ReplaceAll(line, "`", "'"))
		}
	}

	return b.String()
}

// cells writes faults by verb and kind.
func cells(b *strings.Builder, list []record, use func(kind string) bool) {
	type cell struct{ good, absorbed, unseen, bad int }
	table := map[string]map[string]*cell{}
	verbs := []string{}
	kinds := []string{}
	for _, r := range list {
		if !use(r.Kind) || r.Outcome == beyond && r.Kind != "full disk" {
			continue
		}
		if !slices.Contains(kinds, r.Kind) {
			kinds = append(kinds, r.Kind)
		}
		if table[r.Verb] == nil {
			verbs, table[r.Verb] = append(verbs, r.Verb), map[string]*cell{}
		}

		c := table[r.Verb][r.Kind]
		if c == nil {
			c = &cell{}
			table[r.Verb][r.Kind] = c
		}

		switch r.Outcome {
		case defect:
			c.bad++
		case unseen:
			c.unseen++
		case absorbed:
			c.absorbed++
			fallthrough
		default:
			c.good++
		}
	}

	fmt.Fprintf(b, "| verb | %s |\n|---|%s\n", strings.Join(kinds, " | "), strings.Repeat("---|", len(kinds)))

	for _, v := range verbs {
		fmt.Fprintf(b, "| %s |", v)

		for _, k := range kinds {
			text := ""
			if c := table[v][k]; c != nil {
				text = fmt.Sprint(c.good)
				if c.absorbed > 0 {
					text += fmt.Sprintf(" (%d)", c.absorbed)
				}
				if c.unseen > 0 {
					text += fmt.Sprintf(", %d in the result", c.unseen)
				}
				if c.bad > 0 {
					text += fmt.Sprintf(", **%d**", c.bad)
				}
			}

			fmt.Fprintf(b, " %s |", text)
		}

		b.WriteString("\n")
	}
}

// flips writes who notices a flipped bit, by the file that it is in.
func flips(b *strings.Builder, list []record) {
	counts := map[string]map[string]int{}
	for _, r := range list {
		if !strings.HasPrefix(r.Kind, "flip") || r.Outcome == beyond {
			continue
		}

		file, _, _ := strings.Cut(r.Where, ", bit")
		key := fmt.Sprintf("| %s | %s | %s |", strings.TrimPrefix(r.Kind, "flip of "), r.Verb, plain(file))
		if counts[key] == nil {
			counts[key] = map[string]int{}
		}

		counts[key][r.Outcome]++
	}

	b.WriteString("| in | verb | file | noticed | no harm | in the result, not noticed | defects |\n" +
		"|---|---|---|---|---|---|---|\n")

	for _, key := range slices.Sorted(maps.Keys(counts)) {
		c := counts[key]
		fmt.Fprintf(b, "%s %d | %d | %d | %d |\n", key, c[noticed], c[absorbed], c[unseen], c[defect])
	}
}

var (
	numbers = regexp.MustCompile(`\b[0-9a-f]*[0-9][0-9a-f]*\b`)
	places  = regexp.MustCompile(`/[^ :"]*/run/`)
)

// plain takes out of a text what differs from run to run.
func plain(text string) string {
	return numbers.ReplaceAllString(places.ReplaceAllString(text, ""), "N")
}

// messages lists the distinct lines that were printed.
func messages(list []record) []string {
	lines := map[string]bool{}
	for _, r := range list {
		for _, s := range r.Said {
			if strings.HasPrefix(s, "compress ") {
				lines[plain(s)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(lines))
}
