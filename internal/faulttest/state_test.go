//go:build linux && amd64

package faulttest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// state is what a stopped run has left: files below out by path, with what they hold.
type state map[string][]byte

// damages are the ways in which what a stopped run has left is harmed, as a closed table. One says what it did; "" if
// there is nothing that it can be done to.
var damages = []struct {
	kind string
	do   func(h *hurt) string
}{
	{"bit", (*hurt).bit},
	{"cut", (*hurt).cut},
	{"gone", (*hurt).gone},
	{"empty", (*hurt).empty},
	{"line twice", (*hurt).twice},
	{"line gone", (*hurt).without},
	{"folder", (*hurt).folder},
	{"another run's", (*hurt).foreign},
	{"older", (*hurt).older},
	{"exchanged", (*hurt).exchanged},
}

// hurt is a state that is about to be harmed.
type hurt struct {
	r    *rig
	draw *rand.Rand
	now  state
	old  state // of the same command, stopped earlier
	twin state // of another command with the same output, stopped at about the same moment
	file string
}

// TestStateCampaign: what a killed run has left is harmed, and the run resumed. It ends with the bytes of one that
// was left alone, or with exit code 1 and one line; then --overwrite begins anew. Where a finished part has no
// checksum, harm to it stays where it is.
func TestStateCampaign(t *testing.T) {
	n := 6 * len(damages)
	campaign(t, "state", size(len(damages), max(n, *points*3/10)),
		func(_ *testing.T, r *rig, v verb, calls []call, number int) record {
			return r.harmState(v, countChanges(calls), number)
		})
}

// harmState stops a run at a moment of its own, harms what it has left in one way of the table, and goes on.
func (r *rig) harmState(v verb, n, number int) record {
	draw := draw(v, "state", number)
	way := damages[number%len(damages)]
	rec := record{Outcome: beyond}
	at := 2 + draw.IntN(max(1, n-1))
	h := &hurt{r: r, draw: draw}

	var err error
	switch way.kind {
	case "another run's":
		twin, ok := twins[v.name]
		if !ok {
			return rec
		}
		other := v
		other.args = strings.Replace(v.args, twin[0], twin[1], 1)
		h.twin, _, err = r.stopped(other, at)
	case "older":
		h.old, _, err = r.stopped(v, 1+draw.IntN(at))
	}
	if err != nil {
		return failed(rec, err)
	}

	var where string
	if h.now, where, err = r.stopped(v, at); err != nil {
		return failed(rec, err)
	}

	if rec.Where = way.do(h); rec.Where == "" {
		return rec
	}
	rec.Where = way.kind + ": " + rec.Where + ", after " + where

	return r.goOn(v, rec, h.file)
}

// notOurs matches how a verb says that it does not know what stands there as its own.
var notOurs = regexp.MustCompile("so it is not replaced|not that of a comparison|not from this run|" +
	"is known; choose another folder")

// goOn resumes a run whose state was harmed, and judges.
func (r *rig) goOn(v verb, rec record, file string) record {
	end, err := trace(r.line(v, true), fault{})
	if err != nil {
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

	if why := told(end, ""); why != "" {
		rec.Outcome, rec.Why = defect, why
		return rec
	}

	line := r.line(v, false)
	if v.again != "" && v.name != "eval batch" { // which has no such flag
		line.args = append(line.args, "--overwrite")
	}
	if end, err = trace(line, fault{}); err != nil {
		return failed(rec, err)
	}

	rec.Outcome = noticed
	if end.code == 0 {
		return rec.finish(r, v)
	}

	// What is not the program's own any more, such as a folder in the place of a file, or a folder without the file
	// that says whose it is, is not removed by it either.
	rec.Said = append(rec.Said, said(end.stderr)...)
	foreign := strings.HasPrefix(rec.Where, "folder") || notOurs.MatchString(end.stderr)
	if why := told(end, ""); why != "" || !foreign && v.again != "" {
		rec.Outcome, rec.Why = defect, fmt.Sprintf("--overwrite ends with code %d %s", end.code, why)
	}

	return rec
}

// stopped runs a verb, kills it at a call, and reads what it has left.
func (r *rig) stopped(v verb, at int) (left state, where string, err error) {
	if err := r.clear(v); err != nil {
		return nil, "", err
	}

	end, err := trace(r.line(v, false), fault{match: call.changes, at: at, kill: true})
	if err != nil {
		return nil, "", err
	}
	where = "its end"
	if end.hit != nil {
		where = end.hit.kind + " " + end.hit.path
	}

	left = state{}
	for _, path := range everyFile(filepath.Join(r.dir, "out")) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, "", err
		}

		name, err := filepath.Rel(r.dir, path)
		if err != nil {
			return nil, "", err
		}
		left[name] = text
	}

	return left, where, nil
}

// everyFile lists the files in a folder, at any depth, empty ones too.
func everyFile(dir string) (list []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			list = append(list, path)
		}
		return nil
	})
	return list
}

// pick draws a file of those that are fit for a damage. Every kind of file has the same chance, so that the many shards
// and blocks of a state do not hide its one journal.
func (h *hurt) pick(fit func(name string, text []byte) bool) (name string, text []byte) {
	kinds := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(h.now)) {
		if fit(name, h.now[name]) {
			kind := sameKind.ReplaceAllString(filepath.Base(name), "N")
			kinds[kind] = append(kinds[kind], name)
		}
	}
	if len(kinds) == 0 {
		return "", nil
	}

	h.file = someOf(h.draw, kinds[someOf(h.draw, slices.Sorted(maps.Keys(kinds)))])
	return h.file, h.now[h.file]
}

