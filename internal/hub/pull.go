package hub

import (
	"cmp"
	"context"
	"crypto/sha1" // #nosec: git's own checksum of small files
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/modelcompress/compress/internal/disk"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/system"
)

// partEnding is that of files that are not complete. It is the one of huggingface_hub, whose programs leave
// such files alone or go on with them.
const partEnding = ".incomplete"

// Place is where the files of a model go.
type Place struct {
	cache  string // of the hub's layout; empty: a plain folder
	folder string // of the model in the cache, or the plain folder
	commit string
}

// CachePlace is the place of a model in a cache.
func CachePlace(cache string, m *Model) Place { return Place{cache, m.Name.folder(cache), m.Commit} }

// FolderPlace is a plain folder with a model's files.
func FolderPlace(dir string) Place { return Place{folder: dir} }

// Dir is the folder in which the files of the model will be.
func (p Place) Dir() string {
	if p.cache == "" {
		return p.folder
	}
	return filepath.Join(p.folder, "snapshots", p.commit)
}

// content is where the bytes of a file lie: in the cache under their checksum, so that revisions share them.
func (p Place) content(f File) string {
	if p.cache == "" {
		return filepath.Join(p.folder, filepath.FromSlash(f.Path))
	}
	return filepath.Join(p.folder, "blobs", f.Sum)
}

// part is where they lie until they are complete and compared with the checksum. In a plain folder the name holds the
// checksum too, so that a part of another revision's file is not gone on with.
func (p Place) part(f File) string {
	if p.cache == "" {
		at := p.content(f)
		return filepath.Join(filepath.Dir(at), "."+filepath.Base(at)+"."+f.Sum[:12]+partEnding)
	}
	return p.content(f) + partEnding
}

// Estimate is what a download has to do.
type Estimate struct {
	Files   int   `json:"files"`       // of the model that are wanted
	Bytes   int64 `json:"bytes"`       // of all of them; in a cache the same bytes count once
	Present int64 `json:"present"`     // that are there already, in whole files and parts
	Free    int64 `json:"free_before"` // on the disk before; -1 where the system does not tell
}

// Estimate looks at what is there. The error is that the rest does not fit on the disk.
func (p Place) Estimate(files []File) (Estimate, error) {
	e := Estimate{Files: len(files), Free: -1}
	for _, same := range p.contents(files) {
		f := same[0]
		e.Bytes += f.Size
		if stat, err := os.Stat(p.content(f)); err == nil && stat.Size() == f.Size {
			e.Present += f.Size
		} else if stat, err := os.Stat(p.part(f)); err == nil {
			e.Present += min(stat.Size(), f.Size)
		}
	}

	dir := p.Dir()
	for { // of the folder, or the first above it that is there
		if open, err := os.Open(dir); err == nil {
			e.Free, _ = system.Space(open)
			err := disk.Check(dir, e.Bytes-e.Present, 0)
			if err != nil {
				err = failure.Hinted(fmt.Errorf("%s: %d bytes are to be downloaded, and there is room for %d: %w", dir,
					e.Bytes-e.Present, e.Free, err), failure.NoSpace)
			}
			return e, errors.Join(open.Close(), err)
		}
		if filepath.Dir(dir) == dir {
			return e, nil
		}
		dir = filepath.Dir(dir)
	}
}

// PullOptions of [Client.Pull].
type PullOptions struct {
	AtOnce   int                     // how many files at a time; 0: 4
	Progress func(done, total int64) // bytes; called by one goroutine at a time
}

// Pulled is what a download has done.
type Pulled struct {
	Loaded int64 `json:"loaded"` // bytes that came over the network
	Kept   int   `json:"kept"`   // files that were there already
}

// Pull downloads files of a model into a place. Each appears under its name when all of it is on the disk and has the
// checksum that the hub says; what was interrupted goes on where it stopped, in a later call too. The snapshot in a
// cache is named by its revision when all files are there. What is there already is not loaded again: in a cache by the
// checksum in its name, in a folder by its content.
func (c *Client) Pull(ctx context.Context, m *Model, files []File, p Place, o PullOptions) (*Pulled, error) {
	w := &puller{c: c, m: m, p: p, o: o}
	contents := p.contents(files)
	for _, same := range contents {
		w.total += same[0].Size
	}

	if err := os.MkdirAll(p.Dir(), 0o777); err != nil {
		return nil, err
	}

	// The first failure ends the others too, which keep what they have.
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(cmp.Or(max(o.AtOnce, 0), 4))
	for _, same := range contents {
		group.Go(func() error { return w.files(inner, same) })
	}
	if err := group.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}

	if p.cache != "" {
		if err := p.name(m); err != nil {
			return nil, err
		}
	}

	return &Pulled{Loaded: w.loaded.Load(), Kept: int(w.kept.Load())}, nil
}

