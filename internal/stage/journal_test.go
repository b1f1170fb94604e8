package stage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/system/systemtest"
	"github.com/modelcompress/compress/safetensors"
)

// lines opens a journal, gives its lines as one text, and closes it.
func lines(t *testing.T, path string) (string, error) {
	t.Helper()
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}

	var all []string
	for _, line := range j.Lines() {
		all = append(all, string(line))
	}

	fault := j.Fault()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	return strings.Join(all, " "), fault
}

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j, err := NewJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Start(map[string]string{"job": "a"}), j.Add(1), j.Add(2)); err != nil {
		t.Fatal(err)
	}

	if _, err := OpenJournal(path); !errors.Is(err, ErrBusy) {
		t.Errorf("a second time: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewJournal(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a new one in its place: %v", err)
	}

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		text, want, fault string
	}{
		"whole":      {string(whole), `{"job":"a"} 1 2`, ""},
		"torn":       {string(whole[:len(whole)-1]), `{"job":"a"} 1`, ""},
		"torn early": {string(whole[:5]), ``, ""},
		"changed":    {strings.Replace(string(whole), "\n1\t", "\n3\t", 1), `{"job":"a"}`, "journal.jsonl:2: "},
		"line lost":  {whole2(string(whole)), `{"job":"a"}`, "journal.jsonl:2: "},
		"old form":   {"{\"job\":\"a\"}\n", ``, "journal.jsonl:1: "},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}

		got, fault := lines(t, path)
		if got != c.want || (fault == nil) != (c.fault == "") {
			t.Errorf("%s: %q, %v", name, got, fault)
		}
		if fault != nil && (!errors.Is(fault, ErrJournal) || !strings.Contains(fault.Error(), c.fault)) {
			t.Errorf("%s: %v", name, fault)
		}
	}

	// What is added behind a damaged end that was cut off is read again.
	if err := os.WriteFile(path, append(whole, "damage\n"...), 0o666); err != nil {
		t.Fatal(err)
	}
	if j, err = OpenJournal(path); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Keep(2), j.Add(4), j.Close()); err != nil {
		t.Fatal(err)
	}
	if got, fault := lines(t, path); got != `{"job":"a"} 1 4` || fault != nil {
		t.Errorf("after damage: %q, %v", got, fault)
	}
}

