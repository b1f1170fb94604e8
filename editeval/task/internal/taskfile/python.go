package taskfile

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// PythonError says that a task file calls Python, which is not run.
type PythonError struct {
	Function Function
	Key      string // the outermost key that it stands under
}

// Error names the place and the way out.
func (e *PythonError) Error() string {
	return fmt.Sprintf("%s:%d: !function %s is Python, which is not run (HINT: %s; see docs/evaluation.md#python)",
		e.Function.Path, e.Function.Line, e.Function.Name, e.wayOut())
}

// Unwrap makes it one of what is not supported.
func (e *PythonError) Unwrap() error { return ErrUnsupported }

func (e *PythonError) wayOut() string {
	switch e.Key {
	case "process_results", "metric_list", "filter_list", "aggregate_metric_list":
		return "compute it in Python from the answers in samples_TASK.jsonl"
	}
	return "apply it once in Python and give the result as JSONL"
}

// pythonOf finds the Python that a definition calls, but for the keys that change nothing and those that are read
// elsewhere. What an including file has replaced is not among it.
func pythonOf(root *pyvalue.Dict, elsewhere ...string) []error {
	var faults []error
	for _, key := range root.Keys() {
		if key == "metadata" || slices.Contains(ignoredKeys, key) || slices.Contains(elsewhere, key) {
			continue
		}

		v, _ := root.Get(key)
		for _, f := range python(v) {
			faults = append(faults, &PythonError{Function: f, Key: key})
		}
	}

	return faults
}

// python lists the functions within a value that are not known here.
func python(v any) []Function {
	var out []Function
	switch v := v.(type) {
	case Function:
		if v.Known == "" {
			out = append(out, v)
		}
	case []any:
		for _, x := range v {
			out = append(out, python(x)...)
		}
	case *pyvalue.Dict:
		for _, k := range v.Keys() {
			x, _ := v.Get(k)
			out = append(out, python(x)...)
		}
	}

	return out
}
