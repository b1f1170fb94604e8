package output

import (
	"path/filepath"
)

// behind is the reading back of parts while others are still being made and written. It only takes work off
// verify: a part that it cannot read, or finds different, is left to verify, which reads it once all is durable
// and decides.
type behind struct {
	queue   []place // written, not read back
	bytes   int64   // in queue
	writing int     // calls of WriteAt under way
	stop    bool
	ended   chan struct{} // nil: nothing is read behind
	read    map[part]bool // found as written
}

// part names a part of a tensor by its first byte.
type part struct {
	tensor string
	off    int64
}

// ReadBehind begins to read back what is written from now on, whenever no write is under way, so that a device
// that writes cannot keep up with is not slowed down further. It takes 4 MiB and a little, and does nothing
// where fewer bytes than that are allowed.
func (f *Folder) ReadBehind(allowed int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if allowed < readSize+Slack || f.behind.ended != nil {
		return
	}
	f.behind.ended, f.behind.read = make(chan struct{}), map[part]bool{}
	go f.readBehind()
}

func (f *Folder) readBehind() {
	defer close(f.behind.ended)

	buffers, free := Memory(1, readSize+Slack)
	defer free()

	files := map[string]*Reader{}
	defer func() {
		for _, r := range files {
			_ = r.Close() // which has only read
		}
	}()

	for runs := f.written(); runs != nil; runs = f.written() {
		for _, run := range runs {
			if !f.quiet() {
				return
			}
			f.readRun(files, run, buffers[0])
		}
	}
}

// written waits for enough parts that one read is worth it, and takes them; nil: there is no more time.
func (f *Folder) written() [][]place {
	f.mu.Lock()
	defer f.mu.Unlock()

	b := &f.behind
	for !b.stop && b.bytes < readSize {
		f.idle.Wait()
	}
	if b.stop {
		return nil
	}

	list := b.queue
	b.queue, b.bytes = nil, 0
	return together(list)
}

// quiet waits until no write is under way, and reports whether there is time to read.
func (f *Folder) quiet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.behind.stop && f.behind.writing > 0 {
		f.idle.Wait()
	}
	return !f.behind.stop
}

// readRun reads neighbouring parts and notes them if they are as they were written.
func (f *Folder) readRun(files map[string]*Reader, run []place, buf []byte) {
	last := run[len(run)-1]
	// A lone part larger than the buffer is left to the check at the end.
	if last.start()+last.Len-run[0].start() > readSize {
		return
	}

	shard := run[0].shard
	if files[shard] == nil {
		r, err := OpenReader(filepath.Join(f.place.Dir, shard+partialSuffix))
		if err != nil { // as any failure here: verify reads again what was not noted
			return
		}
		files[shard] = r
	}

	if f.check(files[shard], run, buf) != nil {
		return
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	for _, p := range run {
		f.behind.read[part{p.tensor, p.Off}] = true
	}
}

// enter notes that a write begins.
func (f *Folder) enter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind.writing++
}

// leave notes that a write has ended; the caller holds mu.
func (f *Folder) leave() {
	f.behind.writing--
	if f.behind.writing == 0 {
		f.idle.Broadcast()
	}
}

// queue puts a written part up for reading back; the caller holds mu.
func (f *Folder) queue(name string, s sum) {
	if b := &f.behind; b.ended != nil && !b.stop {
		b.queue = append(b.queue, place{name, f.writer.ShardOf(name), f.writer.Position(name), s})
		b.bytes += s.Len
	}
}

// halt ends the reading behind, if there is any, and waits for it.
func (f *Folder) halt() {
	f.mu.Lock()
	f.behind.stop = true
	f.idle.Broadcast()
	ended := f.behind.ended
	f.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
