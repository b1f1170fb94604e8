// Package taskfile reads task and group definitions: the keys of lm-evaluation-harness' YAML files, strictly.
// Unknown keys and values of the wrong kind are errors that name the file and the line.
//
// Unquoted scalars are read by YAML 1.1, as the harness does. What differs from it: anchors and aliases, keys
// that are there twice and unquoted dates, octal and sexagesimal numbers are refused.
package taskfile

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// The ways in which a definition can be wrong.
var (
	ErrSyntax      = errors.New("bad YAML")
	ErrLimit       = errors.New("beyond a limit")
	ErrUnsupported = errors.New("not supported")
	ErrUnknownKey  = errors.New("unknown key")
	ErrValue       = errors.New("bad value")
	ErrMissing     = errors.New("missing key")
	ErrDuplicate   = errors.New("defined twice")
	ErrUnknownTask = failure.Misuse("no such task", "")
	ErrCycle       = errors.New("refers to itself")
)

// The kinds of requests that a task makes.
const (
	MultipleChoice = "multiple_choice"
	LogLikelihood  = "loglikelihood"
	Rolling        = "loglikelihood_rolling"
	GenerateUntil  = "generate_until"
)

// Task is the definition of a task. Fields of kind any hold a text (the name of a column or a template), an
// int64, a list or a [Function]; nil where the file says nothing.
type Task struct {
	Name, Alias string
	Tags        []string
	Path        string // of the file
	Version     string

	Data            map[string][]string // files of each split
	Format          string              // json, csv, tsv, parquet, arrow or text, "" to tell by the files' names
	Field           string              // of a JSON file: where the records are
	TrainingSplit   string
	ValidationSplit string
	TestSplit       string
	ProcessDocs     *Function

	OutputType      string
	DocToText       any
	DocToTarget     any
	DocToChoice     any
	ProcessResults  *Function
	Description     any // a text or a Function
	TargetDelimiter string
	GenPrefix       string

	NumFewshot       *int
	FewshotDelimiter string
	Fewshot          Fewshot

	Generation Generation
	Repeats    int
	Filters    []Filter
	Metrics    []Metric

	Raw     *pyvalue.Dict // as written, includes merged
	Ignored []string      // keys that the harness has and that change nothing here
}

// Fewshot says where examples come from and how they are written.
type Fewshot struct {
	Sampler          string // default or first_n
	Split            string
	Samples          []any // dictionaries
	HasSamples       bool
	ProcessDocs      *Function
	DocToText        any
	DocToTarget      any
	DocToChoice      any
	GenPrefix        string
	TargetDelimiter  string
	FewshotDelimiter string
}

// Generation says how texts are continued.
type Generation struct {
	Kwargs      *pyvalue.Dict // generation_kwargs with what counts where they say nothing
	Until       []string
	MaxTokens   int // 0: DefaultTokens
	Temperature float64
	Sample      bool
}

// Filter is a named chain of steps that turn a generated text into an answer.
type Filter struct {
	Name  string
	Steps []Step
}

// Step is a function of a filter and its arguments.
type Step struct {
	Function string
	Args     *pyvalue.Dict
}

// Metric is a metric and how it is aggregated.
type Metric struct {
	Name           string
	Aggregation    string // "" for the metric's own
	HigherIsBetter *bool
	IgnoreCase     bool
	IgnorePunct    bool
	IgnoreNumbers  bool
	IgnoreRegexes  []string
}

// Group is the definition of a group of tasks and groups.
type Group struct {
	Name, Alias string
	Path        string
	Members     []string // names of tasks, groups and tags
	Aggregates  []Aggregate
	Version     string
}

// Aggregate is a figure of a group.
type Aggregate struct {
	Metric       string
	WeightBySize bool
	Filters      []string
}
