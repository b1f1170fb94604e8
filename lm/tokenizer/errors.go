package tokenizer

import (
	"errors"

	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/pattern"
)

// The ways in which a tokenizer file or an input can be wrong. Errors of this package wrap one of them, or an error of
// the file system; test with errors.Is.
var (
	// ErrSyntax: the file is not the JSON that a tokenizer.json has to be, or a field has the wrong type.
	ErrSyntax = config.ErrSyntax
	// ErrUnsupported: a component, an option or a pattern that this package does not know.
	ErrUnsupported = config.ErrUnsupported
	// ErrTokenID: an id is negative, too large for the size of the vocabulary, or given to two tokens.
	ErrTokenID = errors.New("bad token id")
	// ErrMerge: a merge names a token that is not in the vocabulary, or is not a pair.
	ErrMerge = errors.New("bad merge")
	// ErrVocab: the vocabulary lacks a token that the file refers to, or holds an impossible entry.
	ErrVocab = errors.New("bad vocabulary")
	// ErrNoUnknown: the text holds something outside the vocabulary and the model has no unknown token.
	ErrNoUnknown = errors.New("text outside the vocabulary and no unknown token")
	// ErrPatternCost: matching a split pattern against a text took more steps than are allowed.
	ErrPatternCost = pattern.ErrCost
	// ErrTooLong: a text is longer than 1 GiB.
	ErrTooLong = errors.New("text too long")
)
