package hub

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
)

// Name is a model or an adapter on the hub, as owner/name or owner/name@revision.
type Name struct {
	Owner, Repo string
	Revision    string // a branch, a tag, a pull request such as refs/pr/1, or a commit; empty: main
}

// Main is the revision of a name that has none.
const Main = "main"

// maxPart is the length that the hub allows for an owner or a name.
const maxPart = 96

// Parse reads a name; false for a text that is none. Every name is a relative path too, so a caller looks for a
// folder first, as [Locate] does.
func Parse(text string) (Name, bool) {
	id, revision, has := strings.Cut(text, "@")
	owner, repo, ok := strings.Cut(id, "/")
	if !ok || !part(owner) || !part(repo) || has && !isRevision(revision) {
		return Name{}, false
	}
	return Name{owner, repo, revision}, true
}

// part reports whether a text is an owner or a name by the hub's rules, which also keep it from being a hidden folder
// or a way upwards.
func part(s string) bool {
	plain := func(r rune) bool {
		return r < 0x80 && (r == '-' || r == '_' || r == '.' || '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z')
	}
	return s != "" && len(s) <= maxPart && s[0] != '.' && s[0] != '-' && !strings.Contains(s, "..") &&
		!strings.ContainsFunc(s, func(r rune) bool { return !plain(r) })
}

// isRevision reports whether a text can be a revision: parts between slashes that stay in the folder of the cache.
func isRevision(s string) bool {
	if s == "" || len(s) > 256 || strings.ContainsAny(s, "\\\x00?#%") || strings.ContainsFunc(s, blank) {
		return false
	}
	for p := range strings.SplitSeq(s, "/") {
		if p == "" || p == "." || p == ".." {
			return false
		}
	}
	return true
}

func blank(r rune) bool { return r <= ' ' || r == 0x7f }

// ID is the name without a revision.
func (n Name) ID() string { return n.Owner + "/" + n.Repo }

// String writes a name as [Parse] reads it.
func (n Name) String() string {
	if n.Revision == "" {
		return n.ID()
	}
	return n.ID() + "@" + n.Revision
}

// CacheDir is the folder of the hub's cache as the environment sets it for huggingface_hub too, or its usual place;
// empty where there is neither.
func CacheDir() string {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := os.Getenv(name); dir != "" {
			return dir
		}
	}
	if dir := home(); dir != "" {
		return filepath.Join(dir, "hub")
	}
	return ""
}

// home is the folder of everything that the hub's programs keep: the cache and the token.
func home() string {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "huggingface")
	}

	dir, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, ".cache", "huggingface")
}

// folder is that of a name in a cache, which holds refs/REVISION with the commit that it stands for,
// snapshots/COMMIT with the files as links, and blobs, to which they lead.
func (n Name) folder(cache string) string { return n.folderOf(cache, "models") }

func (n Name) folderOf(cache, kind string) string {
	return filepath.Join(cache, kind+"--"+n.Owner+"--"+n.Repo)
}

// Find returns the snapshot of a name in a cache, which reports whether it is there.
func (n Name) Find(cache string) (dir string, ok bool) { return n.find(cache, "models") }

// FindData is [Name.Find] for a data set.
func (n Name) FindData(cache string) (dir string, ok bool) { return n.find(cache, "datasets") }

func (n Name) find(cache, kind string) (dir string, ok bool) {
	revision := n.Revision
	if revision == "" {
		revision = Main
	}
	if cache == "" || !part(n.Owner) || !part(n.Repo) || !isRevision(revision) {
		return "", false
	}

	root := n.folderOf(cache, kind)
	if commit, err := readRef(filepath.Join(root, "refs", filepath.FromSlash(revision))); err == nil {
		revision = commit
	}
	if !isRevision(revision) || strings.Contains(revision, "/") {
		return "", false
	}

	dir = filepath.Join(root, "snapshots", revision)
	stat, err := os.Stat(dir)
	return dir, err == nil && stat.IsDir()
}

// Find returns the snapshot in the cache of this machine that a text names, or the GGUF file in one, and reports
// whether there is one.
func Find(text string) (path string, ok bool) {
	if path, ok = FindFile(CacheDir(), text); ok {
		return path, true
	}

	n, ok := Parse(text)
	if !ok {
		return "", false
	}
	return n.Find(CacheDir())
}

// maxRef bounds what is read of a file of refs, which holds a commit.
const maxRef = 128

func readRef(path string) (string, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !stat.Mode().IsRegular() || stat.Size() > maxRef {
		return "", fs.ErrInvalid
	}

	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

// Of returns the name whose snapshot a folder of a cache is, or whose snapshot a file or folder lies in, without a
// revision: what other programs find it by.
func Of(path string) (Name, bool) {
	for path = filepath.Clean(path); filepath.Dir(path) != path; path = filepath.Dir(path) {
		snapshots := filepath.Dir(path)
		id, ok := strings.CutPrefix(filepath.Base(filepath.Dir(snapshots)), "models--")
		if ok && filepath.Base(snapshots) == "snapshots" {
			return Parse(strings.Replace(id, "--", "/", 1))
		}
	}
	return Name{}, false
}

// Locate finds what a text names: a folder or file of that path, or else the snapshot of that name in the cache, or the
// GGUF file in it that the text goes on with, as owner/name/FILE.gguf or owner/name@revision/FILE.gguf. A text
// that is neither a path that exists nor a name is returned as it is, for the caller to say what is wrong with it. The
// error, of a name that is nowhere, wraps [fs.ErrNotExist].
func Locate(text string) (string, error) {
	if _, err := os.Stat(text); err == nil {
		return text, nil
	}

	if path, ok, err := locateFile(text); ok {
		return path, err
	}

	n, ok := Parse(text)
	if !ok {
		return text, nil
	}

	cache := CacheDir()
	if dir, ok := n.Find(cache); ok {
		return dir, nil
	}

	if n.Revision != "" {
		if _, err := os.Stat(n.ID()); err == nil {
			return "", fmt.Errorf("%s: %w: %s is a folder on this machine, which has no revisions, and the Hugging "+
				"Face cache at %s has no such model", text, fs.ErrNotExist, n.ID(), cache)
		}
	}

	return "", failure.Hinted(fmt.Errorf("%s: %w, neither as a folder nor in the Hugging Face cache at %s", text,
		fs.ErrNotExist, cache), "compress pull "+text+" downloads it from the hub")
}
