package compress

import "embed"

// Pages are the project's own pages and their pictures, under their paths in the repository: README.md, docs/… and
// what else stands beside them. The program serves them with compress docs.
//
//go:embed README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md testdata/README.md docs
var Pages embed.FS
