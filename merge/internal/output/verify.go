package output

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// verify opens the finished files and compares every part that was not read back before with its checksum.
func (f *Folder) verify() error {
	d, err := safetensors.OpenDir(f.place.Dir)
	if err != nil {
		return err
	}
	defer d.Close()

	if len(d.Names()) != len(f.o.Tensors) {
		return fmt.Errorf("%s: %d tensors, want %d: %w", f.place.Dir, len(d.Names()), len(f.o.Tensors), ErrVerify)
	}

	var places []place
	for _, t := range f.o.Tensors {
		info, ok := d.Info(t.Name)
		if !ok || info.DType != t.DType || !slices.Equal(info.Shape, t.Shape) {
			return fmt.Errorf("%s: tensor %q is not what was laid out: %w", f.place.Dir, t.Name, ErrVerify)
		}

		// Parts never overlap, so lengths that add up leave no gap.
		covered := int64(0)
		for _, s := range f.sums[t.Name] {
			if !f.behind.read[part{t.Name, s.Off}] {
				places = append(places, place{t.Name, d.ShardOf(t.Name), info.Offset, s})
			}
			covered += s.Len
		}

		if covered != info.Size {
			return fmt.Errorf("%s: tensor %q: %d of %d bytes were written: %w", f.place.Dir, t.Name, covered, info.Size,
				ErrVerify)
		}
	}

	return f.compare(places, d.Shards())
}

// place is a part that was written.
type place struct {
	tensor, shard string
	first         int64 // byte of the tensor, in its file
	sum
}

// compare reads parts from the device, where that can be done, and checks their sums.
func (f *Folder) compare(places []place, shards []string) (err error) {
	files := map[string]*Reader{}
	defer func() {
		for _, r := range files {
			err = errors.Join(err, r.Close())
		}
	}()

	// Opened here, not by the readers, which share them.
	for _, s := range shards {
		if files[s], err = OpenReader(filepath.Join(f.place.Dir, s)); err != nil {
			delete(files, s)
			return err
		}
	}

	runs := together(places)
	readers := f.o.readers()
	// Read from the device, not from the page cache, which would only confirm what was sent to it.
	buffers, free := Memory(readers, readSize+Slack)
	defer free()

	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, readers)
	for i := range readers {
		wait.Go(func() {
			for at := next.Add(1) - 1; at < int64(len(runs)) && errs[i] == nil; at = next.Add(1) - 1 {
				errs[i] = f.check(files[runs[at][0].shard], runs[at], buffers[i])
			}
		})
	}

	wait.Wait()
	return errors.Join(errs...)
}

// readers is how many goroutines read back at the end.
func (o *Options) readers() int {
	if o.Readers == 1 {
		return 1
	}
	return 2
}

// readSize is how many bytes are read at a time, unless a part alone is longer.
const readSize = 4 << 20

// start is the part's first byte in its file.
func (p place) start() int64 { return p.first + p.Off }

// together sorts parts by their place and groups neighbours into runs that are read at once.
func together(places []place) (runs [][]place) {
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.start(), b.start()))
	})
	first := 0
	for i, p := range places {
		if i > first && (p.shard != places[first].shard || p.start()+p.Len-places[first].start() > readSize) {
			runs = append(runs, places[first:i])
			first = i
		}
	}

	if first < len(places) {
		runs = append(runs, places[first:])
	}

	return runs
}

// check reads neighbouring parts.
func (f *Folder) check(r *Reader, run []place, buf []byte) error {
	start, end := run[0].start(), int64(0)
	for _, p := range run {
		end = max(end, p.start()+p.Len)
	}
	if int64(len(buf)) < end-start+Slack {
		buf = make([]byte, end-start+Slack)
	}

	data, err := r.Read(buf, start, end-start)
	if err != nil {
		return fmt.Errorf("%s: tensor %q: %w", f.place.Dir, run[0].tensor, err)
	}

	for _, p := range run {
		if at := p.start() - start; vec.Checksum(data[at:at+p.Len]) != p.Sum {
			return fmt.Errorf("%s: tensor %q, bytes %d to %d: %w", f.place.Dir, p.tensor, p.Off, p.Off+p.Len, ErrVerify)
		}
	}

	return nil
}
