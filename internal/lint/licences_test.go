package lint

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var updateLicences = flag.Bool("update-licences", false, "write THIRD_PARTY_LICENSES.txt again")

// linked is a module whose code is in the program.
type linked struct{ name, version, licence, text string }

// TestLicences: THIRD_PARTY_LICENSES.txt, which has to go with every copy of the program, names each module
// that is linked into it, in the version at hand, with its licence, and each of them permits that by one of the
// licences of [permissive].
func TestLicences(t *testing.T) {
	want := licenceFile(t, append(linkedModules(t), goItself(t)))
	path := filepath.Join(root, "THIRD_PARTY_LICENSES.txt")
	if *updateLicences {
		if err := os.WriteFile(path, want, 0o666); err != nil {
			t.Fatal(err)
		}
	}

	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(head(got), head(want)) {
		t.Error("THIRD_PARTY_LICENSES.txt is not of the modules that are linked: go test ./internal/lint -run " +
			"Licences -update-licences")
	}
}

// head is the table of a licence file. The texts below it are left out: Go's own may differ between patch releases.
func head(text []byte) []byte {
	table, _, _ := bytes.Cut(text, []byte(rule))
	return table
}

const rule = "================================================================================\n"

// TestLibraryModules: a program that uses the library gets the few modules that the README speaks of, not those of the
// program compress.
func TestLibraryModules(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "./lm",
		"./prune", "./merge", "./lora", "./editeval", "./kernels/device")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	got := slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(out)))))
	want := []string{
		"github.com/apache/arrow-go/v18", "github.com/ebitengine/purego", "github.com/goccy/go-json",
		"github.com/goccy/go-yaml", "github.com/google/flatbuffers", "github.com/klauspost/compress",
		"github.com/klauspost/cpuid/v2", "github.com/pierrec/lz4/v4", "github.com/zeebo/xxh3", "golang.org/x/exp",
		"golang.org/x/sync", "golang.org/x/sys", "golang.org/x/text",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the library needs %q, README.md speaks of %q", got, want)
	}
}

// linkedModules asks the go command, for the largest of the builds.
func linkedModules(t *testing.T) []linked {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}", "./cmd/compress")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}

	lines := slices.Sorted(slices.Values(strings.Split(strings.TrimSpace(string(out)), "\n")))
	var list []linked
	for _, line := range slices.Compact(lines) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("go list says %q", line)
		}
		text := licenceText(t, f[2])
		list = append(list, linked{f[0], f[1], permissive(t, f[0], text), text})
	}

	return list
}

// goItself is the standard library and the run-time system. Its version is the language's, since patch releases
// have the same licence; some distributions keep the text elsewhere, which matters only when the file is
// written again.
func goItself(t *testing.T) linked {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}

	text := ""
	dir := strings.TrimSpace(string(out))
	if *updateLicences {
		text = licenceText(t, dir)
	}

	return linked{"Go standard library", "go1.26", "BSD-3-Clause", text}
}

func licenceText(t *testing.T, dir string) string {
	t.Helper()

	for _, name := range []string{"LICENSE", "LICENSE.md", "LICENSE.txt", "UNLICENSE"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		notice, _ := os.ReadFile(filepath.Join(dir, "NOTICE"))
		return strings.TrimSpace(string(text)+"\n"+string(notice)) + "\n"
	}

	t.Fatalf("%s has no licence file", dir)
	return ""
}

// permissive is the licence's SPDX name; another licence than these needs a decision, not a line here.
func permissive(t *testing.T, name, text string) string {
	t.Helper()

	switch {
	case strings.Contains(text, "Apache License"):
		return "Apache-2.0"
	case strings.Contains(text, "Permission is hereby granted, free of charge"):
		return "MIT"
	case strings.Contains(text, "Redistribution and use in source and binary forms") &&
		strings.Contains(text, "Neither the name"):
		return "BSD-3-Clause"
	case strings.Contains(text, "Redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	case strings.Contains(text, "This is free and unencumbered software"):
		return "Unlicense"
	}

	t.Fatalf("%s: this licence is not known to be permissive:\n%.200s", name, text)
	return ""
}

// licenceFile is a table, then each text once with the modules that it is for.
func licenceFile(t *testing.T, list []linked) []byte {
	t.Helper()
	slices.SortFunc(list, func(a, b linked) int { return cmp.Compare(a.name, b.name) })
	var out bytes.Buffer
	out.WriteString("Code of others that is linked into the program compress, and its licences.\n\n")
	for _, m := range list {
		fmt.Fprintf(&out, "%-62s %-48s %s\n", m.name, m.version, m.licence)
	}

	written := map[string]bool{}
	for _, m := range list {
		if written[m.text] {
			continue
		}

		written[m.text] = true
		out.WriteString("\n" + rule)

		for _, other := range list {
			if other.text == m.text {
				out.WriteString(other.name + "\n")
			}
		}

		out.WriteString("\n" + m.text)
	}

	return out.Bytes()
}