// name writes what the revision is at the moment, as the cache has it.
func (p Place) name(m *Model) error {
	revision := m.Name.Revision
	if revision == "" {
		revision = Main
	}
	if revision == m.Commit {
		return nil
	}

	ref := filepath.Join(p.folder, "refs", filepath.FromSlash(revision))
	if err := os.MkdirAll(filepath.Dir(ref), 0o777); err != nil {
		return err
	}
	return safefile.WriteFile(ref, []byte(m.Commit), 0o666)
}

// puller is a download.
type puller struct {
	c *Client
	m *Model
	p Place
	o PullOptions

	loaded, kept atomic.Int64

	mu    sync.Mutex
	done  int64
	total int64
}

// advance says that n more bytes are there; fewer, where some turn out to be wrong.
func (w *puller) advance(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.done += n
	if w.o.Progress != nil {
		w.o.Progress(w.done, w.total)
	}
}

// contents gathers files whose bytes lie at one place: those of a cache that have the same checksum. They are
// downloaded once, by one goroutine, since two would lock each other out of the part.
func (p Place) contents(files []File) [][]File {
	var list [][]File
	index := map[string]int{}
	for _, f := range files {
		at := p.content(f)
		i, ok := index[at]
		if !ok {
			i = len(list)
			index[at] = i
			list = append(list, nil)
		}
		list[i] = append(list[i], f)
	}
	return list
}

// files gets the bytes that some files have in common, and gives each file its name.
func (w *puller) files(ctx context.Context, same []File) error {
	first := same[0]
	at := w.p.content(first)
	there, err := w.content(ctx, first, at)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", w.m.Name.ID(), first.Path, err)
	}
	if there {
		w.kept.Add(int64(len(same)))
	}
	if w.p.cache == "" {
		return nil
	}

	for _, f := range same {
		if err := w.link(f, at); err != nil {
			return fmt.Errorf("%s: %s: %w", w.m.Name.ID(), f.Path, err)
		}
	}
	return nil
}

// content downloads the bytes of a file, and reports whether they were there already.
func (w *puller) content(ctx context.Context, f File, at string) (there bool, err error) {
	if err := os.MkdirAll(filepath.Dir(at), 0o777); err != nil {
		return false, err
	}

	there, err = w.there(ctx, f, at)
	switch {
	case err != nil:
		return false, err
	case there:
		w.advance(f.Size)
		return true, nil
	}
	return false, w.load(ctx, f, at)
}

// there reports whether a file is complete: in a cache by its name and size, since it got its name when its content had
// been compared; in a folder by its content. A file of a folder that is another one is not replaced.
func (w *puller) there(ctx context.Context, f File, at string) (bool, error) {
	stat, err := os.Stat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if w.p.cache != "" {
		return stat.Size() == f.Size, nil // another size is a blob that another program has not finished
	}

	if stat.Mode().IsRegular() && stat.Size() == f.Size {
		in, err := os.Open(at)
		if err != nil {
			return false, err
		}
		defer in.Close()

		sum := f.sum()
		if _, err := io.Copy(sum, reader{ctx, in}); err != nil {
			return false, err
		}
		if f.is(sum) {
			return true, nil
		}
	}

	return false, failure.Hinted(fmt.Errorf("%s: there is another file of that name, which is not replaced", at),
		"remove it, or choose another folder with --out")
}

// sum is a checksum to which the content of the file has to be written. That of a small file is git's of a blob, whose
// header has the length.
func (f File) sum() hash.Hash {
	if len(f.Sum) == sha256Size {
		return sha256.New()
	}
	h := sha1.New() // #nosec: it is the only checksum of these files that the hub gives
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return h
}

func (f File) is(sum hash.Hash) bool { return hex.EncodeToString(sum.Sum(nil)) == f.Sum }

// reader ends when a context does.
type reader struct {
	ctx context.Context
	in  io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.in.Read(p)
}

// load downloads a file: into its part, which gets the name when it is complete and right.
func (w *puller) load(ctx context.Context, f File, at string) error {
	part := w.p.part(f)
	out, err := system.OpenFile(part, os.O_RDWR|os.O_CREATE|system.NoFollow, 0o666)
	if err != nil {
		return err
	}
	defer out.Close()

	// Two downloads that write one part would spoil it.
	if err := system.TryLock(out); errors.Is(err, system.ErrLocked) {
		return failure.Hinted(fmt.Errorf("%s: another download writes it", part), "wait until that one has ended")
	}

	// It may have been complete, and got its name, between opening and locking.
	mine, err := out.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Lstat(part); err != nil || !os.SameFile(mine, now) {
		return failure.Hinted(fmt.Errorf("%s: another download has just ended", part), "give the same command again")
	}

	sum := f.sum()
	have, err := w.begun(ctx, f, out, sum)
	if err != nil {
		return err
	}

	w.advance(have)
	for try := 1; have < f.Size; try++ {
		n, err := w.rest(ctx, f, out, sum, have)
		have += n
		if n > 0 {
			try = 1 // it goes on, if slowly
		}
		if err != nil && (ctx.Err() != nil || !errors.Is(err, ErrShort) || try >= tries) {
			return errors.Join(err, out.Sync())
		}
		if err == nil {
			break
		}
		if err := w.c.wait(ctx, time.Duration(try)*time.Second); err != nil {
			return err
		}
	}

	if have != f.Size || !f.is(sum) {
		w.advance(-have)
		err := fmt.Errorf("%w: %d bytes whose checksum is %x, not %s", ErrChecksum, have, sum.Sum(nil), f.Sum)
		return errors.Join(err, os.Remove(part)) // nothing of it can be gone on with
	}

	if err := out.Sync(); err != nil {
		return err
	}
	if err := system.Rename(part, at); err != nil {
		return err
	}

	return safefile.SyncFolder(filepath.Dir(at))
}

