// Package build names the build that a program is of.
package build

import "runtime/debug"

// release is the version of the source tree; the next release's number with "-dev" between releases.
const release = "0.1.0-dev"

// Version is the version of the toolkit, as reports carry it: the module version when it was installed as a module
// ("v1.2.3"), otherwise the version of the source tree with the revision it was built from ("0.1.0-dev+1a2b3c4d5e6f",
// with ".dirty" for changed files; without a revision where the build has none).
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}

	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == "github.com/modelcompress/compress" && isRelease(m.Version) {
			return m.Version
		}
	}

	return release + revision(info.Settings)
}

// isRelease tells a tagged module version from the pseudo-versions and "(devel)" of builds inside a checkout.
func isRelease(v string) bool {
	if len(v) < 2 || v[0] != 'v' {
		return false
	}
	for _, c := range v[1:] {
		if c != '.' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func revision(settings []debug.BuildSetting) string {
	var rev, dirty string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			rev = "+" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ".dirty"
		}
	}

	if rev == "" {
		return ""
	}

	return rev + dirty
}
