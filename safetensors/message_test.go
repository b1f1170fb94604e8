package safetensors

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// TestMessages: the lines that people read, word by word: which file, which tensor, where, what.
func TestMessages(t *testing.T) {
	systemtest.NeedsCuts(t)
	dir := t.TempDir()
	got := map[string]error{}
	writerMessages(t, dir, got)
	resumeMessages(t, dir, got)
	readerMessages(t, dir, got)
	folderMessages(t, dir, got)

	for name, err := range got {
		line := "none"
		if err != nil {
			line = strings.ReplaceAll(err.Error(), dir, "DIR")
		}
		if line != messages[name] {
			t.Errorf("%s\ngot  %s\nwant %s", name, line, messages[name])
		}
	}
	if len(got) != len(messages) {
		t.Errorf("%d messages, want %d", len(got), len(messages))
	}
}

// two is a model of two tensors.
func two() []Info {
	return []Info{{Name: "a", DType: F32, Shape: []int64{2, 3}}, {Name: "b", DType: U8, Shape: []int64{5}}}
}

func writerMessages(t *testing.T, dir string, got map[string]error) {
	path := filepath.Join(dir, "w.safetensors")
	w, err := Create(path, two(), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}

	got["write unknown"] = w.WriteTensor("x", nil)
	got["write size"] = w.WriteTensor("a", []byte{1})
	got["write range"] = w.WriteAt("b", []byte{1, 2}, 4)
	got["mark new"] = w.MarkDone("a")
	got["incomplete"] = w.Finish()
	_, got["busy"] = Create(path, two(), nil, Options{})
	_, got["no folder"] = Create(filepath.Join(dir, "no", "w"), two(), nil, Options{})

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, got["exists"] = Create(path, two(), nil, Options{})
	if err := errors.Join(w.WriteTensor("a", make([]byte, 24)), w.WriteTensor("b", make([]byte, 5))); err != nil {
		t.Fatal(err)
	}
	got["exists meanwhile"] = w.Finish()
	if err := errors.Join(w.Abort(), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	got["write closed"] = w.WriteAt("a", []byte{1}, 0)
	got["mark closed"] = w.MarkDone("a")
	got["sync closed"] = w.Sync()
	got["finish closed"] = w.Finish()

	for name, cause := range map[string]error{
		"disk full": syscall.ENOSPC, "file size": syscall.EFBIG, "disk": syscall.EIO,
	} {
		w, err := Create(path, two(), nil, Options{
			WriteAt: func(*os.File, []byte, int64) (int, error) { return 1, cause },
		})
		if err != nil {
			t.Fatal(err)
		}
		err = w.WriteTensor("b", make([]byte, 5))
		if name == "disk full" && err != nil { // how much is free differs
			line, _, _ := strings.Cut(err.Error(), ",")
			err = errors.New(line)
		}
		got[name] = err
		if err := w.Abort(); err != nil {
			t.Fatal(err)
		}
	}
}

func resumeMessages(t *testing.T, dir string, got map[string]error) {
	path := filepath.Join(dir, "r.safetensors")
	_, got["nothing to resume"] = Reopen(path, two(), nil, Options{})
	w, err := Create(path, two(), nil, Options{})
	if err == nil {
		err = w.Suspend()
	}
	if err != nil {
		t.Fatal(err)
	}

	other := two()
	other[0].Name = "c"
	_, got["another header"] = Reopen(path, other, nil, Options{})
	_, got["another size"] = Reopen(path, two()[:1], nil, Options{})
	if err := errors.Join(os.Remove(path+partialSuffix), os.Mkdir(path+partialSuffix, 0o700)); err != nil {
		t.Fatal(err)
	}
	_, got["resume folder"] = Reopen(path, two(), nil, Options{})
	if err := os.Remove(path + partialSuffix); err != nil {
		t.Fatal(err)
	}
}

func readerMessages(t *testing.T, dir string, got map[string]error) {
	path := filepath.Join(dir, "f.safetensors")
	write(t, path, two(), OrderGiven, 1, 100)
	f := mustOpen(t, path)
	_, got["read unknown"] = f.Bytes("x")
	_, got["read range"] = f.ReadAt("b", nil, 6)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, got["read closed"] = f.Bytes("a")
	got["view closed"] = f.View("a", nil)
	got["release closed"] = f.Release("a")
	_, got["readat closed"] = f.ReadAt("a", nil, 0)

	_, got["open nothing"] = Open(filepath.Join(dir, "none"))
	_, got["open folder"] = Open(dir)
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, got["open empty"] = Open(empty)

	f = mustOpen(t, path)
	info, _ := f.Info("b")
	if err := os.Truncate(path, info.Offset+2); err != nil {
		t.Fatal(err)
	}
	_, got["shortened"] = f.ReadAt("b", make([]byte, 5), 0)
	_, got["open shortened"] = Open(path)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	got["lost page"] = f.View("b", func(b []byte) error {
		if b[1] > 0 {
			return nil
		}
		return errors.New("zero")
	})
}

func folderMessages(t *testing.T, dir string, got map[string]error) {
	out := filepath.Join(dir, "m")
	opts := DirOptions{MaxShardSize: 24}
	w, err := CreateDir(out, two(), nil, opts)
	if err != nil {
		t.Fatal(err)
	}

	got["folder unknown"] = w.WriteAt("x", nil, 0)
	got["folder incomplete"] = w.Finish()
	_, got["folder busy"] = CreateDir(out, two(), nil, opts)
	if err := w.Suspend(); err != nil {
		t.Fatal(err)
	}
	got["folder closed"] = w.Finish()
	_, got["folder layout"] = ReopenDir(out, two()[:1], nil, opts)
	_, got["folder taken"] = CreateDir(out, two(), nil, DirOptions{})
	_, got["folder nothing"] = ReopenDir(t.TempDir(), two(), nil, opts)
	if got["folder nothing"] != nil {
		line := got["folder nothing"].Error()
		got["folder nothing"] = errors.New(line[strings.Index(line, ": ")+2:])
	}

	w, err = ReopenDir(out, two(), nil, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.WriteTensor("a", make([]byte, 24)), w.WriteTensor("b", make([]byte, 5)),
		os.Mkdir(filepath.Join(out, IndexName+partialSuffix), 0o700)); err != nil {
		t.Fatal(err)
	}
	got["folder index"] = w.Finish()
}

// messages are the lines, with the folder of the test as DIR.
var messages = map[string]string{
	"another header": `DIR/r.safetensors: unfinished output has another layout: its header names other ` +
		`tensors; remove it to start over`,
	"another size": `DIR/r.safetensors: unfinished output has another layout: it has 149 bytes, not ` +
		`96; remove it to start over`,
	"busy":             `DIR/w.safetensors: another writer holds this output`,
	"disk":             `DIR/w.safetensors: tensor "b": input/output error`,
	"disk full":        `DIR/w.safetensors: tensor "b": not enough disk space: no space left on device: 4 bytes are needed`,
	"exists":           `DIR/w.safetensors: output already exists`,
	"exists meanwhile": `DIR/w.safetensors: output already exists`,
	"file size":        `DIR/w.safetensors: tensor "b": file larger than is allowed here: file too large: it needs 4 bytes`,
	"finish closed":    `DIR/w.safetensors: already closed: it was aborted or suspended`,
	"folder busy":      `DIR/m/model-00001-of-00002.safetensors: another writer holds this output`,
	"folder closed":    `DIR/m: already closed: it was aborted or suspended`,
	"folder incomplete": `DIR/m/model-00001-of-00002.safetensors: tensor "a": tensors not completely ` +
		`written: 1 of 1: "a"`,
	"folder index": `DIR/m/model.safetensors.index.json: open ` +
		`DIR/m/model.safetensors.index.json.partial: is a directory`,
	"folder layout": `DIR/m: unfinished output has another layout: ` +
		`"model-00001-of-00002.safetensors.partial" is not of this output`,
	"folder nothing": `nothing to resume: none of the 2 files is there`,
	"folder taken": `DIR/m/model-00001-of-00002.safetensors.partial: output already exists: the ` +
		`folder must hold no other model`,
	"folder unknown": `DIR/m: tensor "x": no such tensor`,
	"incomplete":     `DIR/w.safetensors: tensor "a": tensors not completely written: 2 of 2: "a", "b"`,
	"lost page":      `DIR/f.safetensors: tensor "b": at byte 201: file is truncated: it became shorter while it was read`,
	"mark closed":    `DIR/w.safetensors: tensor "a": already closed: the file may not be written any more`,
	"mark new": `DIR/w.safetensors: tensor "a": only a resumed output can have finished tensors: ` +
		`this one was started anew`,
	"no folder":         `DIR/no/w: open DIR/no/w.partial: no such file or directory`,
	"nothing to resume": `DIR/r.safetensors: nothing to resume: there is no DIR/r.safetensors.partial`,
	"open empty":        `DIR/empty: at byte 0: file too short for a safetensors header: 0 bytes, the length alone takes 8`,
	"open folder":       `DIR: not a regular file: d---------`,
	"open nothing":      `safetensors: open DIR/none: no such file or directory`,
	"open shortened": `DIR/f.safetensors: tensor "b": at byte 202: file is truncated (invalid ` +
		`data_offsets): the tensor ends at byte 205, the file at 202`,
	"read closed":    `DIR/f.safetensors: tensor "a": already closed: the file may not be read any more`,
	"read range":     `DIR/f.safetensors: tensor "b": outside the tensor: offset 6, size 5`,
	"read unknown":   `DIR/f.safetensors: tensor "x": no such tensor`,
	"readat closed":  `DIR/f.safetensors: tensor "a": already closed: the file may not be read any more`,
	"release closed": `DIR/f.safetensors: tensor "a": already closed: the file may not be read any more`,
	"resume folder":  `DIR/r.safetensors: open DIR/r.safetensors.partial: is a directory`,
	"shortened":      `DIR/f.safetensors: tensor "b": at byte 202: file is truncated: it became shorter while it was read`,
	"sync closed":    `DIR/w.safetensors: already closed: nothing to flush`,
	"view closed":    `DIR/f.safetensors: tensor "a": already closed: the file may not be read any more`,
	"write closed":   `DIR/w.safetensors: tensor "a": already closed: the file may not be written any more`,
	"write range":    `DIR/w.safetensors: tensor "b": outside the tensor: 2 bytes at offset 4, size 5`,
	"write size": `DIR/w.safetensors: tensor "a": size does not match dtype and shape: F32 [2 3] ` +
		`takes 24 bytes, given 1`,
	"write unknown": `DIR/w.safetensors: tensor "x": no such tensor`,
}
