package safetensors

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/system"
)

// IndexName and SingleName are the files that a folder is opened by.
const (
	IndexName  = "model.safetensors.index.json"
	SingleName = "model.safetensors"
)

const (
	extension    = ".safetensors"
	maxIndexSize = maxHeaderSize // bytes
)

// index is a parsed index file: the shard of every tensor, and what metadata stood there.
type index struct {
	metadata map[string]json.RawMessage
	shardOf  map[string]string
	shards   []string // sorted
}

// parseIndex checks the text of an index file. Offsets in its errors count from the start
// of that file.
func parseIndex(text []byte) (*index, error) {
	x := &index{}
	err := x.parse(text)
	if err == nil {
		return x, nil
	}
	e := err.(*Error) // everything that scans makes these
	e.Err = fmt.Errorf("%w: %w", ErrIndex, e.Err)
	return nil, e
}

func (x *index) parse(text []byte) error {
	if at := invalidUTF8(text); at >= 0 {
		return fault(ErrHeaderNotUTF8, int64(at), "byte %#02x", text[at])
	}

	s := &scanner{text: text}
	err := s.object(func(key string) (err error) {
		switch key {
		case "metadata":
			x.metadata, err = rawMembers(s)
		case "weight_map":
			x.shardOf, err = weightMap(s)
		default:
			err = s.skip(1)
		}
		return err
	})
	if err != nil {
		return err
	}

	if err := s.end(); err != nil {
		return err
	}
	if len(x.shardOf) == 0 {
		return fault(ErrMissingTensor, -1, "there is no weight_map, or it is empty")
	}
	for _, shard := range x.shardOf {
		x.shards = append(x.shards, shard)
	}

	slices.Sort(x.shards)
	x.shards = slices.Compact(x.shards)
	return nil
}

// rawMembers reads an object of any values, or null for none.
func rawMembers(s *scanner) (map[string]json.RawMessage, error) {
	if s.literal("null") {
		return nil, nil
	}

	m := map[string]json.RawMessage{}
	err := s.object(func(key string) error {
		s.peek()
		start := s.pos
		err := s.skip(2)
		m[key] = slices.Clone(s.text[start:s.pos])
		return err
	})

	return m, err
}

// weightMap reads the object that gives each tensor its shard.
func weightMap(s *scanner) (map[string]string, error) {
	m := map[string]string{}
	intern := map[string]string{} // few shards, many tensors
	err := s.object(func(tensor string) error {
		s.peek()
		at := s.base + int64(s.pos)
		shard, err := s.str()
		if err != nil {
			return locate(err, "", tensor)
		}

		if known, ok := intern[shard]; ok {
			m[tensor] = known
			return nil
		}

		if !plainName(shard) {
			return locate(fault(ErrShardPath, at, "%q must be a plain file name", clip(shard)), "", tensor)
		}

		intern[shard], m[tensor] = shard, shard
		return nil
	})

	return m, err
}

// plainName reports whether a name is no more than a file of the folder itself.
func plainName(name string) bool {
	return name != "." && len(name) <= 255 && !strings.ContainsAny(name, "/\\\x00") && filepath.IsLocal(name)
}

// openInside opens a file of the folder for reading. Of the links in a snapshot of the hub's cache all but those to
// blobs are refused; dir is the folder's path for messages.
func openInside(root *safefile.Folder, dir, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|system.NonBlock, 0)
	if err == nil {
		return f, nil
	}

	path := filepath.Join(dir, name)
	if stat, lerr := root.Lstat(name); lerr == nil && stat.Mode()&os.ModeSymlink != 0 {
		target, _ := root.Readlink(name)
		if _, serr := os.Stat(path); serr == nil {
			return nil, locate(fault(ErrShardPath, -1, "it is a symbolic link to %q, which leads out of the folder "+
				"and is not followed; copy the folder with cp -rL first", clip(target)), path, "")
		}
		return nil, locate(fault(err, -1, "it is a symbolic link to %q", clip(target)), path, "")
	}

	return nil, locate(err, path, "")
}

// readIndex reads and checks an index file of the folder.
func readIndex(root *safefile.Folder, dir, name string) (*index, error) {
	f, err := openInside(root, dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	path := filepath.Join(dir, name)
	stat, err := f.Stat()
	if err == nil && !stat.Mode().IsRegular() {
		err = fault(ErrNotRegular, -1, "%s", stat.Mode().Type())
	}
	if err != nil {
		return nil, locate(err, path, "")
	}

	text, err := io.ReadAll(io.LimitReader(f, maxIndexSize+1))
	if err == nil && len(text) > maxIndexSize {
		err = fault(ErrIndex, -1, "larger than %d bytes", maxIndexSize)
	}
	if err != nil {
		return nil, locate(err, path, "")
	}

	x, err := parseIndex(text)
	return x, locate(err, path, "")
}

// marshalIndex writes an index as the usual tools do: indented by two spaces, keys sorted.
func marshalIndex(totalSize int64, extra, shardOf map[string]string) ([]byte, error) {
	meta := map[string]any{}
	for key, value := range extra {
		meta[key] = value
	}

	meta["total_size"] = totalSize
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(struct {
		Metadata  map[string]any    `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{meta, shardOf})

	return []byte(b.String()), err
}
