// Package testdata holds the project's own small models. This file embeds the part that the demo command needs, 6 MB.
package testdata

import "embed"

// Nano holds nano (five checkpoints with their tokenizer, texts, training data, tasks and edits) and demo
// (recipes, plans and a task that refer to them as ../nano). What they are is described in README.md beside
// this file.
//
//go:embed nano demo
var Nano embed.FS
