//go:build linux && amd64

package faulttest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// injection is a way in which system calls fail.
type injection struct {
	kind   string
	calls  []string // kinds of calls
	errno  syscall.Errno
	sticky bool // from the point on all of them fail
	short  bool // a part of the bytes instead of an error
	mild   bool // the program has to go on as if nothing had been

	below string // part of the paths of the calls; empty: all
}

func (in injection) match(c call) bool {
	return slices.Contains(in.calls, c.kind) && strings.Contains(c.path, in.below)
}

// injections is the closed table of them.
var injections = []injection{
	{kind: "read EIO", calls: []string{kindRead}, errno: syscall.EIO},
	{kind: "write EIO", calls: []string{kindWrite}, errno: syscall.EIO},
	{kind: "fsync EIO", calls: []string{kindSync}, errno: syscall.EIO},
	{kind: "rename EIO", calls: []string{kindRename, kindLink}, errno: syscall.EIO},
	{kind: "open EIO", calls: []string{kindOpen, kindCreate, kindMkdir}, errno: syscall.EIO},
	{kind: "resize EIO", calls: []string{kindResize, kindRemove}, errno: syscall.EIO},
	{kind: "map ENOMEM", calls: []string{kindMap}, errno: syscall.ENOMEM},
	{
		kind: "ENOSPC", calls: []string{kindWrite, kindCreate, kindMkdir, kindResize}, errno: syscall.ENOSPC,
		sticky: true,
	},
	{kind: "EDQUOT", calls: []string{kindWrite}, errno: syscall.EDQUOT},
	{kind: "open EMFILE", calls: []string{kindOpen, kindCreate}, errno: syscall.EMFILE, sticky: true},
	{kind: "EINTR", calls: []string{
		kindRead, kindWrite, kindSync, kindRename, kindOpen, kindCreate, kindMkdir,
		kindResize, kindRemove,
	}, errno: syscall.EINTR, mild: true},
	{kind: "short read", calls: []string{kindRead}, short: true, mild: true},
	{kind: "short write", calls: []string{kindWrite}, short: true, mild: true},
	{kind: "queue create EIO", calls: []string{kindCreate}, errno: syscall.EIO, below: ".blk"},
	{kind: "queue EIO", calls: []string{
		kindOpen, kindCreate, kindMkdir, kindWrite, kindSync, kindRename, kindResize,
		kindRemove,
	}, errno: syscall.EIO, below: "/jetstream/"},
}

// TestInjectionCampaign: a system call on a file that fails makes the run fail with one line that names the
// file, if it fails at all, with nothing half-written; the run after it ends with the bytes of one that was
// left alone. Interrupted and partial calls do no harm.
func TestInjectionCampaign(t *testing.T) {
	for i, in := range injections {
		t.Run(in.kind, func(t *testing.T) {
			if !*long && i%5 != 1 {
				t.Skip("part of the whole campaign: -args -long")
			}
			campaign(t, in.kind, size(1, max(1, *points/10)),
				func(_ *testing.T, r *rig, v verb, calls []call, number int) record {
					return r.inject(v, in, calls, number)
				})
		})
	}
}

func (r *rig) inject(v verb, in injection, calls []call, number int) record {
	draw := draw(v, in.kind, number)
	n := 0
	for _, c := range calls {
		if in.match(c) {
			n++
		}
	}

	rec := record{Outcome: beyond}
	if n == 0 {
		return rec
	}

	before, err := r.start(v)
	if err != nil {
		return failed(rec, err)
	}

	at := 1 + draw.IntN(n)
	end, err := trace(r.line(v, false),
		fault{match: in.match, at: at, errno: in.errno, sticky: in.sticky, torn: in.short, part: draw.Int64N(64)})
	if err != nil {
		return failed(rec, err)
	}

	rec.Said = said(end.stderr)
	if end.hit == nil {
		return rec.finish(r, v)
	}

	rec.Where = place(*end.hit, at, n)

	if end.code == 0 {
		rec.Outcome = absorbed
		return rec.finish(r, v)
	}

	path := end.hit.path
	if in.sticky {
		path = "" // another file may be what is told
	}

	if in.mild {
		rec.Outcome, rec.Why = defect, fmt.Sprintf("exit code %d where nothing had failed", end.code)
		return rec
	}

	return r.recover(v, rec, end, before, path)
}

