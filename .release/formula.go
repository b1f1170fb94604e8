package main

import (
	"fmt"
	"strings"
)

// formula writes what Homebrew installs the program by: a file for a tap, with the sums of the archives of four
// platforms.
func (r *release) formula(sums map[string]string) error {
	if len(sums) < 4 {
		return nil // not a whole release
	}

	archive := func(platform string) string {
		name := fmt.Sprintf("compress_%s_%s.tar.gz", r.version, strings.ReplaceAll(platform, "/", "_"))
		return fmt.Sprintf("      url \"%s/v%s/%s\"\n      sha256 \"%s\"\n", r.url, r.version,
			strings.ReplaceAll(name, "+", "%2B"), sums[platform])
	}

	var b strings.Builder
	b.WriteString("class CompressModels < Formula\n")
	b.WriteString("  desc \"Prune, merge, adapt, edit, quantise, score and serve language models\"\n")
	fmt.Fprintf(&b, "  homepage %q\n  version %q\n  license %q\n", homepage, r.version, license)
	for _, system := range [][2]string{{"macos", "darwin"}, {"linux", "linux"}} {
		fmt.Fprintf(&b, "\n  on_%s do\n", system[0])
		for _, processor := range [][2]string{{"arm", "arm64"}, {"intel", "amd64"}} {
			fmt.Fprintf(&b, "    on_%s do\n%s    end\n", processor[0], archive(system[1]+"/"+processor[1]))
		}
		b.WriteString("  end\n")
	}
	b.WriteString("\n  def install\n    bin.install \"compress\"\n    man1.install Dir[\"man/*.1\"]\n  end\n\n")
	b.WriteString("  test do\n    assert_match version.to_s, shell_output(\"#{bin}/compress --version\")\n  end\nend\n")
	return r.write(distribution+".rb", []byte(b.String()))
}
