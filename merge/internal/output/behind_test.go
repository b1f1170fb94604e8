package output

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// wide starts an output of one tensor of three parts, of which two are worth a read.
func wide(t *testing.T) (*Folder, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	f, err := Open(dir,
		Options{
			Job:     "job",
			Tensors: []safetensors.Info{{Name: "a", DType: safetensors.U8, Shape: []int64{3 * readSize / 2}}},
		})
	if err != nil {
		t.Fatal(err)
	}
	return f, dir
}

// write writes one of the three parts.
func write(t *testing.T, f *Folder, number int) {
	t.Helper()
	buf := make([]byte, readSize/2+Slack)
	off := int64(number) * readSize / 2
	p := Buffer(buf, f.Position("a")+off, readSize/2)
	for i := range p {
		p[i] = byte(i*7 + number)
	}
	if err := f.WriteAt("a", p, off); err != nil {
		t.Fatal(err)
	}
}

// spoil changes a byte of a part in the unfinished file.
func spoil(t *testing.T, f *Folder, number int) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(f.place.Dir, "model.safetensors"+partialSuffix), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte{0xee, 0xef}, f.Position("a")+int64(number)*readSize/2+99); err != nil {
		t.Fatal(err)
	}
}

// readNow does what the goroutine of ReadBehind does with what waits in the queue.
func readNow(t *testing.T, f *Folder) {
	t.Helper()
	files := map[string]*Reader{}
	for _, run := range f.written() {
		f.readRun(files, run, make([]byte, readSize+Slack))
	}

	for _, r := range files {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// prepare lets the queue fill without a goroutine that empties it.
func prepare(f *Folder) {
	f.behind.ended, f.behind.read = make(chan struct{}), map[part]bool{}
	close(f.behind.ended)
}

// TestReadBehind: parts that were read back behind are not read again; a part that has changed is left to
// Finish, which refuses it.
func TestReadBehind(t *testing.T) {
	for _, bad := range []bool{false, true} {
		f, dir := wide(t)
		prepare(f)
		write(t, f, 0)
		write(t, f, 1)
		if bad {
			spoil(t, f, 1)
		}

		readNow(t, f)

		if first, second := f.behind.read[part{"a", 0}], f.behind.read[part{"a", readSize / 2}]; first == bad ||
			second == bad {
			t.Errorf("one changed: %v; read: %v, %v", bad, first, second) // one read holds both
		}

		write(t, f, 2)
		err := errors.Join(f.Written("a"), f.Finish(nothing))
		if bad != errors.Is(err, ErrVerify) || !bad && err != nil {
			t.Errorf("one changed: %v; error is %v", bad, err)
		}

		if _, err := os.Stat(dir); (err == nil) == bad {
			t.Errorf("one changed: %v; final folder: %v", bad, err)
		}

		if bad {
			if err := f.Abort(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestReadBehindEnds: however an output ends, the reading ends before it; and it does not begin where memory is short.
func TestReadBehindEnds(t *testing.T) {
	for name, end := range map[string]func(*Folder) error{
		"finish":  func(f *Folder) error { return f.Finish(nothing) },
		"suspend": (*Folder).Suspend,
		"abort":   (*Folder).Abort,
	} {
		f, _ := wide(t)
		f.ReadBehind(readSize)
		if f.behind.ended != nil {
			t.Errorf("%s: begun with too little memory", name)
		}

		f.ReadBehind(1 << 30)
		for i := range 3 {
			write(t, f, i)
		}
		if err := errors.Join(f.Written("a"), end(f)); err != nil {
			t.Errorf("%s: %v", name, err)
		}

		<-f.behind.ended
	}
}
