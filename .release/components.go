package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// A list of components, as CycloneDX 1.5 has it.
type (
	bom struct {
		Format   string      `json:"bomFormat"`
		Spec     string      `json:"specVersion"`
		Version  int         `json:"version"`
		Metadata metadata    `json:"metadata"`
		Parts    []component `json:"components"`
	}
	metadata struct {
		Time string    `json:"timestamp"`
		Of   component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl"`
		Properties []property `json:"properties,omitempty"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// components lists the modules in the program of a platform, as the linker has noted them there: what other platforms
// or tests need is not among them.
func (r *release) components(t target, program string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}

	of := module("application", info.Main.Path, "v"+r.version, "")
	of.Properties = []property{{"platform", t.os + "/" + t.arch}}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "vcs.") || s.Key == "-tags" {
			of.Properties = append(of.Properties, property{"build:" + s.Key, s.Value})
		}
	}

	list := bom{
		Format: "CycloneDX", Spec: "1.5", Version: 1,
		Metadata: metadata{Time: r.time.Format(time.RFC3339), Of: of},
	}
	version := strings.TrimPrefix(info.GoVersion, "go")
	list.Parts = append(list.Parts, module("library", "std", version, ""))
	for _, d := range info.Deps {
		if d.Replace != nil {
			return nil, fmt.Errorf("%s: module %s is replaced, which no release has", program, d.Path)
		}
		list.Parts = append(list.Parts, module("library", d.Path, d.Version, d.Sum))
	}

	text, err := json.MarshalIndent(list, "", "  ")
	return append(text, '\n'), err
}

// module is a Go module; sum is that of go.sum, unless empty.
func module(kind, path, version, sum string) component {
	purl := "pkg:golang/" + path + "@" + url.QueryEscape(version)
	c := component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	return c
}
