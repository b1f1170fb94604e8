package lint

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport is the import table of the design: what the code of a package may import of this module. Packages that do
// not exist yet are listed all the same; one that is not listed is a mistake. A folder X/internal/Y belongs to X.
var mayImport = map[string][]string{
	"":            {"internal/build"},
	"testdata":    {},
	"safetensors": {"internal/tensorfile"},
	"gguf":        {"internal/tensorfile", "internal/quantized"},

	"kernels":            {},
	"kernels/ref":        {"kernels"},
	"kernels/cpu":        {"kernels", "kernels/ref", "internal/rng", "internal/isa"},
	"kernels/cuda":       {"kernels"},
	"kernels/device":     {"kernels", "kernels/ref", "kernels/cpu", "kernels/cuda"},
	"kernels/kerneltest": {"kernels", "kernels/ref"},

	"kernels/kerneltest/standin": {"kernels", "kernels/cuda", "kernels/device", "kernels/kerneltest"},

	"lm": {
		"kernels", "safetensors", "lm/arch", "lm/tokenizer", "lm/corpus", "internal/rng", "internal/dtype",
		"internal/weights",
	},
	"lm/arch":      {"internal/orderedjson"},
	"lm/tokenizer": {"internal/weights"},
	"lm/corpus":    {"lm/tokenizer", "internal/pyrandom", "internal/parquet", "internal/arrow"},
	"lm/optim":     {"kernels", "internal/isa"},

	"lm/tokenizer/trim": {"lm/tokenizer", "internal/orderedjson", "internal/weights"},

	"checkpoint": append([]string{
		"kernels", "kernels/device", "safetensors", "internal/stage", "internal/dtype", "internal/orderedjson",
		"internal/weights",
	}, engine...),
	"prune": append([]string{
		"kernels", "safetensors", "internal/linalg", "internal/build", "internal/dtype",
		"internal/stats", "internal/actstats", "internal/hostmat", "internal/obs", "internal/levels", "gp",
	}, engine...),
	"prune/vocabulary": append([]string{"lm/tokenizer/trim", "internal/build", "internal/chat"}, engine...),
	"quantize": append([]string{
		"kernels", "safetensors", "gguf", "quantize/imatrix", "internal/linalg",
		"internal/levels", "internal/build", "internal/dtype",
		"internal/orderedjson", "internal/actstats", "internal/hostmat", "internal/obs", "internal/quantized",
		"internal/ggufmodel", "internal/weights",
	}, engine...),
	"quantize/imatrix": {"gguf", "safetensors", "internal/dtype"},
	"prune/structure": append([]string{
		"kernels", "gp", "prune", "internal/actstats", "internal/hostmat", "internal/levels", "internal/linalg",
	}, engine...),
	"prune/fitness": append([]string{
		"kernels", "safetensors", "gp", "prune", "prune/structure", "internal/actstats", "internal/hostmat",
		"internal/disk", "internal/stats",
	}, engine...),
	"gp": {"kernels", "internal/rng", "internal/isa"},
	"merge": append([]string{
		"kernels", "safetensors", "internal/linalg", "internal/rng", "internal/build",
		"internal/orderedjson", "internal/dtype", "internal/hub", "internal/weights", "internal/strictyaml",
		"internal/isa",
	}, engine...),
	"merge/mediate": append([]string{
		"merge", "kernels", "safetensors", "internal/linalg", "internal/levels", "internal/build", "internal/dtype",
		"internal/weights",
	}, engine...),
	"merge/search": append([]string{
		"merge", "kernels", "safetensors", "internal/linalg", "internal/rng", "internal/build",
	}, engine...),
	"lora": append([]string{
		"kernels", "safetensors", "internal/linalg", "internal/rng", "internal/pyrandom",
		"internal/orderedjson", "internal/dtype", "internal/chat", "internal/hub", "gguf", "internal/ggufmodel",
	}, engine...),
	"editeval": append([]string{
		"editeval/edit", "editeval/task", "internal/rng", "internal/stats", "internal/hub",
	}, engine...),
	"editeval/edit": append([]string{"kernels", "safetensors", "internal/linalg", "internal/rng", "internal/weights"},
		engine...),
	"editeval/task": {
		"lm", "lm/tokenizer", "lm/corpus", "internal/stats", "internal/pyrandom", "internal/pyvalue",
		"internal/jinja", "internal/chat", "internal/hub", "internal/retry",
		"internal/parquet", "internal/arrow",
	},

	"serve": append([]string{"internal/chat", "internal/pyvalue", "internal/report"}, engine...),

	"internal/jobs":   {},
	"internal/report": {},
	"internal/actstats": append([]string{
		"kernels", "internal/linalg", "internal/hostmat",
	}, engine...),
	"internal/hostmat":   {"kernels", "internal/linalg"},
	"internal/obs":       {"kernels"},
	"internal/linalg":    {"kernels", "internal/rng", "internal/isa"},
	"internal/levels":    {"internal/rng"},
	"internal/pyrandom":  {},
	"internal/faulttest": {},
	"internal/lint":      {},
	"internal/fuzzlimit": {},

	"internal/build":       {},
	"internal/isa":         {},
	"internal/rng":         {},
	"internal/dtype":       {"kernels", "safetensors"},
	"internal/orderedjson": {},
	"internal/stats":       {"internal/pyrandom"},
	"internal/mmapsafe":    {},
	"internal/modeltest":   {"lm/arch", "safetensors"},
	"internal/safefile":    {},
	"internal/memlimit":    {},
	"internal/pyvalue":     {},
	"internal/jinja":       {"internal/pyvalue"},
	"internal/chat":        {"internal/jinja", "internal/pyvalue", "internal/weights"},
	"internal/strictyaml":  {},
	"internal/cputime":     {},
	"internal/system":      {},
	"internal/scratch":     {},
	"internal/failure":     {},
	"internal/hub":         {"internal/disk", "internal/retry"},
	"internal/retry":       {},
	"internal/hub/hubtest": {},
	"internal/card":        {},
	"internal/parquet":     {"internal/pyvalue"},
	"internal/arrow":       {"internal/pyvalue"},
	"internal/stage":       {"safetensors", "internal/weights"},
	"internal/disk":        {},
	"internal/tensorfile":  {"internal/disk"},
	"internal/quantized":   {"kernels", "safetensors", "internal/dtype", "internal/isa"},
	"internal/ggufmodel": {
		"gguf", "safetensors", "kernels", "internal/quantized", "lm/arch", "internal/orderedjson", "internal/dtype",
	},

	"internal/weights": {
		"safetensors", "gguf", "kernels", "lm/arch", "internal/quantized", "internal/ggufmodel", "internal/dtype",
		"internal/orderedjson",
	},
	"internal/weights/weightstest": {
		"safetensors", "gguf", "internal/weights", "internal/quantized", "internal/dtype", "internal/orderedjson",
	},

	"internal/system/systemtest": {},

	"examples":         {},
	"examples/prune":   append([]string{"prune", "kernels/device"}, engine...),
	"examples/search":  append([]string{"gp", "prune/fitness", "kernels/device"}, engine...),
	"examples/merge":   {"merge"},
	"examples/adapt":   append([]string{"lora", "kernels/device"}, engine...),
	"examples/editing": append([]string{"editeval", "kernels/device"}, engine...),

	"cmd/compress": {anything},
}

