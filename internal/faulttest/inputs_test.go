//go:build linux && amd64

package faulttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// TestInputsCampaign: an input that is cut short, emptied or removed while a run uses it makes the run fail
// with one line that names it, if it still needed it. Once the input is back the run goes on to the bytes of
// one that was left alone.
func TestInputsCampaign(t *testing.T) {
	for i, how := range []string{"shortened", "emptied", "removed"} {
		t.Run(how, func(t *testing.T) {
			if !*long && i > 0 {
				t.Skip("part of the whole campaign: -args -long")
			}
			campaign(t, "input "+how, size(1, *points/5),
				func(_ *testing.T, r *rig, v verb, calls []call, number int) record {
					return r.harm(v, how, calls, number)
				})
		})
	}
}

// harm does it to one of the inputs that have been opened by a moment.
func (r *rig) harm(v verb, how string, calls []call, number int) record {
	draw := draw(v, "input "+how, number)
	var inputs []string
	for _, c := range calls {
		if strings.HasPrefix(c.path, "in/") && !slices.Contains(inputs, c.path) &&
			(c.kind == kindRead || c.kind == kindMap) {
			inputs = append(inputs, c.path)
		}
	}

	rec := record{Outcome: beyond}
	before, err := r.start(v)
	if err != nil || len(inputs) == 0 {
		return rec
	}

	victim := filepath.Join(r.dir, someOf(draw, inputs))
	text, err := os.ReadFile(victim)
	if err != nil {
		return failed(rec, err)
	}

	st, err := os.Stat(victim)
	if err != nil {
		return failed(rec, err)
	}

	keep := map[string]int64{"shortened": draw.Int64N(int64(len(text)) + 1), "emptied": 0}[how]
	opened := false
	var hurt error
	at := 1 + draw.IntN(len(calls))
	name, _ := filepath.Rel(r.dir, victim)
	end, err := trace(r.line(v, false), fault{
		match: func(c call) bool { opened = opened || c.path == name; return opened },
		at:    at,
		hook: func(call) {
			if how == "removed" {
				hurt = os.Remove(victim)
			} else {
				hurt = os.Truncate(victim, keep)
			}
		},
	})

	rec.Where = fmt.Sprintf("%s, to %d of %d bytes, %d calls after it is opened", name, keep, len(text), at)
	// What was cut off is written again in place, so that only what a changed time tells is different.
	if err := errors.Join(err, hurt, restore(victim, text, st)); err != nil {
		return failed(rec, err)
	}

	rec.Said = said(end.stderr)

	switch {
	case end.hit == nil:
		rec.Where = ""
		return rec.finish(r, v)
	case end.code == 0:
		rec.Outcome = absorbed
		if rec = rec.finish(r, v); rec.Outcome == defect && filepath.Ext(name) != ".safetensors" {
			rec.Outcome = unseen // a small file that became another one before it was read, or read again
		}
		return rec
	case how != "removed" && filepath.Ext(name) != ".safetensors":
		name = "" // a text that is read once it is shorter is another text, or not one at all
	}

	return r.recover(v, rec, end, before, name)
}

// readers are verbs that compute from weights and write little or nothing, so that the campaign itself has
// nothing to compare.
var readers = []verb{
	{name: "forward", args: "forward in/base --ids in/ids.safetensors --out out/logits.safetensors --grad"},
	{name: "generate", args: "generate in/base --prompt a --max-tokens 8"},
	{name: "ppl", args: "ppl in/base --data in/text/calib.txt --seqlen 32 --limit 4"},
	{name: "conflict", args: "conflict in/ties.yaml"},
}

// TestShortenedWeights: weights that are cut off under a computation end it with one line that names them and
// says what happened, whichever goroutine, and whichever instruction, notices it first.
func TestShortenedWeights(t *testing.T) {
	r := rigOf(t)
	if err := writeIDs(filepath.Join(r.dir, "in", "ids.safetensors")); err != nil {
		t.Fatal(err)
	}

	threads := regexp.MustCompile(`^1$`)
	for _, v := range slices.Concat(readers, verbs) {
		if *only != "" && !regexp.MustCompile(*only).MatchString(v.name) {
			continue
		}

		at := slices.IndexFunc(readers, func(x verb) bool { return x.name == v.name })
		if !*long && at < 0 && v.name != "prune" && v.name != "lora train" {
			continue
		}

		calls, err := r.reference(v)
		if err != nil {
			t.Error(err)
			continue
		}

		noticed := 0
		for _, at := range moments(calls, size(2, 5)) {
			for _, keep := range []int64{20 << 10, 400 << 10}[:size(1, 2)] {
				end, err := r.shorten(v, at, keep, threads)
				if err != nil {
					t.Fatal(err)
				}

				if end.code == 0 {
					continue // all had been read
				}

				noticed++

				if why := judge(end, "in/base/model.safetensors"); why != "" ||
					!strings.Contains(end.stderr, "shorter") && !strings.Contains(end.stderr, "truncated") {
					t.Errorf("%s, to %d bytes at call %d of %d: %s\n%s", v.name, keep, at, len(calls), why, end.stderr)
				}
			}
		}

		t.Logf("%s: noticed %d times", v.name, noticed)
	}
}

// moments are n calls after the weights are mapped, the first among them, and in the whole campaign the last one too.
func moments(calls []call, n int) (list []int) {
	first := slices.IndexFunc(calls, func(c call) bool {
		return c.kind == kindMap &&
			c.path == "in/base/model.safetensors"
	}) + 2

	for k := range n {
		list = append(list, first+(len(calls)-first)*k/n)
	}
	if *long {
		list = append(list, len(calls))
	}

	return slices.Compact(list)
}

// shorten runs a verb, on several threads, and cuts its weights to some bytes before a call.
func (r *rig) shorten(v verb, at int, keep int64, one *regexp.Regexp) (end ended, err error) {
	if err := r.clear(v); err != nil {
		return end, err
	}

	victim := filepath.Join(r.dir, "in/base/model.safetensors")
	text, err := os.ReadFile(victim)
	if err != nil {
		return end, err
	}

	st, err := os.Stat(victim)
	if err != nil {
		return end, err
	}

	line := r.line(v, false)
	for i := range line.args {
		line.args[i] = one.ReplaceAllString(line.args[i], "2")
	}

	var hurt error
	end, err = trace(line, fault{match: func(call) bool { return true }, at: at, hook: func(call) {
		hurt = os.Truncate(
			victim, keep)
	}})
	return end, errors.Join(err, hurt, restore(victim, text, st))
}

// writeIDs writes what forward reads.
func writeIDs(path string) error {
	w, err := safetensors.Create(path,
		[]safetensors.Info{{Name: "input_ids", DType: safetensors.I64, Shape: []int64{1, 16}}}, nil,
		safetensors.Options{Overwrite: true})
	if err != nil {
		return err
	}

	ids := make([]byte, 8*16)
	for i := range 16 {
		ids[8*i] = byte(i + 5)
	}

	return errors.Join(w.WriteTensor("input_ids", ids), w.Finish())
}

func restore(path string, text []byte, st os.FileInfo) error {
	if err := os.WriteFile(path, text, st.Mode()); err != nil {
		return err
	}
	return os.Chtimes(path, st.ModTime(), st.ModTime())
}
