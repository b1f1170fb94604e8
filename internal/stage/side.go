package stage

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/system"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/weights"
)

// maxConfigSize bounds what is read of config.json.
const maxConfigSize = 4 << 20

// The table of what stands beside the weights of a model. Everything in the folder travels to the models that are made
// of it, but for what the table takes out.
var (
	// needed are the files without which a model is not the same model, or may not be passed on: a finished output is
	// damaged where they are not what was copied.
	needed = []string{
		"config.json", "generation_config.json", "tokenizer*.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt",
		"merges.txt",
		"special_tokens_map.json", "added_tokens.json", "chat_template*", "token_mappings.json", "LICENSE*", "LICENCE*",
		"NOTICE*", "USE_POLICY*",
	}

	// usual are further files that belong to a checkpoint by their names, so that they go when it is replaced: of
	// processors for images and sound, of the code that some models bring along, and the model card.
	usual = []string{
		"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "configuration_*.py",
		"modeling_*.py", "tokenization_*.py", "processing_*.py", "image_processing_*.py", "README.md",
	}

	// records say how this program made a model. They do not travel, since they would say it of another one.
	records = []string{
		"pruning.json", "quantization.json", "training.json", "training.html", "merge.json", "mergekit_*config.yml",
		"edits.journal",
		"report.json", "report.html",
	}

	// replaced are the records that go with the model when it is replaced. An edits.journal is not among them, which
	// undoes what was done to the model, nor are reports, which are known by what they hold.
	replaced = []string{"pruning.json", "quantization.json", "training.html", "merge.json", "mergekit_*config.yml"}

	// weightEndings are those of files that hold weights in some form, which the new model has anew.
	weightEndings = []string{
		".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf",
		".h5", ".msgpack", ".onnx", ".ot", ".ckpt", ".npz", ".partial",
	}
)

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, name); return ok })
}

// isRecord reports whether a file says how this program made the model beside it, or is a report on other work.
func isRecord(path string) bool {
	name := filepath.Base(path)
	if matches(needed, name) || matches(usual, name) {
		return false
	}
	if matches(records, name) || name == journalName { // which the folder in the making has itself
		return true
	}
	return filepath.Ext(name) == ".json" && IsReport(path)
}

// stays reports whether a file of the source does not travel.
func (o *Options) stays(path string) bool {
	text, named := o.Files[filepath.Base(path)]
	return named && text == nil || isRecord(path)
}

func isWeights(name string) bool {
	return slices.ContainsFunc(weightEndings, func(end string) bool { return strings.HasSuffix(name, end) })
}

// sides describes the files beside the weights of a model that travel, without those for which skip, given their paths,
// is true. Folders and hidden files do not travel. A link out of the folder is followed for the files that a model
// needs, which are read through it too; others would carry what nobody has looked at into an output that may be passed
// on.
func sides(dir string, skip func(path string) bool) ([]fs.FileInfo, error) {
	root, err := weights.OpenFiles(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	names, err := root.Names()
	if err != nil {
		return nil, err
	}

	var files []fs.FileInfo
	for _, name := range names {
		if strings.HasPrefix(name, ".") || isWeights(name) {
			continue
		}

		if !matches(needed, name) && !root.Inside(name) {
			continue
		}

		stat, err := root.Stat(name)
		if err != nil && matches(needed, name) {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}

		if err == nil && stat.Mode().IsRegular() && !skip(filepath.Join(dir, name)) {
			files = append(files, stat)
		}
	}

	return files, nil
}

// CopySides copies what stands beside the weights in the folder src to the folder dst, durably: everything that
// travels, and with the same weights in another form also the records of how they were made. Names that fit a pattern
// of except are left to the caller. What stands there under the same names, as a killed run may have left it, is
// written anew.
func CopySides(dst, src string, same bool, except ...string) error {
	skip := isRecord
	if same {
		skip = func(string) bool { return false }
	}

	files, err := sides(src, skip)
	if err != nil {
		return err
	}

	from, err := weights.OpenFiles(src)
	if err != nil {
		return err
	}
	defer from.Close()

	for _, file := range files {
		name := file.Name()
		if matches(except, name) {
			continue
		}

		to := filepath.Join(dst, name)
		if err := asListed(from, file, func(in io.Reader) error { return write(to, in) }); err != nil {
			return copyError(filepath.Join(src, name), to, err)
		}
	}

	return nil
}

// copyError names the file that could not be copied, unless the fault is that of its copy, such as a full disk, which
// is named already.
func copyError(from, to string, err error) error {
	if fault := (*fs.PathError)(nil); errors.As(err, &fault) && fault.Path == to {
		return err
	}
	return fmt.Errorf("%s: %w", from, err)
}

// asListed reads a file that is what it was when it was listed, before it is taken and behind that.
func asListed(root *weights.Files, file fs.FileInfo, take func(io.Reader) error) error {
	in, err := root.Open(file.Name())
	if err != nil {
		return err
	}
	defer in.Close()

	if err := unchanged(in, file); err != nil {
		return err
	}
	if err := take(in); err != nil {
		return err
	}
	return unchanged(in, file)
}

// unchanged refuses a file whose size or time is another than when it was listed.
func unchanged(in fs.File, file fs.FileInfo) error {
	now, err := in.Stat()
	if err != nil || !alike(now, file) {
		return errors.Join(err, ErrChanged)
	}
	return nil
}

// write makes a file of what a reader gives, durably.
func write(path string, in io.Reader) error {
	out, err := system.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|system.NoFollow, 0o666)
	if err != nil {
		return err
	}

	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// NotCopied lists the files of a model's folder that are neither weights nor in the output, quoted.
func NotCopied(src, dst string) (names []string) {
	entries, err := os.ReadDir(src)
	if err != nil {
		return nil
	}

	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || strings.HasPrefix(name, ".") || isWeights(name) || isRecord(filepath.Join(src, name)) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dst, name)); errors.Is(err, fs.ErrNotExist) {
			names = append(names, fmt.Sprintf("%.60q", name))
		}
	}

	return names
}