// TestLargeJournal: the values of a journal of large ones come back one by one, up to where it was cut or damaged, and
// what is added behind the last that is kept is found again.
func TestLargeJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	read := func() (values []string, j *Journal) {
		t.Helper()
		j, err := OpenLarge(path, func(line int, value []byte) error {
			if line != len(values)+1 {
				t.Errorf("line %d after %d", line, len(values))
			}
			values = append(values, string(value))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return values, j
	}

	if _, err := OpenLarge(path, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}

	j, err := StartLarge(path, "head")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Add(1), j.Add(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := StartLarge(path, "other"); !errors.Is(err, ErrBusy) {
		t.Errorf("beside the one that is open: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for cut := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:cut], 0o666); err != nil {
			t.Fatal(err)
		}

		values, j := read()
		if want := strings.Count(string(whole[:cut]), "\n"); len(values) != want || j.Fault() != nil {
			t.Fatalf("cut at %d: %q, %v", cut, values, j.Fault())
		}
		if err := errors.Join(j.Put("new"), j.Close()); err != nil { // syncing takes milliseconds, hundreds of times
			t.Fatal(err)
		}
		if again, j := read(); len(again) != len(values)+1 || again[len(values)] != `"new"` || j.Close() != nil {
			t.Fatalf("cut at %d, and one more: %q", cut, again)
		}
	}

	for i := range whole { // one bit of every byte
		bad := append([]byte(nil), whole...)
		bad[i] ^= 1 << (i % 8)
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}

		values, j := read()
		if len(values) == 3 || j.Close() != nil {
			t.Fatalf("byte %d: %q", i, values)
		}
	}

	l := slices.Collect(bytes.Lines(whole))
	for name, c := range map[string]struct {
		lines [][]byte
		good  int
	}{
		"twice": {[][]byte{l[0], l[1], l[1], l[2]}, 2}, "twice, at the end": {[][]byte{l[0], l[1], l[2], l[1]}, 3},
		"missing": {[][]byte{l[0], l[2]}, 1}, "elsewhere": {[][]byte{l[0], l[2], l[1]}, 1},
	} {
		if err := os.WriteFile(path, bytes.Join(c.lines, nil), 0o666); err != nil {
			t.Fatal(err)
		}
		values, j := read()
		if len(values) != c.good || j.Fault() == nil ||
			j.Keep(c.good) != nil || j.Put("new") != nil || j.Close() != nil {
			t.Errorf("a line %s: %q, %v", name, values, j.Fault())
		}
		if again, j := read(); len(again) != c.good+1 || j.Fault() != nil || j.Close() != nil {
			t.Errorf("a line %s, then kept: %q, %v", name, again, j.Fault())
		}
	}

	if err := os.WriteFile(path, whole, 0o666); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	if _, err := OpenLarge(path, func(int, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of the reader: %v", err)
	}
	if j, err := StartLarge(path, "anew"); err != nil || j.Close() != nil {
		t.Fatal(err)
	}
	if values, j := read(); len(values) != 1 || values[0] != `"anew"` || j.Close() != nil {
		t.Errorf("begun again: %q", values)
	}
}

// TestBareJournal: a plain journal of an earlier build, without checksums, keeps its form, a torn last line counts for
// nothing, and a line that is no JSON is damage, which is named.
func TestBareJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	write("{\"job\":\"a\"}\n1\n[2")
	j, err := OpenPlainJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(j.Lines()); n != 2 || j.Fault() != nil {
		t.Errorf("%d lines, %v", n, j.Fault())
	}
	if _, err := OpenPlainJournal(path); !errors.Is(err, ErrBusy) {
		t.Errorf("a second time: %v", err)
	}
	if err := errors.Join(j.Add("x"), j.Close()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "{\"job\":\"a\"}\n1\n\"x\"\n" {
		t.Errorf("%q, %v", text, err)
	}

	write("{\"job\":\"a\"}\n1}\n2\n")
	if j, err = OpenPlainJournal(path); err != nil {
		t.Fatal(err)
	}
	if err := j.Fault(); len(j.Lines()) != 1 || !errors.Is(err, ErrJournal) ||
		!strings.Contains(err.Error(), "journal.jsonl:2: ") {
		t.Errorf("%d lines, %v", len(j.Lines()), err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// TestPlainJournal: a plain journal is a file of JSON lines, and no change to it goes unseen: no bit that flips, no
// line that is there twice, missing or elsewhere. A torn last line counts for nothing.
func TestPlainJournal(t *testing.T) {
	type step struct {
		Key string  `json:"key"`
		PPL float64 `json:"ppl,omitempty"`
	}

	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j, err := OpenPlainJournal(path)
	if err == nil {
		err = errors.Join(j.Start(step{Key: "job"}), j.Add(step{"a", 1.25}), j.Close())
	}
	if err != nil {
		t.Fatal(err)
	}

	if j, err = OpenPlainJournal(path); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Fault(), j.Add(step{"b", 2.5}), j.Close()); err != nil {
		t.Fatal(err)
	}

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(whole) {
		var s step
		if err := json.Unmarshal(line, &s); err != nil || s.Key == "" {
			t.Errorf("%s: %v", line, err)
		}
	}

	// read gives the values that are taken, and whether damage was seen.
	read := func(text []byte) (values string, damaged bool) {
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
		j, err := OpenPlainJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		return string(bytes.Join(j.Lines(), []byte(" "))), j.Fault() != nil
	}

	const want = `{"key":"job"} {"key":"a","ppl":1.25} {"key":"b","ppl":2.5}`
	if got, damaged := read(whole); got != want || damaged {
		t.Errorf("%s, damaged %v", got, damaged)
	}
	if got, damaged := read(whole[:len(whole)-3]); got != `{"key":"job"} {"key":"a","ppl":1.25}` || damaged {
		t.Errorf("torn: %s, damaged %v", got, damaged)
	}

	for bit := range 8 * (len(whole) - 1) { // the last end of a line makes its line a torn one
		text := bytes.Clone(whole)
		text[bit/8] ^= 1 << (bit % 8)
		if got, damaged := read(text); !damaged {
			t.Errorf("bit %d: not seen: %s", bit, got)
		}
	}

	l := slices.Collect(bytes.Lines(whole))
	for name, lines := range map[string][][]byte{
		"twice": {l[0], l[1], l[1], l[2]}, "missing": {l[0], l[2]}, "elsewhere": {l[0], l[2], l[1]},
		"without its sum": {l[0], []byte("{\"key\":\"a\",\"ppl\":9}\n"), l[2]},
	} {
		if got, damaged := read(bytes.Join(lines, nil)); !damaged {
			t.Errorf("%s: not seen: %s", name, got)
		}
	}
}

// TestLockFile: one at a time has the lock, the next one once the first has closed it, and a link in its place is not
// followed.
func TestLockFile(t *testing.T) {
	systemtest.NeedsLinks(t)
	path := filepath.Join(t.TempDir(), "deep", "lock")
	f, err := LockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockFile(path); !errors.Is(err, ErrBusy) {
		t.Errorf("while it is held: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	again, err := LockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}

	link := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err)
	}
	if _, err := LockFile(link); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("through a link: %v", err)
	}
}

// whole2 is a journal without its second line.
func whole2(text string) string {
	list := strings.SplitAfter(text, "\n")
	return list[0] + list[2]
}

// folder opens an output of one tensor.
func folder(t *testing.T, source, out string, o Options) (*Folder, error) {
	t.Helper()
	o.Source = source
	return Open(out, Plan{
		Tensors:  []safetensors.Info{{Name: "x", DType: safetensors.F32, Shape: []int64{1}}},
		Metadata: map[string]string{},
	}, o)
}

// TestUnfinishedOfAnEarlierBuild: an unfinished output whose journal has another form is refused with one line and
// stays as it is; without resuming it is begun anew.
func TestUnfinishedOfAnEarlierBuild(t *testing.T) {
	source, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	if err := os.MkdirAll(Hidden(out), 0o777); err != nil {
		t.Fatal(err)
	}

	journal := filepath.Join(Hidden(out), journalName)
	old := "{\"job\":\"a\"}\n{\"done\":[\"x\"],\"sums\":[1]}\n"
	if err := os.WriteFile(journal, []byte(old), 0o666); err != nil {
		t.Fatal(err)
	}

	_, err := folder(t, source, out, Options{Resume: true, Fingerprint: "a"})
	if !errors.Is(err, ErrOtherJob) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "--") ||
		failure.Hint(err) != hintAnew {
		t.Errorf("resumed: %v (%s)", err, failure.Hint(err))
	}
	if text, err := os.ReadFile(journal); err != nil || string(text) != old {
		t.Errorf("the journal changed: %q, %v", text, err)
	}

	f, err := folder(t, source, out, Options{Fingerprint: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Abort(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(Hidden(out)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// TestFoldersAndPlacesShareTheLock: whatever writes an output, nothing else does at the same time.
func TestFoldersAndPlacesShareTheLock(t *testing.T) {
	source, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	f, err := folder(t, source, out, Options{})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := Begin(out, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("a place beside a folder: %v", err)
	}
	if err := f.Suspend(); err != nil {
		t.Fatal(err)
	}

	p, err := Begin(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := folder(t, source, out, Options{Resume: true}); !errors.Is(err, ErrBusy) {
		t.Errorf("a folder beside a place: %v", err)
	}
	if err := p.Abandon(); err != nil {
		t.Error(err)
	}
}

// TestForeignFilesStay: an output that holds something besides a checkpoint is not replaced.
func TestForeignFilesStay(t *testing.T) {
	source, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	fill(t, out, "old")
	if err := os.WriteFile(filepath.Join(out, "thesis.tex"), nil, 0o666); err != nil {
		t.Fatal(err)
	}

	_, err := folder(t, source, out, Options{Overwrite: true})
	if !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), "thesis.tex") {
		t.Error(err)
	}
	if read(t, out) != "old" {
		t.Error("the folder changed")
	}
}

// TestOwnFilesGo: files that the caller says it writes there go with the old output; they do not make it a checkpoint.
func TestOwnFilesGo(t *testing.T) {
	source, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	fill(t, out, "old")
	if err := os.WriteFile(filepath.Join(out, "edits.journal"), nil, 0o666); err != nil {
		t.Fatal(err)
	}

	if err := Replaceable(source)(out); !errors.Is(err, ErrTarget) {
		t.Errorf("without its name: %v", err)
	}
	if err := Replaceable(source, "edits.journal")(out); err != nil {
		t.Errorf("with its name: %v", err)
	}

	only := t.TempDir()
	if err := os.WriteFile(filepath.Join(only, "edits.journal"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Replaceable(source, "edits.journal")(only); !errors.Is(err, ErrTarget) {
		t.Errorf("nothing else is there: %v", err)
	}
}

// TestWhatTravels: every file beside the weights, but no folder, hidden file, weights or record of how the model was
// made; links within the folder count as files, others do not travel.
func TestWhatTravels(t *testing.T) {
	systemtest.NeedsLinks(t)
	source, out := t.TempDir(), t.TempDir()
	outside := filepath.Join(t.TempDir(), "x")
	want := []string{
		"LICENSE", "README.md", "chat_template.jinja", "modeling_x.py", "preprocessor_config.json", "tokenizer.model",
	}
	for _, name := range append([]string{
		".gitattributes", "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "pruning.json",
		"merge.json", "training.html",
	}, want...) {
		if err := os.WriteFile(filepath.Join(source, name), []byte(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	report := []byte(`{"command": "compress prune a", "version": "1"}`)
	if err := errors.Join(os.Mkdir(filepath.Join(source, "original"), 0o777),
		os.WriteFile(filepath.Join(source, "r.json"), report, 0o666),
		os.Symlink("LICENSE", filepath.Join(source, "COPYING")),
		os.WriteFile(outside, []byte("linked"), 0o666),
		os.Symlink(outside, filepath.Join(source, "vocab.txt")), // which a model needs
		os.Symlink(outside, filepath.Join(source, "host"))); err != nil {
		t.Fatal(err)
	}

	if err := CopySides(out, source, false); err != nil {
		t.Fatal(err)
	}

	var got []string
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, e.Name())
	}

	if strings.Join(got, " ") != "COPYING "+strings.Join(want, " ")+" vocab.txt" {
		t.Errorf("%q", got)
	}
	if text, err := os.ReadFile(filepath.Join(out, "vocab.txt")); err != nil || string(text) != "linked" {
		t.Errorf("what a link leads to: %q, %v", text, err)
	}
	if left := NotCopied(source, out); len(left) != 1 || left[0] != `"host"` {
		t.Errorf("not copied: %q", left)
	}

	// The same weights in another form keep their records.
	if err := CopySides(out, source, true, "README.md"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(out, "pruning.json")); err != nil || string(text) != "pruning.json" {
		t.Errorf("%q, %v", text, err)
	}
}
