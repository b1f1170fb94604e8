// Package testdata holds the project's own small models. This file embeds the part that the demo command needs: the
// base model and its texts, 1.1 MB.
package testdata

import "embed"

// Nano holds nano/base (a checkpoint folder with its tokenizer) and nano/text (calib.txt, valid.txt, test.txt). What
// they are is described in README.md beside this file.
//
//go:embed nano/base nano/text
var Nano embed.FS