// Beside gives the SHA-256 of what Finish writes beside the weights for the files that a model needs, by name; nil
// where the output was complete before. A model card, say, may be written anew without damage to the model.
func (f *Folder) Beside() (map[string]string, error) {
	root, err := weights.OpenFiles(f.opts.Source)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	var sums map[string]string
	for _, file := range f.side {
		if !matches(needed, file.Name()) {
			continue
		}

		h := sha256.New()
		err := asListed(root, file, func(in io.Reader) error {
			text, err := f.content(in, file.Name())
			if err == nil {
				_, err = io.Copy(h, text)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(f.opts.Source, file.Name()), err)
		}
		if sums == nil {
			sums = map[string]string{}
		}

		sums[file.Name()] = hex.EncodeToString(h.Sum(nil))
	}

	return sums, nil
}

// besideIntact compares the files beside the weights of a complete output with what they are copies of. The
// error wraps [ErrDamaged].
func (f *Folder) besideIntact() error {
	side, err := sides(f.opts.Source, f.opts.stays)
	if err != nil {
		return err
	}

	whole := &Folder{opts: f.opts, side: side}
	sums, err := whole.Beside()
	if err != nil {
		return err
	}

	return Intact(f.dir, sums)
}

// Intact compares files of a folder with checksums that [Folder.Beside] gave. The error wraps [ErrDamaged] and
// names the first that differs or is missing.
func Intact(dir string, sums map[string]string) error {
	root, err := safefile.OpenFolder(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	for _, name := range slices.Sorted(maps.Keys(sums)) {
		in, err := root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is missing: %w", filepath.Join(dir, name), ErrDamaged)
		}

		if err != nil {
			return err
		}

		h := sha256.New()
		_, err = io.Copy(h, in)
		if err := errors.Join(err, in.Close()); err != nil {
			return err
		}
		if hex.EncodeToString(h.Sum(nil)) != sums[name] {
			return fmt.Errorf("%s: %w", filepath.Join(dir, name), ErrDamaged)
		}
	}

	return nil
}

// copySides copies the files beside the weights into the staging folder.
func (f *Folder) copySides() error {
	root, err := weights.OpenFiles(f.opts.Source)
	if err != nil {
		return err
	}
	defer root.Close()

	for _, file := range f.side {
		if f.extra[file.Name()] != nil {
			continue // a card of its own
		}

		to := filepath.Join(f.place.Dir, file.Name())
		err := asListed(root, file, func(in io.Reader) error {
			text, err := f.content(in, file.Name())
			if err != nil {
				return err
			}
			return write(to, text)
		})
		if err != nil {
			return copyError(filepath.Join(f.opts.Source, file.Name()), to, err)
		}
	}

	if err := f.writeExtra(); err != nil {
		return err
	}

	return safefile.SyncFolder(f.place.Dir)
}

// content is what a file beside the weights has in the output.
func (f *Folder) content(in io.Reader, name string) (io.Reader, error) {
	text := f.opts.Files[name]
	change := name == "config.json" && f.opts.Config != nil
	switch {
	case text == nil && !change:
		return in, nil
	case text == nil:
		var err error
		if text, err = io.ReadAll(io.LimitReader(in, maxConfigSize)); err != nil {
			return nil, err
		}
	}

	if change {
		text = f.opts.Config(text)
	}
	return bytes.NewReader(text), nil
}
