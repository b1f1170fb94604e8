//go:build linux && amd64

package faulttest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestStateFlipCampaign: a bit that flips in what a killed run has left is noticed when the run is resumed, or
// does no harm. Where a finished part has no checksum it stays where it is, and spreads nowhere. Where it is
// noticed, --overwrite begins anew and ends with the right bytes.
func TestStateFlipCampaign(t *testing.T) {
	campaign(t, "flip of state", size(1, *points/2),
		func(_ *testing.T, r *rig, v verb, calls []call, number int) record {
			draw := draw(v, "flip of state", number)
			n := countChanges(calls)
			rec := record{Outcome: beyond}
			if _, err := r.start(v); err != nil || v.again == "" {
				return rec
			}

			at := 1 + draw.IntN(n)
			end, err := trace(r.line(v, false), fault{match: call.changes, at: at, kill: true})
			if err != nil || end.hit == nil {
				return rec
			}

			files := filesBelow(filepath.Join(r.dir, "out"))
			if len(files) == 0 {
				return rec
			}

			file := someOf(draw, files)
			bit, err := flip(file, draw.Int64())
			if err != nil {
				return failed(rec, err)
			}

			name, _ := filepath.Rel(r.dir, file)
			rec.Where = fmt.Sprintf("%s, bit %d, after %s", name, bit, place(*end.hit, at, n))
			if end, err = trace(r.line(v, true), fault{}); err != nil {
				return failed(rec, err)
			}

			rec.Said = said(end.stderr)

			if end.code == 0 {
				rec.Outcome = absorbed
				if !complete(r, v) {
					return r.spread(v, rec, file)
				}
				return rec.finish(r, v)
			}

			if why := told(end, name); why != "" {
				rec.Outcome, rec.Why = defect, why
				return rec
			}

			line := r.line(v, false)
			if v.name != "eval batch" { // which begins anew without a word
				line.args = append(line.args, "--overwrite")
			}
			if end, err = trace(line, fault{}); err != nil {
				return failed(rec, err)
			}

			rec.Outcome = noticed
			if end.code != 0 {
				rec.Outcome, rec.Why, rec.Said = defect, fmt.Sprintf("--overwrite ends with code %d", end.code),
					append(rec.Said, said(end.stderr)...)
			}

			return rec.finish(r, v)
		})
}

// TestInputFlipCampaign: a bit that flips in an input before a run is an error with one line, or it is in the
// result: inputs carry no checksums. This campaign only forbids crashes and unclear messages, and counts who
// notices.
func TestInputFlipCampaign(t *testing.T) {
	campaign(t, "flip of input", size(1, *points/2),
		func(_ *testing.T, r *rig, v verb, calls []call, number int) record {
			draw := draw(v, "flip of input", number)
			rec := record{Outcome: beyond}

			var inputs []string
			for _, c := range calls {
				if strings.HasPrefix(c.path, "in/") && !slices.Contains(inputs, c.path) &&
					(c.kind == kindRead || c.kind == kindMap) {
					inputs = append(inputs, c.path)
				}
			}

			if _, err := r.start(v); err != nil || len(inputs) == 0 {
				return rec
			}

			name := someOf(draw, inputs)
			file := filepath.Join(r.dir, name)
			text, err := os.ReadFile(file)
			if err != nil {
				return failed(rec, err)
			}

			st, err := os.Stat(file)
			if err != nil {
				return failed(rec, err)
			}

			bit, err := flip(file, draw.Int64())
			if err != nil {
				return failed(rec, err)
			}

			rec.Where = fmt.Sprintf("%s, bit %d", name, bit)
			end, err := trace(r.line(v, false), fault{})
			if back := restore(file, text, st); err != nil || back != nil {
				return failed(rec, fmt.Errorf("%v %v", err, back))
			}

			rec.Said = said(end.stderr)

			if end.code != 0 {
				if rec.Outcome, rec.Why = noticed, told(end, ""); rec.Why != "" {
					rec.Outcome = defect
				}
				return rec
			}

			rec.Outcome = unseen
			if complete(r, v) {
				rec.Outcome = absorbed
			}

			return rec
		})
}

// spread reports whether the result differs only where the damage was: a finished part, which carries no
// checksum, was taken as it is. Anything else is a defect. What eval has asked again is written behind the
// rest.
func (r *rig) spread(v verb, rec record, file string) record {
	got, err := r.outputs()
	if err != nil {
		return failed(rec, err)
	}

	for name, want := range r.wanted[v.name] {
		switch {
		case got[name] == want:
		case filepath.Base(name) == "answers.jsonl":
			rec.Outcome = noticed
		case filepath.Base(name) == filepath.Base(file):
			rec.Outcome = unseen
		default:
			return rec.finish(r, v)
		}
	}

	return rec
}

// told judges how damage was told: as judge does, but an unusable recipe or option is a wrong use too.
func told(e ended, path string) string {
	if e.code == 2 {
		e.code = 1
	}
	return judge(e, path)
}

// filesBelow lists the files in a folder, at any depth, that hold something.
func filesBelow(dir string) (list []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil && st.Size() > 0 {
				list = append(list, path)
			}
		}
		return nil
	})
	return list
}

// flip turns one bit of a file over and says which.
func flip(path string, which int64) (bit int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()

	st, err := f.Stat()
	if err != nil {
		return 0, err
	}

	bit = int64(uint64(which) % uint64(8*st.Size()))
	var one [1]byte
	if _, err := f.ReadAt(one[:], bit/8); err != nil {
		return 0, err
	}

	one[0] ^= 1 << (bit % 8)
	_, err = f.WriteAt(one[:], bit/8)
	return bit, err
}
