package lora

import "github.com/modelcompress/compress/lora/internal/adapter"

// Ways in which adapters can be wrong.
var (
	ErrConfig      = adapter.ErrConfig      // a setting is out of range, unknown, or contradicts another
	ErrTarget      = adapter.ErrTarget      // a target matches nothing, or what cannot be adapted
	ErrBase        = adapter.ErrBase        // the adapter belongs to another base model
	ErrFile        = adapter.ErrFile        // the files are malformed or disagree with their configuration
	ErrUnsupported = adapter.ErrUnsupported // a feature that cannot be computed here
)
