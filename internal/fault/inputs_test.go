//go:build linux && amd64

package fault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestInputsCampaign: an input that is cut short, emptied or removed while a run uses it makes the run fail with one line that names it, if it still needed it. Once
// the input is back the run goes on to the bytes of one that was left alone.
func TestInputsCampaign(t *testing.T) {
	for i, how := range []string{"shortened", "emptied", "removed"} {
		t.Run(how, func(t *testing.T) {
			if !*long && i > 0 {
				t.Skip("part of the whole campaign: -args -long")
			}
			campaign(t, "input "+how, size(1, *points/5), func(_ *testing.T, r *rig, v verb, calls []call, number int) record {
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
		if strings.HasPrefix(c.path, "in/") && !slices.Contains(inputs, c.path) && (c.kind == kindRead || c.kind == kindMap) {
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

func restore(path string, text []byte, st os.FileInfo) error {
	if err := os.WriteFile(path, text, st.Mode()); err != nil {
		return err
	}
	return os.Chtimes(path, st.ModTime(), st.ModTime())
}
