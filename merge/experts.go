package merge

import (
	"context"

	"github.com/modelcompress/compress/merge/internal/experts"
	"github.com/modelcompress/compress/merge/internal/router"
	"github.com/modelcompress/compress/merge/internal/serve"
)

// Ways in which a mediated folder can be wrong, or used wrongly.
var (
	ErrManifest = experts.ErrManifest
	ErrExperts  = experts.ErrExpert
	ErrFeature  = router.ErrFeature
	ErrPrompts  = router.ErrPrompts
	ErrRouter   = router.ErrFile
	ErrPolicy   = router.ErrPolicy
	// ErrHash: a file is not the one that the manifest describes.
	ErrHash = serve.ErrHash
	// ErrNoRouter: the folder was made without prompts.
	ErrNoRouter = serve.ErrNoRouter
	// ErrExternal: the folder's router was trained on features from outside.
	ErrExternal = serve.ErrExternal
	// ErrUnknownExpert: there is no expert of that name.
	ErrUnknownExpert = serve.ErrUnknownExpert
	// ErrMixed: requests with different experts cannot be computed in one pass.
	ErrMixed = serve.ErrMixed
)

type (
	// Experts is an open folder that mediate wrote: a dense model and the experts beside it.
	Experts = serve.Experts
	// ExportOptions are the choices of Experts.Export. The zero value is ready.
	ExportOptions = serve.ExportOptions
	// Exported is what Experts.Export wrote.
	Exported = serve.Exported
	// Verification is the result of Experts.Verify.
	Verification     = serve.Verification
	VerifiedExpert   = serve.VerifiedExpert   // an expert in a Verification
	Manifest         = experts.Manifest       // what a folder says of itself
	RoutedStatistics = serve.RoutedStatistics // what a Routed has counted
	// Routed is a model that computes with experts.
	Routed = serve.Routed
	// Verdict is what a router says about a prompt.
	Verdict = router.Verdict
	// Policy says how a verdict becomes weights; the zero value is the default.
	Policy = router.Policy
)

// IsMediated tells whether a folder holds experts.
func IsMediated(dir string) bool { return serve.IsMediated(dir) }

// OpenExperts opens a folder that mediate wrote, and checks that its files fit each other. Of hashes only the
// router's is compared; Experts.Verify compares all.
func OpenExperts(ctx context.Context, dir string) (*Experts, error) { return serve.Open(ctx, dir) }

// ReadPrompts reads a JSONL file: one JSON string a line, or {"text": …}, or {"prompt": …}; of a thousand at most.
func ReadPrompts(path string) ([]string, error) { return serve.ReadPrompts(path) }

// ReadFeatures reads the tensor "features" [n, d] of a file, F32, a thousand rows at most, and normalises them.
func ReadFeatures(path string) ([][]float64, error) { return serve.ReadFeatures(path) }
