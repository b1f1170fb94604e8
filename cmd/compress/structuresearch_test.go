package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// partsArgs is a small search for a formula of whole parts.
func partsArgs(kind, out string, more ...string) []string {
	return append([]string{
		"search", "../../testdata/nano/base", "--structure", kind, "--calib", "../../testdata/nano/text/calib.txt",
		"--heldout", "../../testdata/nano/text/valid.txt", "--samples", "2", "--seqlen", "32", "--windows", "2",
		"--few", "1", "--select-windows", "2", "--test-windows", "2", "--sparsity", "0.5", "--population", "8",
		"--generations", "2", "--seed", "3", "--threads", "2", "--out", out,
	}, more...)
}

// TestStructureSearches: the result is the same for any number of workers, here and elsewhere, and behind an
// interruption, and the formula that was found cuts a model by the file as it is.
func TestStructureSearches(t *testing.T) {
	binary := program(t)
	dir := t.TempDir()
	for kind, flags := range map[string][2]string{
		"ffn": {"--ffn", "--width-score"}, "heads": {"--heads", "--width-score"},
		"layers": {"--layers", "--layer-score"},
	} {
		want, out := filepath.Join(dir, kind), filepath.Join(dir, kind+"-again")
		run1(t, binary, partsArgs(kind, want, "--workers", "1")...)
		run1(t, binary, partsArgs(kind, out, "--workers", "3")...)
		sameSearch(t, kind+": 3 workers", out, want)

		journal := filepath.Join(out, "journal.jsonl")
		whole, err := os.ReadFile(journal)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(journal, whole[:len(whole)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		run1(t, binary, partsArgs(kind, out, "--resume")...)
		sameSearch(t, kind+": resumed", out, want)

		tree := "tree:" + filepath.Join(want, "best.json")
		small := filepath.Join(dir, kind+"-small")
		run1(t, binary, "prune", "../../testdata/nano/base", flags[0], "50%", flags[1], tree, "--calib",
			"../../testdata/nano/text/calib.txt", "--samples", "2", "--seqlen", "32", "--out", small)
		report, err := os.ReadFile(filepath.Join(want, "report.json"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(report, []byte(`"structure": "`+kind+`"`)) {
			t.Errorf("%s: the report does not say what is scored", kind)
		}
	}

	// The other machine measures for the coordinator.
	out := filepath.Join(dir, "elsewhere")
	var worker *exec.Cmd
	err := follow(t, exec.Command(binary, partsArgs("ffn", out, "--workers", "-1", "--listen", "127.0.0.1:0")...),
		func(line string) {
			if _, url, ok := strings.Cut(line, "--cluster "); ok && worker == nil {
				worker = exec.Command(binary, "worker", "--cluster", url, "--workers", "1", "--threads", "1", "--quiet")
				if err := worker.Start(); err != nil {
					t.Error(err)
				}
			}
		})()
	if worker != nil {
		_ = worker.Process.Kill()
		_ = worker.Wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	sameSearch(t, "elsewhere", out, filepath.Join(dir, "ffn"))
}

// TestStructureSearchRefuses: in one line with exit code 2, before anything is read.
func TestStructureSearchRefuses(t *testing.T) {
	binary := program(t)
	for want, more := range map[string][]string{
		"known: ffn, heads, layers":         {"--structure", "words"},
		"--pattern 2:4 is of weights":       {"--pattern", "2:4"},
		"without --structure":               {"--paper-compat"},
		"Bi is of formulas for whole parts": {"--grammar", "W,G,gsum,Bi,add"},
		"heads would stay":                  {"--structure", "heads", "--sparsity", "0.01"},
	} {
		out := filepath.Join(t.TempDir(), "out")
		text, err := exec.Command(binary, partsArgs("ffn", out, more...)...).CombinedOutput()
		exit, _ := err.(*exec.ExitError)
		if exit == nil || exit.ExitCode() != 2 || !strings.Contains(string(text), want) {
			t.Errorf("%v: %v: %s", more, err, text)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%v: something is left", more)
		}
	}

	plain := partsArgs("ffn", filepath.Join(t.TempDir(), "out"), "--grammar", "W,gsum,Ma,add")
	plain = append(plain[:2:2], plain[4:]...)
	text, err := exec.Command(binary, plain...).CombinedOutput()
	if err == nil || !strings.Contains(string(text), "gsum is of formulas for whole parts") {
		t.Errorf("a search for weights takes gsum: %v: %s", err, text)
	}
}
