package edit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// A log that is cut anywhere brings a fresh model to its last note, and the run that goes on ends in the same
// bytes and the same journal.
func TestLog(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, 3)
	for _, name := range []string{"rome", "ft-l", "alphaedit", "grace", "wise", "memoir"} {
		hp, err := Defaults(name, b.m.Config())
		if err != nil {
			t.Fatal(err)
		}

		hp.Steps = 3
		o := Options{Method: name, HParams: &hp, Statistics: b.stats, Background: b.texts}
		path := filepath.Join(t.TempDir(), "log")
		write := func(e *Editing, l *Log, from int) (weights, journal []byte) {
			for i := from; i < len(b.encoded); i++ {
				if _, err := e.Apply(ctx, b.encoded[i:i+1], nil); err != nil {
					t.Fatal(err)
				}
				if err := l.Add(i + 1); err != nil {
					t.Fatal(err)
				}
			}

			var out bytes.Buffer
			if err := errors.Join(e.WriteJournal(&out, "model", ""), l.Close()); err != nil {
				t.Fatal(err)
			}

			return b.bytesOf(t), out.Bytes()
		}

		e, err := New(b.m, o)
		if err != nil {
			t.Fatal(err)
		}

		l, err := StartLog(path, "job", e)
		if err != nil {
			t.Fatal(err)
		}

		weights, journal := write(e, l, 0)
		if err := e.Undo(0); err != nil {
			t.Fatal(err)
		}

		e.Close()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		left := map[string][]byte{
			"whole": text, "cut by one": text[:len(text)-1], "cut to two thirds": text[:len(text)*2/3],
			"cut to a third": text[:len(text)/3], "cut to the header": text[:bytes.IndexByte(text, '\n')+1],
		}
		// The header, a matrix, an edit and its note, and then the others.
		all := slices.Collect(bytes.Lines(text))
		for what, lines := range map[string][][]byte{
			"a note twice":           slices.Insert(slices.Clone(all), 4, all[3]),
			"the first note at last": append(slices.Clone(all), all[3]),
			"a note missing":         slices.Delete(slices.Clone(all), 3, 4),
			"an edit twice":          slices.Insert(slices.Clone(all), 3, all[2]),
			"an edit missing":        slices.Delete(slices.Clone(all), len(all)-2, len(all)-1),
		} {
			left[what] = bytes.Join(lines, nil)
		}

		for what, log := range left {
			if err := os.WriteFile(path, log, 0o666); err != nil {
				t.Fatal(err)
			}
			if e, err = New(b.m, o); err != nil {
				t.Fatal(err)
			}

			l, notes, err := ResumeLog(path, "job", e)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, what, err)
			}

			if len(notes) != len(e.Steps()) {
				t.Fatalf("%s: %d notes, %d steps", name, len(notes), len(e.Steps()))
			}

			w, j := write(e, l, len(notes))
			if !bytes.Equal(w, weights) || !bytes.Equal(j, journal) {
				t.Errorf("%s: %s: another model or journal", name, what)
			}
			if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, text) {
				t.Errorf("%s: %s: another log: %v", name, what, err)
			}
			if err := e.Undo(0); err != nil {
				t.Fatal(err)
			}

			e.Close()
		}

		if e, err = New(b.m, o); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ResumeLog(path, "other", e); !errors.Is(err, ErrOtherJob) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A pruned matrix keeps its zeros where that is asked for, whatever the method.
func TestKeepZeros(t *testing.T) {
	b := newBench(t, 2)
	for _, name := range []string{"ft", "lora", "rome", "memit"} {
		hp, err := Defaults(name, b.m.Config())
		if err != nil {
			t.Fatal(err)
		}

		hp.Steps = 3
		down, err := site.Linear(b.m, hp.Layers[0], arch.Down)
		if err != nil {
			t.Fatal(err)
		}

		p, err := b.m.MutableParam(down.Name)
		if err != nil {
			t.Fatal(err)
		}

		raw := p.Buf.Bytes()
		for i := 0; i < len(raw); i += 8 {
			clear(raw[i : i+4]) // every second pair of bf16
		}

		p.Buf.Changed()
		e, err := New(b.m, Options{Method: name, HParams: &hp, Statistics: b.stats, KeepZeros: true})
		if err != nil {
			t.Fatal(err)
		}

		before := bytes.Clone(raw)
		if _, err := e.Apply(context.Background(), b.encoded[:1], nil); err != nil {
			t.Fatal(err)
		}

		after := e.Changed()[down.Name]
		if bytes.Equal(before, after) {
			t.Errorf("%s: nothing changed", name)
		}

		for i := 0; i < len(after); i += 8 {
			if [4]byte(after[i:i+4]) != [4]byte{} {
				t.Fatalf("%s: element %d is no zero any more", name, i/2)
			}
		}

		if err := e.Undo(0); err != nil {
			t.Fatal(err)
		}
	}
}

// A checkpoint's memory is what its journal holds outside of the weights, and a model with it answers as the
// edited one does.
func TestMemory(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, 2)
	dir := t.TempDir()
	if m, err := ReadMemory(dir); m != nil || err != nil {
		t.Fatal(m, err)
	}

	e, err := New(b.m, Options{Method: "grace"})
	if err != nil {
		t.Fatal(err)
	}

	for i := range b.encoded {
		if _, err := e.Apply(ctx, b.encoded[i:i+1], nil); err != nil {
			t.Fatal(err)
		}
	}

	var text bytes.Buffer
	if err := e.WriteJournal(&text, "", ""); err != nil {
		t.Fatal(err)
	}

	e.Close()
	if err := os.WriteFile(filepath.Join(dir, JournalName), text.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}

	mem, err := ReadMemory(dir)
	if err != nil || mem == nil || len(mem.Codes) == 0 || len(mem.Context) > 0 {
		t.Fatal(mem, err)
	}

	fresh, err := lm.Load(ctx, nano+"/base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()

	undo, err := mem.Attach(fresh)
	if err != nil {
		t.Fatal(err)
	}

	for i, want := range []bool{true, false} {
		if !want {
			undo()
		}

		r := &b.encoded[0]
		ids, err := fresh.Generate(ctx, r.bare(), lm.GenerateOptions{MaxTokens: len(r.Target), Stop: []int32{}})
		if err != nil {
			t.Fatal(err)
		}

		if got := equalIDs(ids, r.Target); got != want {
			t.Errorf("pass %d: %v, the target is %v", i, ids, r.Target)
		}
	}
}

func equalIDs(a, b []int32) bool {
	for i := range b {
		if i >= len(a) || a[i] != b[i] {
			return false
		}
	}
	return true
}
