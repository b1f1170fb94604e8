package distil

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/safetensors"
)

// WriteOptions of [WriteCache].
type WriteOptions struct {
	Anew     bool // instead of going on with, or refusing, what is unfinished there
	Progress func(done, total int64)
}

// WriteCache runs a teacher over data and writes what it says. Interrupted, it goes on where it was, to the same bytes;
// what is unfinished there of another teacher, data or settings is refused. A finished file is an error that wraps
// fs.ErrExist. Memory: that of one part.
func WriteCache(ctx context.Context, r *Resident, data batches.Data, path string, o WriteOptions) error {
	defer r.Free()
	w := &cacheWriter{teacher: r, data: data, path: path, parts: partsOf(data), id: identify(data)}
	if len(w.parts) == 0 {
		return batches.ErrEmpty
	}
	w.id.Vocab, w.id.Temperature, w.id.Top = r.Vocab, r.Temperature, r.Top
	w.id.Path = filepath.Clean(r.Model.Path())

	var err error
	if w.id.Teacher, err = r.Model.Fingerprint(ctx); err != nil {
		return err
	}
	if err := w.open(o.Anew); err != nil {
		return err
	}

	return w.finish(w.write(ctx, o.Progress))
}

// cacheWriter writes a cache.
type cacheWriter struct {
	teacher *Resident
	data    batches.Data
	path    string
	parts   []part
	id      Identity

	journal *stage.Journal
	file    *safetensors.Writer
	done    map[int]uint32 // parts that are there, with their sums
}

// cacheHead is the first line of the journal.
type cacheHead struct {
	Identity
	Device    string
	Precision string
}

// cacheStep is a line of the journal: a part that is on the disk.
type cacheStep struct {
	Part int    `json:"part"`
	Sum  uint32 `json:"crc32c"`
}

// open goes on with what an interrupted run has left, or begins.
func (w *cacheWriter) open(anew bool) (err error) {
	if _, err := os.Lstat(w.path); err == nil {
		return fmt.Errorf("%s: %w", w.path, fs.ErrExist)
	}

	dir, base := filepath.Split(w.path)
	if w.journal, err = stage.OpenJournal(filepath.Join(dir, "."+base+".journal")); err != nil {
		return err
	}

	m := w.teacher.Model
	head := cacheHead{w.id, m.Device().Info().Name, m.Precision().String()}
	if err := w.begin(head, anew); err != nil {
		return errors.Join(err, w.journal.Close())
	}
	return nil
}

// begin opens the file behind the journal.
func (w *cacheWriter) begin(head cacheHead, anew bool) error {
	text, err := json.Marshal(w.id)
	if err != nil {
		return err
	}
	meta := map[string]string{cacheKey: string(text)}
	infos := layout(w.parts, w.id.Top)

	w.done = map[int]uint32{}
	if lines := w.journal.Lines(); len(lines) > 0 && !anew {
		var was cacheHead
		if w.journal.Fault() != nil || json.Unmarshal(lines[0], &was) != nil || was != head {
			return failure.Hinted(fmt.Errorf("%s: %w: what is unfinished there is of another teacher, other data or "+
				"settings", w.path, ErrCache), "remove "+w.path+".partial and its journal, or choose another file")
		}

		w.file, err = safetensors.Reopen(w.path, infos, meta, safetensors.Options{})
		if err == nil {
			return w.takeUp(lines[1:])
		}
		// Killed between the journal's first line and the file.
		if !errors.Is(err, safetensors.ErrNoPartial) {
			return err
		}
	}

	if err := w.journal.Start(head); err != nil {
		return err
	}
	w.file, err = safetensors.Create(w.path, infos, meta, safetensors.Options{})
	return err
}

// takeUp takes what an interrupted run has noted, as far as it is on the disk.
func (w *cacheWriter) takeUp(lines [][]byte) error {
	f, err := safetensors.Open(w.path + ".partial")
	if err != nil {
		return err
	}
	defer f.Close()

	for _, line := range lines {
		var s cacheStep
		if err := json.Unmarshal(line, &s); err != nil || s.Part < 0 || s.Part >= len(w.parts) {
			continue
		}
		if sum, err := sumOf(f, s.Part); err != nil || sum != s.Sum {
			continue // done again
		}
		w.done[s.Part] = s.Sum
		for _, name := range names(s.Part) {
			if err := w.file.MarkDone(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes the parts that are not there.
func (w *cacheWriter) write(ctx context.Context, progress func(done, total int64)) error {
	rows := int64(0)
	sums := make([]byte, 0, 4*len(w.parts))
	for k, p := range w.parts {
		if _, ok := w.done[k]; !ok {
			if err := w.part(ctx, k, p); err != nil {
				return err
			}
		}

		sums = binary.LittleEndian.AppendUint32(sums, w.done[k])
		rows += int64(p.rows)
		if progress != nil {
			progress(rows, w.id.Rows)
		}
	}
	return w.file.WriteTensor(sumsName, sums)
}

// maxLogits bounds the logits that are there at a time, in elements (32 MiB).
const maxLogits = 8 << 20

// part writes a part.
func (w *cacheWriter) part(ctx context.Context, k int, p part) error {
	if err := w.teacher.Begin(ctx, p.batch(w.data)); err != nil {
		return err
	}

	var raw [3][]byte
	size := max(16, maxLogits/w.teacher.Model.Config().Vocab)
	for lo := 0; lo < p.rows; lo += size {
		t, err := w.teacher.Targets(ctx, lo, min(lo+size, p.rows))
		if err != nil {
			return err
		}
		for i, id := range t.IDs {
			raw[0] = binary.LittleEndian.AppendUint32(raw[0], uint32(id))
			// Rounded, a probability of 1 must not get larger.
			raw[1] = binary.LittleEndian.AppendUint16(raw[1], kernels.ToBF16(float32(min(t.LogP[i], 0))))
		}
		for _, v := range t.Rest {
			raw[2] = binary.LittleEndian.AppendUint32(raw[2], math.Float32bits(float32(min(math.Log(v), 0))))
		}
	}

	s := cacheStep{Part: k}
	for i, name := range names(k) {
		if err := w.file.WriteTensor(name, raw[i]); err != nil {
			return err
		}
	}

	// The sum that a reader makes, which goes through the tensors in this order.
	for _, data := range raw {
		s.Sum = updateSum(s.Sum, data)
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.done[k] = s.Sum
	return w.journal.Add(s)
}

// finish ends the writing: the file gets its name, or stays unfinished for the next run.
func (w *cacheWriter) finish(err error) error {
	if err != nil {
		return errors.Join(err, w.file.Suspend(), w.journal.Close())
	}
	if err := w.file.Finish(); err != nil {
		return errors.Join(err, w.journal.Close())
	}
	return errors.Join(w.journal.Remove(), w.journal.Close())
}
