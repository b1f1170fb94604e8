package experts

import (
	"errors"
	"hash/fnv"
	"net/url"
	"strings"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/safetensors"
)

// FileOf is the file of an expert, whatever its name holds.
func FileOf(name string) string { return prefix + url.PathEscape(name) + suffix }

// IsFile reports whether a file has the name of an expert's.
func IsFile(name string) bool {
	return strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix)
}

const prefix, suffix = "expert-", ".safetensors"

// Abort removes unfinished files.
func Abort(files []*safetensors.Writer) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Abort())
		}
	}
	return errors.Join(errs...)
}

// Keys are tensors for the random choices of each member, which depend on its name and on nothing of the others.
func Keys(tensor string, names []string, seed uint64) []*method.Tensor {
	list := make([]*method.Tensor, len(names))
	for k, name := range names {
		h := fnv.New64a()
		h.Write([]byte(tensor))
		h.Write([]byte{0})
		h.Write([]byte(name))
		list[k] = &method.Tensor{Name: tensor, Inputs: []method.Input{{Name: name}}, Seed: [2]uint64{seed, h.Sum64()}}
	}
	return list
}
