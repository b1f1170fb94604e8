package lint

import (
	"go/ast"
	"testing"
)

// unmapped lists the packages that start goroutines without package internal/mmapsafe, and why a lost page of a
// mapped file does not end the program there.
var unmapped = map[string]string{
	"internal/mmapsafe":                 "it is the package itself",
	"internal/jobs":                     "handlers run within mapped.Do; the rest waits",
	"gp":                                "fitness is asked for within mapped.Do",
	"kernels/cpu":                       "helpers run within mapped.Catch; the others measure memory of their own",
	"kernels/cuda":                      "copies carry their faults; programs are compiled",
	"kernels/kerneltest":                "tests",
	"internal/hub":                      "files are written, not mapped",
	"merge/internal/stream":             "segments run within mapped.Do",
	"merge/internal/output":             "files are read, not mapped",
	"cmd/compress/internal/workers":     "workers of a queue",
	"cmd/compress/internal/editevalcmd": "workers of a queue",
}

// TestGoroutines: goroutines that may touch mapped files are started so that a fault there is an error.
func TestGoroutines(t *testing.T) {
	used := map[string]bool{}
	each(t, func(p *pkg) {
		for _, s := range p.code() {
			for _, spec := range s.ast.Imports {
				if spec.Path.Value == `"golang.org/x/sync/errgroup"` {
					used[p.name] = true
				}
			}

			ast.Inspect(s.ast, func(n ast.Node) bool {
				if x, ok := n.(*ast.SelectorExpr); ok && x.Sel.Name == "WaitGroup" {
					used[p.name] = true
				}
				return true
			})
		}
	})

	for name := range used {
		if unmapped[name] == "" {
			t.Errorf("package %q: use mapped.Group or mapped.Errors, which give a lost page of a mapped file as an "+
				"error, or say in unmapped why not", name)
		}
	}

	for name := range unmapped {
		if !used[name] {
			t.Errorf("package %q is listed, but starts no goroutines", name)
		}
	}
}
