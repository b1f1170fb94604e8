//go:build linux && amd64

package faulttest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What can come out of one fault.
const (
	equal    = "equal"    // the fault was reached, and in the end every byte is there
	absorbed = "absorbed" // the same without a second run: the program could do without the call
	beyond   = "beyond"   // the run ended before the point
	noticed  = "noticed"  // damage on the disk was told
	unseen   = "unseen"   // damage on the disk is in the result
	defect   = "defect"
)

// record is what came of one fault.
type record struct {
	Verb    string   `json:"verb"`
	Kind    string   `json:"kind"`
	Number  int      `json:"number"`
	Seed    uint64   `json:"seed"`
	Where   string   `json:"where,omitempty"` // the call
	Outcome string   `json:"outcome"`
	Why     string   `json:"why,omitempty"`  // of a defect
	Said    []string `json:"said,omitempty"` // lines on stderr, of all runs
}

func (r record) key() string { return fmt.Sprintf("%s/%s/%d/%d", r.Verb, r.Kind, r.Number, r.Seed) }

// draw is the source of chance of one fault.
func draw(v verb, kind string, number int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%d", v.name, kind, number)
	return rand.New(rand.NewPCG(*seed, h.Sum64()))
}

// ledger keeps the results of a campaign in a file, if there is one.
type ledger struct {
	t    *testing.T
	file *os.File
	done map[string]bool
	all  []record
}

func readRecords(path string) ([]record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	var list []record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		var r record
		if json.Unmarshal(lines.Bytes(), &r) == nil { // the last line of a campaign that was killed may be short
			list = append(list, r)
		}
	}

	return list, lines.Err()
}

func openLedger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{t: t, done: map[string]bool{}}
	if *results == "" {
		return l
	}

	list, err := readRecords(*results)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}

	for _, r := range list {
		l.done[r.key()] = true
	}
	if l.file, err = os.OpenFile(*results, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = l.file.Close() })
	return l
}

// has reports whether a fault was looked at before.
func (l *ledger) has(v verb, kind string, number int) bool {
	return l.done[record{Verb: v.name, Kind: kind, Number: number, Seed: *seed}.key()]
}

// add keeps a result; a defect fails the test.
func (l *ledger) add(r record) {
	l.t.Helper()
	r.Seed = *seed
	l.all = append(l.all, r)
	if r.Outcome == defect {
		l.t.Errorf("%s, %s %d at %s: %s\n\t%s", r.Verb, r.Kind, r.Number, r.Where, r.Why, strings.Join(r.Said, "\n\t"))
	}
	if l.file == nil {
		return
	}

	line, err := json.Marshal(r)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// tally logs how the results of a kind are spread.
func (l *ledger) tally() {
	counts := map[string]int{}
	for _, r := range l.all {
		counts[r.Outcome]++
	}
	l.t.Log(len(l.all), "faults:", counts)
}

// said is the lines that a run printed to stderr.
func said(stderr string) []string {
	if stderr = strings.TrimSpace(stderr); stderr == "" {
		return nil
	}
	return strings.Split(stderr, "\n")
}

// crash is what only a program that has lost control of itself prints.
var crash = regexp.MustCompile(`goroutine \d+|panic:|fatal error|SIGBUS|SIGSEGV|unexpected fault address|nil pointer`)

// judge says what is wrong with how a run failed: its code, the number of its lines, the file that none of them
// names. path may be empty.
func judge(e ended, path string) string {
	lines := said(e.stderr)
	switch {
	case e.hung:
		return "it hangs"
	case crash.MatchString(e.stderr):
		return "a crash instead of an error"
	case e.signal != 0:
		return "ended by " + e.signal.String()
	case e.code != 1:
		return fmt.Sprintf("exit code %d, want 1", e.code)
	case len(lines) == 0:
		return "no message"
	}

	last := lines[len(lines)-1]

	if n := slices.IndexFunc(lines, func(s string) bool {
		return strings.HasPrefix(s,
			"compress ")
	}); n != len(lines)-1 {
		return "more than one line of errors, or none"
	}
	if path != "" && !names(last, path) {
		return "the message does not name the file"
	}

	return ""
}

// names reports whether a message names a file, or the folder that holds it, as the user or the disk knows it.
func names(message, path string) bool {
	if path == "out" { // a folder that is synced or opened
		return regexp.MustCompile(`\bout\b`).MatchString(message)
	}
	for p := path; p != "." && p != "out" && p != "in" && p != "/"; p = filepath.Dir(p) {
		if strings.Contains(message, filepath.Base(p)) || strings.Contains(message, bare(filepath.Base(p))) {
			return true
		}
	}
	return false
}

// bare is the name of an output that a hidden staging name belongs to.
func bare(name string) string {
	name = strings.TrimPrefix(name, ".")
	if i := strings.LastIndex(name, "."); i > 0 && strings.HasPrefix(name, ".") {
		return name[:i]
	}
	name, _, _ = strings.Cut(name, ".")
	return name
}
