package mediate

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
	"github.com/modelcompress/compress/merge/mediate/internal/router"
)

// Ways in which a folder that mediate wrote can be wrong, or used wrongly, beside those of package merge.
var (
	// ErrManifest: mediator.json is malformed, or disagrees with the files.
	ErrManifest = experts.ErrManifest
	// ErrExperts: a file of an expert is malformed, or does not fit the dense model.
	ErrExperts = experts.ErrExpert
	// ErrHash: a file is not the one that the manifest describes.
	ErrHash = errors.New("file differs from the manifest's hash")
	// ErrUnknownExpert: there is no expert of that name.
	ErrUnknownExpert = errors.New("no such expert")
	// ErrMixed: requests with different experts cannot be computed in one pass.
	ErrMixed = errors.New("cannot be computed with several experts at once")

	// ErrFeature: a feature holds a NaN, an infinity, nothing but zeros, or has another length.
	ErrFeature = router.ErrFeature
	// ErrPrompts: a file of prompts is malformed, or they do not separate the experts, or there are too few.
	ErrPrompts = router.ErrPrompts
	// ErrRouter: a router's file is malformed or does not fit its manifest.
	ErrRouter = router.ErrFile
	// ErrNoRouter: the folder was made without prompts.
	ErrNoRouter = errors.New("folder has no router")
	// ErrExternal: the folder's router was trained on features from outside.
	ErrExternal = failure.New("no feature can be made of a prompt", "name experts, or give features with --features")
)
