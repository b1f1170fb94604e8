// Package schema holds the JSON Schemas (draft 2020-12) of what the verbs print with --json and write to
// --report. A test of the command keeps them equal to the program's types and checks the output of every verb
// against them.
package schema

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

//go:embed files
var files embed.FS

const ending = ".schema.json"

// File is the name of a verb's schema: "lora train" has lora-train.schema.json.
func File(verb string) string { return strings.ReplaceAll(verb, " ", "-") + ending }

// Verbs lists the verbs that have a schema, as they are written on the command line.
func Verbs(root *cobra.Command) (list []string) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		verb := strings.TrimPrefix(c.CommandPath(), root.Name()+" ")
		if _, err := files.ReadFile("files/" + File(verb)); err == nil && c != root {
			list = append(list, verb)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}

	walk(root)
	return list
}

// Raw is a schema, printed as it is with --json.
type Raw []byte

// Raw does nothing: see [shell.Raw].
func (Raw) Raw() {}

// MarshalJSON gives the schema.
func (r Raw) MarshalJSON() ([]byte, error) { return r, nil }

// Show prints the schema of a verb, or the list of those that have one.
func Show(j *cli.Job, root *cobra.Command, verb string) (any, error) {
	known := Verbs(root)
	if verb == "" {
		j.Printf("%s\n", strings.Join(known, "\n"))
		return struct {
			Verbs []string `json:"verbs"`
		}{known}, nil
	}

	if !slices.Contains(known, verb) {
		return nil, cli.Usagef("no schema of %.60q (HINT: compress schema lists the verbs that have one)", verb)
	}

	text, err := files.ReadFile("files/" + File(verb))
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", verb, err)
	}

	j.Printf("%s", text)
	return Raw(text), nil
}
