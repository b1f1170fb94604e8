package weights_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/internal/weights/weightstest"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// put makes the folder of a file and the file.
func put(t *testing.T, path, text string) string {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o777)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func link(t *testing.T, to, at string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(at), 0o777)
	if err == nil {
		err = os.Symlink(to, at)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// rewritten writes a GGUF file with the tensors of another and other metadata.
func rewritten(t *testing.T, from, path string, change func(gguf.Metadata) gguf.Metadata) {
	t.Helper()
	f, err := gguf.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	var infos []gguf.Info
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		infos = append(infos, gguf.Info{Name: name, Type: info.Type, Shape: info.Shape})
	}
	w, err := gguf.Create(path, infos, change(f.Metadata()), gguf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		data, err := f.Bytes(info.Name)
		if err == nil {
			err = w.WriteTensor(info.Name, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

func with(key, value string) func(gguf.Metadata) gguf.Metadata {
	return func(m gguf.Metadata) gguf.Metadata {
		m = slices.DeleteFunc(m, func(e gguf.Entry) bool { return e.Key == key })
		return append(m, gguf.Entry{Key: key, Value: gguf.Of(value)})
	}
}

// opens opens a model and a file beside its weights, which must agree on whether that can be done.
func opens(t *testing.T, path string) error {
	t.Helper()
	_, err := weights.ReadFile(path, "config.json", 1<<20)
	s, also := weights.Open(t.Context(), path)
	if also == nil {
		also = s.Close()
	}
	if (err == nil) != (also == nil) {
		t.Errorf("%s: the configuration: %v; the tensors: %v", path, err, also)
	}
	return also
}

// TestGGUFLinks: in a snapshot of the hub's cache links to blobs alone are followed, of a folder in it too, whichever
// way the file is named; elsewhere a link is the word of whoever made it.
func TestGGUFLinks(t *testing.T) {
	path, _ := weightstest.GGUF(t, nano)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	cache := filepath.Join(t.TempDir(), "models--a--b")
	put(t, filepath.Join(cache, "blobs/1"), string(text))
	in := func(name string) string { return filepath.Join(cache, "snapshots", name) }
	link(t, path, in("out/model.gguf"))
	link(t, path, in("deep/Q8/model.gguf"))
	link(t, filepath.Dir(path), in("folder/Q8"))
	link(t, "../../blobs/1", in("good/model.gguf"))
	link(t, "../../../blobs/1", in("well/Q8/model.gguf"))
	own := filepath.Join(t.TempDir(), "x.gguf")
	link(t, path, own)
	link(t, in("good"), filepath.Join(filepath.Dir(own), "through"))
	link(t, in("out"), filepath.Join(filepath.Dir(own), "bad"))

	for _, path := range []string{
		in("out"), in("out/model.gguf"), in("deep/Q8"), in("deep/Q8/model.gguf"), in("folder/Q8/model.gguf"),
		filepath.Join(filepath.Dir(own), "bad"),
	} {
		if err := opens(t, path); err == nil || !strings.Contains(err.Error(), "is not followed") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{
		in("good"), in("good/model.gguf"), in("well/Q8"), in("well/Q8/model.gguf"), own,
		filepath.Join(filepath.Dir(own), "through"), filepath.Join(cache, "blobs/1"),
	} {
		if err := opens(t, path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestGGUFBeside: what is no model does not make a folder one of several, whatever it is called.
func TestGGUFBeside(t *testing.T) {
	path, _ := weightstest.GGUF(t, nano)
	dir := filepath.Dir(path)
	beside := func(name string) string { return filepath.Join(dir, name) }
	rewritten(t, path, beside("importance.gguf"), with("general.type", "imatrix"))
	rewritten(t, path, beside("a-vision.gguf"), with("general.type", "mmproj"))
	rewritten(t, path, beside("old.gguf"), with("general.architecture", "clip"))
	put(t, beside("model-mmproj.gguf"), "no GGUF")
	put(t, beside("folder.gguf/x"), "")

	if err := opens(t, dir); err != nil {
		t.Error(err)
	}
	if err := opens(t, beside("importance.gguf")); err == nil || !strings.Contains(err.Error(), `type "imatrix"`) {
		t.Errorf("a matrix of importances: %v", err)
	}

	rewritten(t, path, beside("second.gguf"), with("general.type", "model"))
	err := opens(t, dir)
	several := new(weights.SeveralError)
	if !errors.As(err, &several) || !slices.Equal(several.Names, []string{"model.gguf", "second.gguf"}) {
		t.Errorf("two models: %v", err)
	}
	if got := failure.Hint(err); !strings.HasSuffix(got, beside("model.gguf")) {
		t.Errorf("hint %q", got)
	}

	only := filepath.Join(t.TempDir(), "mmproj.gguf")
	rewritten(t, path, only, with("general.type", "mmproj"))
	if err := opens(t, filepath.Dir(only)); err == nil || !strings.Contains(err.Error(), `type "mmproj"`) {
		t.Errorf("a projector alone: %v", err)
	}
}

// TestGGUFParts: a folder with some parts of a split model is that model, and what is missing is said.
func TestGGUFParts(t *testing.T) {
	path, _ := weightstest.GGUF(t, nano)
	dir := t.TempDir()
	for _, no := range []uint16{1, 2} {
		name := []string{1: "m-00002-of-00003.gguf", 2: "m-00003-of-00003.gguf"}[no]
		rewritten(t, path, filepath.Join(dir, name), func(m gguf.Metadata) gguf.Metadata {
			return append(m, gguf.Entry{Key: "split.no", Value: gguf.Of(no)},
				gguf.Entry{Key: "split.count", Value: gguf.Of(uint16(3))})
		})
	}

	err := opens(t, dir)
	if !errors.Is(err, gguf.ErrMissingPart) || !strings.Contains(err.Error(), "m-00001-of-00003") {
		t.Error(err)
	}
}

// TestGGUFMagic: a file without the ending is a GGUF file by its first bytes.
func TestGGUFMagic(t *testing.T) {
	path, _ := weightstest.GGUF(t, nano)
	blob := filepath.Join(filepath.Dir(path), "blob")
	if err := os.Rename(path, blob); err != nil {
		t.Fatal(err)
	}
	if err := opens(t, blob); err != nil || !weights.IsGGUF(blob) {
		t.Error(err)
	}
	for _, name := range []string{"x", "short"} {
		if weights.IsGGUF(put(t, filepath.Join(t.TempDir(), name), "GG")) {
			t.Errorf("%s is one", name)
		}
	}
}

// TestGGUFWithoutTokenizer: a file that holds none is told from one that is not there, and a tokenizer.json beside it
// in its folder is taken.
func TestGGUFWithoutTokenizer(t *testing.T) {
	path, plain := weightstest.GGUF(t, nano)
	bare := filepath.Join(t.TempDir(), "bare.gguf")
	rewritten(t, path, bare, func(m gguf.Metadata) gguf.Metadata {
		return slices.DeleteFunc(m, func(e gguf.Entry) bool { return strings.HasPrefix(e.Key, "tokenizer.") })
	})

	for _, at := range []string{bare, filepath.Dir(bare)} {
		_, err := tokenizer.Load(at)
		want := bare + ": the GGUF file holds no tokenizer"
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", at, err)
		}
	}

	text, err := os.ReadFile(filepath.Join(plain, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(filepath.Dir(bare), "tokenizer.json"), string(text))
	if _, err := tokenizer.Load(filepath.Dir(bare)); err != nil {
		t.Error(err)
	}
}
