//go:build linux && amd64

package faulttest

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// campaign runs n faults of a kind on every verb that the flags choose.
func campaign(t *testing.T, kind string, n int,
	one func(t *testing.T, r *rig, v verb, calls []call, number int) record,
) {
	t.Helper()
	if *kinds != "" && !regexp.MustCompile(*kinds).MatchString(kind) {
		t.Skipf("-kinds %s leaves %s out", *kinds, kind)
	}

	r, l := rigOf(t), openLedger(t)
	for _, v := range verbs {
		if *only != "" && !regexp.MustCompile(*only).MatchString(v.name) || !*long && !v.short {
			continue
		}
		if !regexp.MustCompile(v.kinds).MatchString(kind) {
			continue
		}

		calls, err := r.reference(v)
		if err != nil {
			t.Error(err)
			continue
		}

		for number := range n {
			if l.has(v, kind, number) {
				continue
			}

			rec := one(t, r, v, calls, number)
			rec.Verb = v.name
			rec.Kind = kind
			rec.Number = number
			l.add(rec)
		}
	}

	l.tally()
}

// size is how many points a campaign has: few or all.
func size(few, all int) int {
	if *long {
		return all
	}
	return few
}

func countChanges(calls []call) int {
	n := 0
	for _, c := range calls {
		if c.changes() {
			n++
		}
	}
	return n
}

// TestKillCampaign: a run that is killed before or within any call that changes the disk, and perhaps again
// when it is resumed, ends with the bytes of one that was left alone, has nothing half-written under a final
// name meanwhile and leaves nothing behind.
func TestKillCampaign(t *testing.T) {
	campaign(t, "kill", size(2, *points), func(_ *testing.T, r *rig, v verb, calls []call, number int) record {
		draw := draw(v, "kill", number)
		n := countChanges(calls)
		rec := record{Outcome: beyond}
		before, err := r.start(v)
		if err != nil {
			return failed(rec, err)
		}

		for again := false; ; again = true {
			// Points are spread evenly over the run: every n-th part of it has one of n draws.
			at := 1 + int((float64(number)+draw.Float64())/float64(size(2, *points))*float64(n))
			if again {
				at = 1 + draw.IntN(n)
			}

			end, err := trace(r.line(v, again),
				fault{match: call.changes, at: at, kill: true, torn: draw.IntN(2) == 0, part: draw.Int64N(64)})
			if err != nil {
				return failed(rec, err)
			}

			rec.Said = append(rec.Said, said(end.stderr)...)

			if end.hit == nil {
				why := judge(end, "")
				if end.code != 0 {
					rec.Outcome, rec.Why = defect,
						fmt.Sprintf("resumed after a kill at %s: exit code %d %s", rec.Where, end.code, why)
					if v.again == "" && complete(r, v) {
						return r.afresh(v, rec, equal)
					}
				}

				return rec.finish(r, v)
			}

			rec.Where = strings.TrimPrefix(rec.Where+", then "+place(*end.hit, at, n), ", then ")
			rec.Outcome = equal
			if why := r.halfway(v, before); why != "" {
				rec.Outcome, rec.Why = defect, why
				return rec
			}

			if again || draw.IntN(4) > 0 {
				return r.finish(v, rec, equal)
			}
		}
	})
}

// start clears the rig for a verb and says what stands there.
func (r *rig) start(v verb) (outputs, error) {
	if err := r.clear(v); err != nil {
		return nil, err
	}
	return r.outputs()
}

func failed(rec record, err error) record {
	rec.Outcome, rec.Why = defect, err.Error()
	return rec
}

func place(c call, at, n int) string { return fmt.Sprintf("%s %s (%d of %d)", c.kind, c.path, at, n) }

// halfway says what a stopped run has left under final names that it should not have.
func (r *rig) halfway(v verb, before outputs) string {
	got, err := r.outputs()
	if err != nil {
		return err.Error()
	}
	return unfinished(v, r.wanted[v.name], got, before)
}

// complete reports whether the final files are all there already.
func complete(r *rig, v verb) bool {
	got, err := r.outputs()
	if err != nil {
		return false
	}

	for name, want := range r.wanted[v.name] {
		if got[name] != want {
			return false
		}
	}

	return true
}

// finish compares what is there with the run that was left alone.
func (rec record) finish(r *rig, v verb) record {
	if rec.Outcome == defect {
		return rec
	}

	got, err := r.outputs()
	if err != nil {
		return failed(rec, err)
	}

	if d := difference(r.wanted[v.name], got); d != "" {
		rec.Outcome, rec.Why = defect, d
	}

	return rec
}

// finish goes on with a stopped run, and compares. outcome is that of success.
func (r *rig) finish(v verb, rec record, outcome string) record {
	whole := complete(r, v)
	end, err := trace(r.line(v, true), fault{})
	if err != nil {
		return failed(rec, err)
	}

	rec.Outcome, rec.Said = outcome, append(rec.Said, said(end.stderr)...)
	if end.code != 0 && v.again == "" && whole {
		return r.afresh(v, rec, outcome)
	}

	if end.code != 0 {
		rec.Outcome, rec.Why = defect, fmt.Sprintf("the run after it ends with code %d", end.code)
		return rec
	}

	return rec.finish(r, v)
}

// afresh runs a verb that can't go on once more over its complete result, which it had refused to replace.
func (r *rig) afresh(v verb, rec record, outcome string) record {
	if v.place == "" {
		line := r.line(v, false)
		line.args = append(line.args, "--overwrite")
		end, err := trace(line, fault{})
		if err != nil {
			return failed(rec, err)
		}

		rec.Said = append(rec.Said, said(end.stderr)...)

		if end.code != 0 {
			rec.Outcome, rec.Why = defect, fmt.Sprintf("--overwrite over a complete result ends with code %d", end.code)
			return rec
		}
	}

	rec.Outcome, rec.Why = outcome, ""
	return rec.finish(r, v)
}

// someOf draws one of a list.
func someOf[T any](draw *rand.Rand, list []T) T { return list[draw.IntN(len(list))] }
