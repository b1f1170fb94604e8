package compress

import "github.com/modelcompress/compress/internal/build"

// Version is the version of the toolkit, as reports carry it: the module version when it was installed as a module
// ("v1.2.3"), otherwise the version of the source tree with the revision it was built from ("0.1.0-dev+1a2b3c4d5e6f",
// with ".dirty" for changed files; without a revision where the build has none).
func Version() string { return build.Version() }
