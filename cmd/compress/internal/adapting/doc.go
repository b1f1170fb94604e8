// Package adapting is the work of the verbs about adapters' files: folding, combining, exporting, extracting,
// inspecting.
package adapting