// begun takes what a part holds into the checksum; one that is too long begins again.
func (w *puller) begun(ctx context.Context, f File, out *os.File, sum hash.Hash) (int64, error) {
	stat, err := out.Stat()
	if err != nil {
		return 0, err
	}
	if !stat.Mode().IsRegular() {
		return 0, fmt.Errorf("%s: %w", out.Name(), safefile.ErrNotRegular)
	}
	if stat.Size() > f.Size {
		return 0, out.Truncate(0)
	}

	return io.Copy(sum, reader{ctx, out})
}

// rest downloads what is missing of a file and returns how much came. The error wraps [ErrShort] where the next request
// may give the rest.
func (w *puller) rest(ctx context.Context, f File, out *os.File, sum hash.Hash, have int64) (int64, error) {
	// A connection over which nothing comes any more is given up.
	live, end := context.WithCancel(ctx)
	defer end()

	answer, err := w.c.get(live, w.c.fileURL(w.m, f), http.MethodGet, have)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()

	body := io.Reader(answer.Body)
	if err := w.fits(answer, f, have); err != nil {
		return 0, err
	}
	if have > 0 && answer.StatusCode == http.StatusOK { // a server without ranges begins again
		if _, err := io.CopyN(io.Discard, body, have); err != nil {
			return 0, w.short(ctx, err)
		}
	}

	// A byte more than there may be shows a longer file.
	got := int64(0)
	idle := time.AfterFunc(w.c.stall, end)
	defer idle.Stop()
	buf := make([]byte, 1<<20)
	body = io.LimitReader(body, f.Size-have+1)
	for {
		n, err := body.Read(buf)
		if n = int(min(int64(n), f.Size-have-got)); n > 0 {
			if _, err := out.WriteAt(buf[:n], have+got); err != nil {
				return got, err
			}
			sum.Write(buf[:n])
			got += int64(n)
			idle.Reset(w.c.stall)
			w.loaded.Add(int64(n))
			w.advance(int64(n))
		}

		switch {
		case errors.Is(err, io.EOF) && have+got == f.Size:
			return got, nil
		case err != nil:
			return got, w.short(ctx, err)
		}
	}
}

// short is the error of an answer that ended early.
func (w *puller) short(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrShort, err)
}

// fits refuses an answer that cannot be the file, before any of it is written.
func (w *puller) fits(answer *http.Response, f File, have int64) error {
	host := answer.Request.URL.Host
	from := int64(0)
	if answer.StatusCode == http.StatusPartialContent {
		from = have
		begin, _, _ := strings.Cut(strings.TrimPrefix(answer.Header.Get("Content-Range"), "bytes "), "-")
		if n, err := strconv.ParseInt(begin, 10, 64); err != nil || n != have {
			return fmt.Errorf("%s: %w: bytes %.60q where those from %d on are wanted", host, ErrAnswer,
				answer.Header.Get("Content-Range"), have)
		}
	}

	if n := answer.ContentLength; n >= 0 && n != f.Size-from {
		what := ""
		if strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
			what = ", a page of HTML"
		}
		return fmt.Errorf("%s: %w: %d bytes%s where the file has %d", host, ErrAnswer, n+from, what, f.Size)
	}

	return nil
}

// link makes the entry of a snapshot: a relative link to the blob, so that the cache can be moved.
func (w *puller) link(f File, blob string) error {
	at := filepath.Join(w.p.Dir(), filepath.FromSlash(f.Path))
	if err := os.MkdirAll(filepath.Dir(at), 0o777); err != nil {
		return err
	}

	to, err := filepath.Rel(filepath.Dir(at), blob)
	if err != nil {
		return err
	}
	if now, err := os.Readlink(at); err == nil && now == to {
		return nil
	}

	// Made beside and renamed: an entry is replaced in one step, and two downloads do not disturb each other.
	part := filepath.Join(filepath.Dir(at), "."+filepath.Base(at)+"."+f.Sum[:12]+partEnding)
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, part); err != nil {
		return err
	}
	return system.Rename(part, at)
}