// everywhere lists what every row of the table allows: packages of a few lines that any code may stand on.
var everywhere = []string{
	"internal/safefile", "internal/strictyaml", "internal/mmapsafe", "internal/memlimit", "internal/scratch",
	"internal/cputime", "internal/failure", "internal/stage", "internal/card", "internal/system",
}

// anything in a row of the table allows all imports.
const anything = "*"

// engine is what the table calls lm*.
var engine = []string{"lm", "lm/arch", "lm/tokenizer", "lm/corpus", "lm/optim"}

// owner is the row of the table that a package falls under.
func owner(name string) string {
	if i := strings.Index(name, "/internal/"); i >= 0 {
		return name[:i]
	}
	return name
}

func TestImportTable(t *testing.T) {
	each(t, func(p *pkg) {
		row, ok := mayImport[owner(p.name)]
		if !ok {
			t.Errorf("package %q is not in the import table; add it to the design first, then to mayImport", p.name)
			return
		}

		for _, s := range p.code() {
			for _, spec := range s.ast.Imports {
				target, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
				if !ours {
					continue
				}

				target = owner(strings.TrimPrefix(target, "/"))
				if target != owner(p.name) && !slices.Contains(slices.Concat(row, everywhere), target) &&
					!slices.Contains(row, anything) {
					t.Errorf("%s: package %q may not import %q; allowed: %q", at(spec), p.name, target, row)
				}
			}
		}
	})
}

// TestPackageNames: a package is named for what it holds, and its folder alike.
func TestPackageNames(t *testing.T) {
	forbidden := []string{
		"util", "utils", "common", "helper", "helpers", "base", "misc", "types", "shared", "core",
		"lib", "pkg", "src",
	}
	each(t, func(p *pkg) {
		for part := range strings.SplitSeq(p.name, "/") {
			if slices.Contains(forbidden, part) {
				t.Errorf("folder %s: %q says nothing about what is in it", p.name, part)
			}
		}

		for _, s := range p.code() {
			name := s.ast.Name.Name
			if slices.Contains(forbidden, name) {
				t.Errorf("%s: package name %q says nothing about what is in it", s.name, name)
			}
			if p.name != "" && name != path.Base(p.name) && name != "main" {
				t.Errorf("%s: package %s is in a folder called %s", s.name, name, path.Base(p.name))
			}
		}
	})
}

// TestImportForms: no dot-imports, no cgo, blank imports only in programs and tests, or to embed files.
func TestImportForms(t *testing.T) {
	eachFile(t, func(_ *pkg, s *source) {
		for _, spec := range s.ast.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}

			if name == "C" {
				t.Errorf("%s: cgo; one static binary is promised", at(spec))
			}

			switch {
			case spec.Name == nil:
			case spec.Name.Name == ".":
				t.Errorf("%s: dot-import of %s", at(spec), name)
			case spec.Name.Name == "_" && name != "embed" && !s.test && s.ast.Name.Name != "main":
				t.Errorf("%s: blank import of %s outside programs and tests", at(spec), name)
			}
		}
	})
}

// TestOneYAML: files of YAML are read by one package, which bounds them and says where a fault is.
func TestOneYAML(t *testing.T) {
	eachFile(t, func(p *pkg, s *source) {
		for _, spec := range s.ast.Imports {
			if strings.Contains(spec.Path.Value, "yaml") && !strings.Contains(spec.Path.Value, module) &&
				p.name != "internal/strictyaml" {
				t.Errorf("%s: %s; internal/strictyaml reads YAML", at(spec), spec.Path.Value)
			}
		}
	})
}