// sameKind matches what distinguishes the names of files of one kind.
var sameKind = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)

func something(_ string, text []byte) bool { return len(text) > 0 }

func lined(_ string, text []byte) bool {
	return bytes.Count(text, []byte("\n")) > 0 && !bytes.ContainsRune(text, 0)
}

// write puts a file of the state in place, with its folders.
func (h *hurt) write(name string, text []byte) string {
	path := filepath.Join(h.r.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		return ""
	}
	return name
}

func (h *hurt) bit() string {
	name, text := h.pick(something)
	if name == "" {
		return ""
	}

	bit := h.draw.IntN(8 * len(text))
	text = bytes.Clone(text)
	text[bit/8] ^= 1 << (bit % 8)
	return h.write(name, text) + fmt.Sprintf(", bit %d", bit)
}

// cut ends a file at a boundary of its structure: of a line, of the header or a tensor of a safetensors file, of a
// block of the disk; or just before or behind one.
func (h *hurt) cut() string {
	name, text := h.pick(something)
	if name == "" {
		return ""
	}

	at := someOf(h.draw, boundaries(text)) + h.draw.IntN(3) - 1
	at = min(max(at, 0), len(text)-1)
	return h.write(name, text[:at]) + fmt.Sprintf(", to %d of %d bytes", at, len(text))
}

// boundaries are the places in a file where one part ends and another begins.
func boundaries(text []byte) []int {
	list := []int{0, 1, len(text) / 2, len(text) - 1}
	for at := 4096; at < len(text) && at < 1<<20; at *= 2 {
		list = append(list, at)
	}

	if len(text) > 8 && binary.LittleEndian.Uint64(text) < uint64(len(text)-8) {
		head := 8 + int(binary.LittleEndian.Uint64(text))
		var entries map[string]struct {
			DataOffsets []int `json:"data_offsets"`
		}
		if json.Unmarshal(text[8:head], &entries) == nil {
			list = append(list, 8, head)
			for _, name := range slices.Sorted(maps.Keys(entries)) {
				for _, at := range entries[name].DataOffsets {
					list = append(list, head+at)
				}
			}
			return list
		}
	}

	for at, b := range text {
		if b == '\n' {
			list = append(list, at+1)
		}
	}

	return list
}

func (h *hurt) gone() string {
	name, _ := h.pick(func(string, []byte) bool { return true })
	if name == "" || os.Remove(filepath.Join(h.r.dir, name)) != nil {
		return ""
	}
	return name
}

func (h *hurt) empty() string {
	name, _ := h.pick(something)
	if name == "" {
		return ""
	}
	return h.write(name, nil)
}

// twice repeats a line, behind itself or at the end.
func (h *hurt) twice() string {
	name, text := h.pick(lined)
	if name == "" {
		return ""
	}

	list := slices.Collect(bytes.Lines(text))
	i := h.draw.IntN(len(list))
	to := i
	if h.draw.IntN(2) == 0 {
		to = len(list)
	}
	text = bytes.Join(slices.Insert(slices.Clone(list), to, list[i]), nil)
	return h.write(name, text) + fmt.Sprintf(", line %d", i+1)
}

func (h *hurt) without() string {
	name, text := h.pick(lined)
	if name == "" {
		return ""
	}

	list := slices.Collect(bytes.Lines(text))
	i := h.draw.IntN(len(list))
	text = bytes.Join(slices.Delete(list, i, i+1), nil)
	return h.write(name, text) + fmt.Sprintf(", line %d of %d", i+1, len(list))
}

// folder puts a folder, with something in it or without, in the place of a file.
func (h *hurt) folder() string {
	// The note of a command is for messages alone, and what stands in its place stays (TestNoteIsNobodysFolder of cli).
	name, _ := h.pick(func(name string, _ []byte) bool { return !strings.HasSuffix(name, ".command") })
	path := filepath.Join(h.r.dir, name)
	if name == "" || os.Remove(path) != nil || os.Mkdir(path, 0o755) != nil {
		return ""
	}
	if h.draw.IntN(2) == 0 {
		return h.write(filepath.Join(name, "of-somebody"), []byte("text\n"))
	}
	return name
}

// foreign puts the file of another run, with other options and the same output, in the place of this run's.
func (h *hurt) foreign() string {
	name, _ := h.pick(func(name string, text []byte) bool {
		other, ok := h.twin[name]
		return ok && !bytes.Equal(other, text)
	})
	if name == "" {
		return ""
	}
	return h.write(name, h.twin[name])
}

// older puts one file back to what it was earlier in the same run, or all but one.
func (h *hurt) older() string {
	name, _ := h.pick(func(name string, text []byte) bool {
		other, ok := h.old[name]
		return ok && !bytes.Equal(other, text)
	})
	if name == "" {
		return ""
	}
	return h.write(name, h.old[name])
}

// exchanged exchanges two files of one kind, or any two.
func (h *hurt) exchanged() string {
	name, text := h.pick(something)
	if name == "" {
		return ""
	}

	kind := filepath.Ext(name)
	var others []string
	for _, x := range slices.Sorted(maps.Keys(h.now)) {
		if x != name && filepath.Ext(x) == kind && !bytes.Equal(h.now[x], text) {
			others = append(others, x)
		}
	}
	if len(others) == 0 {
		return ""
	}

	other := someOf(h.draw, others)
	return h.write(other, text) + " and " + h.write(name, h.now[other])
}
