package hub

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// File is a file of a model on the hub.
type File struct {
	Path string // with slashes, below the model's folder
	Size int64  // in bytes
	Sum  string // SHA-256 of the content of a large file (LFS), or git's SHA-1 of a small one, in hex
}

// Model is what the hub says about a model at a revision.
type Model struct {
	Name   Name
	Commit string // the revision as a commit, which names the same bytes for ever
	Files  []File // sorted by path

	where string // what addresses of files begin with; empty for a model
}

// sha1Size and sha256Size are lengths of checksums in hex, by which they are known.
const (
	sha1Size   = 40
	sha256Size = 64
)

// Model asks which files a model has: the commit first, then the files of that commit, so that all are of one state.
func (c *Client) Model(ctx context.Context, n Name) (*Model, error) { return c.repository(ctx, n, "") }

// Dataset is [Client.Model] for a data set, which [Client.Pull] takes too, into a folder of its own.
func (c *Client) Dataset(ctx context.Context, n Name) (*Model, error) {
	return c.repository(ctx, n, datasets)
}

// datasets is where the hub keeps data sets; models are at its root.
const datasets = "datasets"

func (c *Client) repository(ctx context.Context, n Name, where string) (*Model, error) {
	api := "api/" + cmp.Or(where, "models")
	revision := n.Revision
	if revision == "" {
		revision = Main
	}

	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := c.json(ctx, c.at(api, n.ID(), "revision", revision), &info); err != nil {
		return nil, fmt.Errorf("%s: %w", n, err)
	}
	if !isHex(info.SHA, sha1Size) && !isHex(info.SHA, sha256Size) {
		return nil, fmt.Errorf("%s: %s: %w: no commit", n, c.base.Host, ErrAnswer)
	}

	m := &Model{Name: n, Commit: info.SHA, where: where}
	next := c.at(api, n.ID(), "tree", info.SHA)
	next.RawQuery = "recursive=true"
	for pages := 0; next != nil; pages++ {
		var list []entry
		var err error
		if next, err = c.json(ctx, next, &list); err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		if err := m.add(list); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", n, c.base.Host, err)
		}
		if pages > maxPages {
			return nil, fmt.Errorf("%s: %s: %w: a list without an end", n, c.base.Host, ErrAnswer)
		}
	}

	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return m, m.apart()
}

// maxPages and maxFiles bound what a list of files may be: a hub's page has a thousand files.
const (
	maxPages = 1000
	maxFiles = 100_000
)

// entry is one of the list of files.
type entry struct {
	Type, Path, OID string
	Size            int64
	LFS             *struct {
		OID  string
		Size int64
	}
}

// add takes the files of a page of the list.
func (m *Model) add(list []entry) error {
	for _, e := range list {
		if e.Type != "file" {
			continue
		}

		f := File{Path: e.Path, Size: e.Size, Sum: e.OID}
		want := sha1Size
		if e.LFS != nil {
			f.Size, f.Sum = e.LFS.Size, e.LFS.OID
			want = sha256Size
		}

		switch {
		case !inside(f.Path):
			return fmt.Errorf("%w: the name %.200q, which leads out of a folder or is none of a file", ErrAnswer,
				f.Path)
		case f.Size < 0:
			return fmt.Errorf("%w: %s has %d bytes", ErrAnswer, f.Path, f.Size)
		case !isHex(f.Sum, want):
			return fmt.Errorf("%w: %s has no checksum", ErrAnswer, f.Path)
		case len(m.Files) == maxFiles:
			return fmt.Errorf("%w: more than %d files", ErrAnswer, maxFiles)
		}
		m.Files = append(m.Files, f)
	}

	return nil
}

// apart refuses names of which one is the folder of the other, or the same.
func (m *Model) apart() error {
	seen := map[string]bool{}
	for _, f := range m.Files {
		if seen[f.Path] {
			return fmt.Errorf("%s: %w: %s is listed twice", m.Name, ErrAnswer, f.Path)
		}
		seen[f.Path] = true
	}

	for _, f := range m.Files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return fmt.Errorf("%s: %w: %s is a file and a folder", m.Name, ErrAnswer, dir)
			}
		}
	}

	return nil
}

