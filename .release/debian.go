package main

import (
	"bytes"
	"compress/gzip"
	"crypto/md5" //nolint:gosec // what the format asks for; SHA256SUMS is what vouches for files
	"fmt"
	"strings"
	"time"
)

const (
	homepage = "https://github.com/modelcompress/compress"
	license  = "Apache-2.0"
	// nobody is whose package this is, until a distribution takes it up; .invalid is reserved for such names.
	nobody = "compress developers <developers@compress.invalid>"
)

// copyright is the file of that name in Debian's form: the package's name, its source and the year.
const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: %s
Source: %s

Files: *
Copyright: %d compress developers
License: Apache-2.0
Comment:
 The program also holds the modules in THIRD_PARTY_LICENSES.txt beside this file, under the licences there.

License: Apache-2.0
 The licence is in /usr/share/common-licenses/Apache-2.0 on Debian systems.
`

// debian writes the Debian package of a platform. Its program is called as the package, because ncompress owns
// /usr/bin/compress.
func (r *release) debian(t target, binary []byte, manual []entry) error {
	papers, err := r.read("", "THIRD_PARTY_LICENSES.txt")
	if err != nil {
		return err
	}

	version := strings.Replace(r.version, "-", "~", 1) // 0.1.0~dev comes before 0.1.0
	changes, err := gzipped(r.changes(version))
	if err != nil {
		return err
	}

	doc := "./usr/share/doc/" + distribution + "/"
	files := []entry{
		{"./usr/bin/" + distribution, 0o755, binary},
		{doc + "copyright", 0o644, fmt.Appendf(nil, copyright, distribution, homepage, r.time.Year())},
		{doc + "changelog.gz", 0o644, changes},
		{doc + "THIRD_PARTY_LICENSES.txt", 0o644, papers[0].data},
	}
	for _, page := range manual {
		name := strings.TrimPrefix(page.name, "man/")
		packed, err := gzipped(page.data)
		if err != nil {
			return err
		}
		name = strings.Replace(name, "compress", distribution, 1)
		files = append(files, entry{"./usr/share/man/man1/" + name + ".gz", 0o644, packed})
	}

	size := 0
	var sums strings.Builder
	for _, f := range files {
		size += len(f.data)
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), strings.TrimPrefix(f.name, "./"))
	}

	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\n"+
		"Depends: libc6\nSection: science\nPriority: optional\nHomepage: %s\n"+
		"Description: prune, merge, adapt, edit, quantise, score and serve language models\n"+
		" One program for checkpoints in Hugging Face folders and GGUF files. It needs\n"+
		" neither Python nor a GPU; NVIDIA's driver is used where it is installed.\n",
		distribution, version, t.deb, nobody, (size+1023)/1024, homepage)

	about, err := tarball([]entry{
		{"./control", 0o644, []byte(control)},
		{"./md5sums", 0o644, []byte(sums.String())},
	}, r.time)
	if err != nil {
		return err
	}
	data, err := tarball(files, r.time)
	if err != nil {
		return err
	}

	// The package is an ar archive of three members, each of an even length.
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range []entry{
		{"debian-binary", 0o644, []byte("2.0\n")},
		{"control.tar.gz", 0o644, about},
		{"data.tar.gz", 0o644, data},
	} {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, r.time.Unix(), 0, 0, "100644", len(m.data))
		b.Write(m.data)
		if len(m.data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return r.write(fmt.Sprintf("%s_%s_%s.deb", distribution, version, t.deb), b.Bytes())
}

// changes is the package's changelog: where the program's is. The address stands alone, since a line of a changelog that
// holds more has at most 80 columns.
func (r *release) changes(version string) []byte {
	return fmt.Appendf(nil, "%s (%s) unstable; urgency=medium\n\n  * What is new is in the program's changelog:\n"+
		"    %s/blob/%s/CHANGELOG.md\n\n -- %s  %s\n", distribution, version, homepage, r.commit, nobody,
		r.time.Format(time.RFC1123Z))
}

// gzipped is gzip -9n.
func gzipped(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	return done(&b, z.Close())
}
