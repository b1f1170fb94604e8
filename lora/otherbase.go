package lora

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/combine"
)

// ErrOtherBase: the adapter fits, but was trained on other weights than these.
var ErrOtherBase = failure.Misuse("the adapter was trained on another base", "")

// OtherBase compares the weights of a model with those that the adapter was trained on: a remark where they
// differ, "" where they are the same. It reads all weights of the model, unless there is nothing to compare
// them with: then the remark is about a base of another name, if the adapter's files give one.
func (a *Adapter) OtherBase(ctx context.Context, m *lm.Model) (string, error) {
	c := &a.inner.Config
	if c.BaseHash == "" {
		return otherName(c, m.Path()), nil
	}
	hash, err := m.Fingerprint(ctx)
	if err != nil {
		return "", err
	}
	return otherBase(c, hash), nil
}

// otherBase is the remark about a base with a fingerprint.
func otherBase(c *adapter.Config, hash string) string {
	if c.BaseHash == "" || c.BaseHash == hash {
		return ""
	}
	return fmt.Sprintf("the adapter was trained on another base: on %.200q with fingerprint %.12s, this one has "+
		"%.12s; shapes fit", c.Base, c.BaseHash, hash)
}

// otherName is the remark about a base in a folder whose name is not that of the one that an adapter without a
// fingerprint names.
func otherName(c *adapter.Config, dir string) string {
	if c.BaseHash != "" || c.Base == "" || filepath.Base(c.Base) == folderName(dir) {
		return ""
	}
	return fmt.Sprintf("the adapter names %.200q as its base, and its files do not tell whether %s is that", c.Base,
		dir)
}

// folderName is the last part of the path of a folder.
func folderName(dir string) string {
	if full, err := filepath.Abs(dir); err == nil {
		dir = full
	}
	return filepath.Base(dir)
}

// refuseOther makes an error of a remark of otherBase, unless that is allowed.
func refuseOther(remark string, allowed bool) error {
	if remark == "" || allowed {
		return nil
	}
	return failure.Hinted(fmt.Errorf("%w%s", ErrOtherBase, remark[len(ErrOtherBase.Error()):]),
		"--allow-other-base takes it all the same")
}

// onStored compares an adapter with a base in a folder; see [Adapter.OtherBase].
func onStored(ctx context.Context, c *adapter.Config, base *adapter.Checkpoint) (string, error) {
	if base == nil {
		return "", nil
	}
	if c.BaseHash == "" {
		return otherName(c, base.Dir), nil
	}

	hash, err := lm.Fingerprint(ctx, base.Dir)
	if err != nil {
		return "", err
	}

	return otherBase(c, hash), nil
}

// apartBases is the remark about adapters of which one was trained on another base than the first: by fingerprints
// where both have one, which is known, otherwise by the names of the folders. Their sum fits neither base.
func apartBases(list []combine.Named) (remark string, known bool) {
	first := list[0]
	a := &first.Adapter.Config
	for _, n := range list[1:] {
		b := &n.Adapter.Config
		switch {
		case a.BaseHash != "" && b.BaseHash != "":
			if a.BaseHash != b.BaseHash {
				return fmt.Sprintf("%s and %s were trained on different bases: %.200q with fingerprint %.12s, and "+
					"%.200q with %.12s; shapes fit", first.Name, n.Name, a.Base, a.BaseHash, b.Base, b.BaseHash), true
			}
		case remark == "" && a.Base != "" && b.Base != "" && filepath.Base(a.Base) != filepath.Base(b.Base):
			remark = fmt.Sprintf("%s and %s name different bases, %.200q and %.200q; shapes fit", first.Name, n.Name,
				a.Base, b.Base)
		}
	}
	return remark, false
}
