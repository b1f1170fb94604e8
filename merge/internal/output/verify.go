package output

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/modelcompress/compress/merge/internal/direct"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// verify opens the finished files and compares every part with its checksum.
func (f *Folder) verify() error {
	d, err := safetensors.OpenDir(f.stage)
	if err != nil {
		return err
	}
	defer d.Close()
	if len(d.Names()) != len(f.o.Tensors) {
		return fmt.Errorf("%s: %d tensors, want %d: %w", f.stage, len(d.Names()), len(f.o.Tensors), ErrVerify)
	}
	var places []place
	for _, t := range f.o.Tensors {
		info, ok := d.Info(t.Name)
		if !ok || info.DType != t.DType || !slices.Equal(info.Shape, t.Shape) {
			return fmt.Errorf("%s: tensor %q is not what was laid out: %w", f.stage, t.Name, ErrVerify)
		}
		covered := int64(0)
		for _, s := range f.sums[t.Name] {
			places = append(places, place{t.Name, d.ShardOf(t.Name), info.Offset, s})
			covered += s.Len
		}
		if covered != info.Size {
			return fmt.Errorf("%s: tensor %q: %d of %d bytes were written: %w", f.stage, t.Name, covered, info.Size, ErrVerify)
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
	files := map[string]*direct.Reader{}
	defer func() {
		for _, r := range files {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, s := range shards {
		if files[s], err = direct.Open(filepath.Join(f.stage, s)); err != nil {
			delete(files, s)
			return err
		}
	}
	const readers = 2
	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, readers)
	for i := range readers {
		wait.Go(func() {
			var buf []byte
			for at := next.Add(1) - 1; at < int64(len(places)) && errs[i] == nil; at = next.Add(1) - 1 {
				errs[i] = f.check(files[places[at].shard], places[at], &buf)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// check reads one part.
func (f *Folder) check(r *direct.Reader, p place, buf *[]byte) error {
	if int64(len(*buf)) < p.Len+direct.Slack {
		*buf = make([]byte, p.Len+direct.Slack)
	}
	data, err := r.Read(*buf, p.first+p.Off, p.Len)
	if err != nil {
		return fmt.Errorf("%s: tensor %q: %w", f.stage, p.tensor, err)
	}
	if vec.Checksum(data) != p.Sum {
		return fmt.Errorf("%s: tensor %q, bytes %d to %d: %w", f.stage, p.tensor, p.Off, p.Off+p.Len, ErrVerify)
	}
	return nil
}
