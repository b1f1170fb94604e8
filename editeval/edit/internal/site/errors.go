package site

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
)

// Ways in which editing can fail; errors wrap one of them.
var (
	// ErrRecord: a record of an edit file lacks a field or contradicts itself; the error names the record by
	// index and the field by path.
	ErrRecord = errors.New("bad edit record")
	// ErrFormat: a file is not JSON, or of no known form.
	ErrFormat = errors.New("not a file of edits")
	// ErrSubject: the subject is not in its prompt.
	ErrSubject = errors.New("subject is not in the prompt")
	// ErrTokens: the tokens of a prompt do not begin those of the prompt with its target.
	ErrTokens = errors.New("tokens do not line up")
	// ErrMethod: there is no method of that name.
	ErrMethod = failure.Misuse("unknown method", "")
	// ErrOptions: hyper-parameters are out of range or do not fit the model.
	ErrOptions = failure.Misuse("bad hyper-parameters", "")
	// ErrModel: the model has no single down-projection in a layer that is to be edited.
	ErrModel = failure.New("model cannot be edited there",
		"choose layers without a mixture, or --method ike")
	// ErrStatistics: a covariance is missing, of another shape, or not positive definite.
	ErrStatistics = errors.New("bad key statistics")
	// ErrDiverged: an optimisation left the finite numbers, ended worse than it began, or moved a matrix too
	// far; the weights are as they were before.
	ErrDiverged = errors.New("optimisation diverged")
	// ErrJournal: a journal is damaged, or belongs to another model.
	ErrJournal = errors.New("bad edit journal")
)