// inside reports whether a server's name for a file stays in the folder that it is written to, and is none of the names
// under which files are downloaded.
func inside(name string) bool {
	if name == "" || len(name) > 1024 || !utf8.ValidString(name) || path.Clean(name) != name ||
		!filepath.IsLocal(name) {
		return false
	}
	for p := range strings.SplitSeq(name, "/") {
		if len(p) > 255 || strings.HasSuffix(p, partEnding) {
			return false
		}
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' })
}

func isHex(s string, size int) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == size && s == strings.ToLower(s)
}

// at is an address of the hub's. Slashes in a revision are part of its name.
func (c *Client) at(kind, id, what, revision string, file ...string) *url.URL {
	parts := []string{strings.Trim(c.base.EscapedPath(), "/"), kind, id, what, url.PathEscape(revision)}
	for _, f := range file {
		for p := range strings.SplitSeq(f, "/") {
			parts = append(parts, url.PathEscape(p))
		}
	}

	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	u := *c.base
	u.RawPath = "/" + strings.Join(parts, "/")
	if plain, err := url.PathUnescape(u.RawPath); err == nil {
		u.Path = plain
	}

	return &u
}

// Choose takes the files whose paths fit a pattern of include (all, if there is none) and none of exclude: * and ? fit
// any characters, slashes too, [ab] and [!ab] one of some, as in hf download. A pattern that ends in a slash is
// a folder.
func (m *Model) Choose(include, exclude []string) (files []File) {
	fits := func(patterns []string, f File) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			if strings.HasSuffix(p, "/") {
				p += "*"
			}
			return glob(p, f.Path)
		})
	}

	for _, f := range m.Files {
		if (len(include) == 0 || fits(include, f)) && !fits(exclude, f) {
			files = append(files, f)
		}
	}

	return files
}

// glob reports whether a text fits a pattern as Python's fnmatch has it, which the hub's own programs use. Only the
// last star is ever taken back, so the time is the product of the lengths and not more.
func glob(pattern, text string) bool {
	p, t := []rune(pattern), []rune(text)
	i, k := 0, 0
	star, from := -1, 0
	for k < len(t) {
		if i < len(p) && p[i] == '*' {
			star, from = i, k
			i++
			continue
		}

		if width := one(p[i:], t[k]); width > 0 {
			i += width
			k++
			continue
		}

		if star < 0 {
			return false
		}
		from++
		i, k = star+1, from
	}

	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}

// one reports whether a character fits the beginning of a pattern, by how long that beginning is; 0: it does not.
func one(p []rune, r rune) int {
	switch {
	case len(p) == 0:
		return 0
	case p[0] == '?':
		return 1
	case p[0] != '[':
		if p[0] == r {
			return 1
		}
		return 0
	}

	begin := 1
	not := len(p) > 1 && p[1] == '!'
	if not {
		begin = 2
	}

	end := begin + 1 // a bracket at once is one of the characters
	for end < len(p) && p[end] != ']' {
		end++
	}
	if end >= len(p) { // never closed: a bracket like any other character
		if r == '[' {
			return 1
		}
		return 0
	}

	in := false
	for i := begin; i < end; i++ {
		if i+2 < end && p[i+1] == '-' {
			in = in || p[i] <= r && r <= p[i+2]
			i += 2
			continue
		}
		in = in || p[i] == r
	}
	if in == not {
		return 0
	}

	return end + 1
}

// weights are the kinds of files that hold the same weights, the best first.
var weights = [][]string{{"*.safetensors", "*.safetensors.index.json"}, {"*.gguf"}}

// useless are files that this program has no use for where there are safetensors: the same weights in other forms.
var useless = []string{
	"*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot",
	"*.tflite", "*.mlmodel", "*.mlpackage/*", "onnx/*", "openvino/*", "coreml/*", "original/*", "runs/*", "*.pkl",
	"training_args.bin",
}

// Needed takes the files that this program reads, and what travels with them: without weights in other forms than
// safetensors, and without GGUF files beside safetensors. skipped is what that leaves out.
func (m *Model) Needed() (files []File, skipped int) {
	for _, kinds := range weights {
		if len(m.Choose(kinds, nil)) == 0 {
			continue
		}
		exclude := useless
		if kinds[0] != "*.gguf" {
			exclude = append(slices.Clone(useless), "*.gguf")
		}
		files = m.Choose(nil, exclude)
		return files, len(m.Files) - len(files)
	}

	return m.Files, 0
}

// fileURL is where a file is fetched.
func (c *Client) fileURL(m *Model, f File) *url.URL {
	return c.at(m.where, m.Name.ID(), "resolve", m.Commit, f.Path)
}