// recover judges a run that failed and goes on with it.
func (r *rig) recover(v verb, rec record, end ended, before outputs, path string) record {
	why := judge(end, path)
	if why == "" {
		why = r.halfway(v, before)
	}
	if why != "" {
		rec.Outcome, rec.Why = defect, why
		return rec
	}
	return r.finish(v, rec, equal)
}

// TestDiskCampaign: a run on a disk that becomes full ends with one line that says so and names a file, and
// goes on once there is room.
func TestDiskCampaign(t *testing.T) {
	probe := t.TempDir()
	if err := syscall.Mount("tmpfs", probe, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	if err := syscall.Unmount(probe, 0); err != nil {
		t.Fatal(err)
	}

	levels := size(1, 24)
	campaign(t, "full disk", levels, func(_ *testing.T, r *rig, v verb, _ []call, number int) record {
		return r.fill(v,
			number, levels)
	})
}

func (r *rig) fill(v verb, number, levels int) (rec record) {
	rec.Outcome = beyond
	out := filepath.Join(r.dir, "out")
	if _, err := r.start(v); err != nil {
		return failed(rec, err)
	}

	if v.place != "" {
		if err := os.RemoveAll(filepath.Join(out, v.place)); err != nil {
			return failed(rec, err)
		}
	}

	want, err := r.bytes(v)
	if err != nil {
		return failed(rec, err)
	}

	// From little to a bit more than all, with what stands there before on top.
	room := want*int64(number+1)/int64(levels) + want/8
	if err := syscall.Mount("tmpfs", out, "tmpfs", 0, "size="+fmt.Sprint(r.already(v)+room)); err != nil {
		return failed(rec, err)
	}
	defer func() {
		if err := syscall.Unmount(out, 0); err != nil {
			rec = failed(rec, err)
		}
	}()

	rec.Where = fmt.Sprintf("%d of %d bytes", room, want)

	if v.place != "" {
		if err := os.CopyFS(filepath.Join(out, v.place), os.DirFS(filepath.Join(r.dir, "in", v.place))); err != nil {
			return failed(rec, err)
		}
	}

	before, err := r.outputs()
	if err != nil {
		return failed(rec, err)
	}

	end, err := trace(r.line(v, false), fault{})
	if err != nil {
		return failed(rec, err)
	}

	rec.Said = said(end.stderr)
	if end.code == 0 {
		return rec.finish(r, v)
	}

	if !strings.Contains(end.stderr, "space") {
		rec.Outcome, rec.Why = defect, "the message does not say that there is no space"
		return rec
	}

	if err := syscall.Mount("tmpfs", out, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil {
		return failed(rec, err)
	}

	return r.recover(v, rec, end, before, "out/"+filepath.Base(lastArgument(v)))
}

// lastArgument is the output of a verb: all that is written stands in it, or beside it under a name made from it.
func lastArgument(v verb) string {
	fields := strings.Fields(v.args)
	for i, f := range fields {
		if f == "--out" {
			return fields[i+1]
		}
	}
	return "out/" + v.place
}

// bytes is how much a verb leaves on the disk, in pages.
func (r *rig) bytes(v verb) (int64, error) {
	if end, err := trace(r.line(verb{args: v.args, family: v.family}, false), fault{}); v.place == "" &&
		(err != nil || end.code != 0) {
		return 0, fmt.Errorf("%w: %s", err, end.stderr)
	}
	n := pages(filepath.Join(r.dir, "out"))
	if v.place != "" {
		n = r.already(v)
	}
	return n, r.clear(verb{})
}

// already is how much stands on the disk before a verb begins.
func (r *rig) already(v verb) int64 {
	if v.place == "" {
		return 0
	}
	return pages(filepath.Join(r.dir, "in", v.place))
}

// pages is the size of the files in a folder, each rounded up to whole pages.
func pages(dir string) (n int64) {
	_ = filepath.Walk(dir, func(_ string, st os.FileInfo, err error) error {
		if err == nil {
			n += (st.Size() + 4095) / 4096 * 4096
		}
		return nil
	})
	return n
}
