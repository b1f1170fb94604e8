package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name string
	mode int64
	data []byte
}

// pack writes what there is of a platform: archive, components, wheel, Debian package.
func (r *release) pack(t target, program, pages string, sums map[string]string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	papers, err := r.read("", "LICENSE", "THIRD_PARTY_LICENSES.txt", "README.md")
	if err != nil {
		return err
	}
	papers[2].data = r.absolute(papers[2].data)
	manual, err := manualPages(pages)
	if err != nil {
		return err
	}

	name := fmt.Sprintf("compress_%s_%s_%s", r.version, t.os, t.arch)
	ending, pack, exe := ".tar.gz", tarball, "compress"
	if t.os == "windows" {
		ending, pack, exe = ".zip", zipped, "compress.exe"
	}

	files := slices.Concat([]entry{{exe, 0o755, binary}}, papers)
	if t.os != "windows" {
		files = append(files, manual...)
	}
	for i := range files {
		files[i].name = name + "/" + files[i].name
	}
	archive, err := pack(files, r.time)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(archive)
	sums[t.os+"/"+t.arch] = hex.EncodeToString(sum[:])

	list, err := r.components(t, program)
	if err != nil {
		return err
	}
	if err := errors.Join(r.write(name+ending, archive), r.write(name+".cdx.json", list)); err != nil {
		return err
	}
	if err := r.wheel(t, exe, binary); err != nil || t.deb == "" {
		return err
	}
	return r.debian(t, binary, manual)
}

// read reads files of the repository, which are called by their last names.
func (r *release) read(under string, names ...string) (list []entry, err error) {
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(r.src, filepath.FromSlash(under), name))
		if err != nil {
			return nil, err
		}
		list = append(list, entry{name, 0o644, data})
	}
	return list, nil
}

// manualPages reads the pages that the program has written.
func manualPages(dir string) (list []entry, err error) {
	found, err := os.ReadDir(dir)
	for _, e := range found {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, entry{"man/" + e.Name(), 0o644, data})
	}
	return list, err
}

// write writes a file of the release.
func (r *release) write(name string, data []byte) error {
	r.files = append(r.files, name)
	return os.WriteFile(filepath.Join(r.out, name), data, 0o666)
}

// sign writes the checksums of everything, and with a key their signature. All of it can be checked with what systems
// bring along: sha256sum and ssh-keygen.
func (r *release) sign(key string) error {
	slices.Sort(r.files)
	var text strings.Builder
	for _, name := range r.files {
		data, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(data), name)
	}

	const name = "SHA256SUMS"
	if err := r.write(name, []byte(text.String())); err != nil || key == "" {
		return err
	}
	cmd := exec.Command("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "compress-release",
		filepath.Join(r.out, name))
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	r.files = append(r.files, name+".sig")
	return cmd.Run()
}

// tarball makes a .tar.gz; what it says of owners and times is the same everywhere.
func tarball(files []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)

	// Folders are entries too: a package manager asks for them.
	made := map[string]bool{}
	for _, f := range files {
		for i, c := range f.name {
			if dir := f.name[:i]; c == '/' && dir != "." && !made[dir] {
				made[dir] = true
				if err := w.WriteHeader(&tar.Header{
					Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at, Uname: "root", Gname: "root",
					Format: tar.FormatUSTAR,
				}); err != nil {
					return nil, err
				}
			}
		}

		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: at,
			Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}

	return done(&b, w.Close(), z.Close())
}

// zipped makes a .zip.
func zipped(files []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		h.SetMode(os.FileMode(f.mode))
		to, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.data); err != nil {
			return nil, err
		}
	}
	return done(&b, w.Close())
}

// done gives what was written, unless an error says that it is not all.
func done(b *bytes.Buffer, errs ...error) ([]byte, error) { return b.Bytes(), errors.Join(errs...) }
