package main

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
)

// distribution is the name of the package for pip, Homebrew and Debian: "compress" is taken there.
const distribution = "compress-models"

// pythonVersion is a version in the words of Python's packages: 0.1.0-dev+1a2b is 0.1.0.dev0+1a2b.
func pythonVersion(v string) string {
	base, local, _ := strings.Cut(v, "+")
	base = strings.Replace(base, "-dev", ".dev0", 1)
	if local != "" {
		base += "+" + local
	}
	return base
}

var described = regexp.MustCompile(`(?m)^"""([^"\n]*)`)

// wheel writes the Python package of a platform: the program as a script, as pip puts beside python, and a module that
// runs it.
func (r *release) wheel(t target, exe string, binary []byte) error {
	files, err := r.read(".release/python/compress", "__init__.py", "__main__.py")
	if err != nil {
		return err
	}
	for i := range files {
		files[i].name = "compress/" + files[i].name
	}
	summary := described.FindSubmatch(files[0].data)
	if summary == nil {
		return fmt.Errorf("the Python module does not begin with a line about itself")
	}

	version, name := pythonVersion(r.version), strings.ReplaceAll(distribution, "-", "_")
	info, data := fmt.Sprintf("%s-%s.dist-info/", name, version), fmt.Sprintf("%s-%s.data/", name, version)
	files = append(files, entry{data + "scripts/" + exe, 0o755, binary})

	papers, err := r.read("", "LICENSE", "THIRD_PARTY_LICENSES.txt", "README.md")
	if err != nil {
		return err
	}
	for _, p := range papers[:2] {
		files = append(files, entry{info + "licenses/" + p.name, p.mode, p.data})
	}

	var meta strings.Builder
	fmt.Fprintf(&meta, "Metadata-Version: 2.4\nName: %s\nVersion: %s\nSummary: %s\n", distribution, version, summary[1])
	meta.WriteString("License-Expression: " + license + "\n")
	meta.WriteString("License-File: LICENSE\nLicense-File: THIRD_PARTY_LICENSES.txt\n")
	meta.WriteString("Project-URL: Source, " + homepage + "\nRequires-Python: >=3.8\n")
	meta.WriteString("Description-Content-Type: text/markdown\n\n")
	meta.Write(r.absolute(papers[2].data))
	files = append(files, entry{info + "METADATA", 0o644, []byte(meta.String())})

	var tags strings.Builder
	tags.WriteString("Wheel-Version: 1.0\nGenerator: compress-release\nRoot-Is-Purelib: false\n")
	for platform := range strings.SplitSeq(t.wheel, ".") {
		tags.WriteString("Tag: py3-none-" + platform + "\n")
	}
	files = append(files, entry{info + "WHEEL", 0o644, []byte(tags.String())})

	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	record.WriteString(info + "RECORD,,\n")
	files = append(files, entry{info + "RECORD", 0o644, []byte(record.String())})

	archive, err := zipped(files, r.time)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("%s-%s-py3-none-%s.whl", name, version, t.wheel), archive)
}
