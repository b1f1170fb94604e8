package lora

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// ErrOtherBase: the adapter fits, but was trained on other weights than these.
var ErrOtherBase = errors.New("the adapter was trained on another base")

// OtherBase compares the weights of a model with those that the adapter was trained on: a remark where they differ, "" where they are the
// same or the adapter's files do not say. It reads all weights of the model, unless there is nothing to compare them with.
func (a *Adapter) OtherBase(ctx context.Context, m *lm.Model) (string, error) {
	if a.inner.Config.BaseHash == "" {
		return "", nil
	}
	hash, err := m.Fingerprint(ctx)
	if err != nil {
		return "", err
	}
	return otherBase(&a.inner.Config, hash), nil
}

// otherBase is the remark about a base with a fingerprint.
func otherBase(c *adapter.Config, hash string) string {
	if c.BaseHash == "" || c.BaseHash == hash {
		return ""
	}
	return fmt.Sprintf("the adapter was trained on another base: on %.200q with fingerprint %.12s, this one has %.12s; shapes fit", c.Base, c.BaseHash, hash)
}

// refuseOther makes an error of a remark of otherBase, unless that is allowed.
func refuseOther(remark string, allowed bool) error {
	if remark == "" || allowed {
		return nil
	}
	return fmt.Errorf("%w%s (HINT: --allow-other-base takes it all the same)", ErrOtherBase, remark[len(ErrOtherBase.Error()):])
}

// onStored compares an adapter with a base in a folder; see [Adapter.OtherBase].
func onStored(ctx context.Context, c *adapter.Config, base *adapter.Checkpoint) (string, error) {
	if c.BaseHash == "" || base == nil {
		return "", nil
	}
	hash, err := lm.Fingerprint(ctx, base.Dir, base.Source)
	if err != nil {
		return "", err
	}
	return otherBase(c, hash), nil
}
