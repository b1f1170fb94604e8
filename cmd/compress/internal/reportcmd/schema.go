package reportcmd

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

//go:embed schemas
var schemas embed.FS

const schemaEnding = ".schema.json"

// SchemaFile is the name of a verb's schema: "lora train" has lora-train.schema.json.
func SchemaFile(verb string) string { return strings.ReplaceAll(verb, " ", "-") + schemaEnding }

// SchemaVerbs lists the verbs that have a schema, as they are written on the command line.
func SchemaVerbs(root *cobra.Command) (list []string) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		verb := strings.TrimPrefix(c.CommandPath(), root.Name()+" ")
		if _, err := schemas.ReadFile("schemas/" + SchemaFile(verb)); err == nil && c != root {
			list = append(list, verb)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}

	walk(root)
	return list
}

// SchemaText is a schema, printed as it is with --json.
type SchemaText []byte

// SchemaText does nothing: see [cli.Raw].
func (SchemaText) Raw() {}

// MarshalJSON gives the schema.
func (r SchemaText) MarshalJSON() ([]byte, error) { return r, nil }

// Schema prints the schema of a verb, or the list of those that have one.
func Schema(j *cli.Job, root *cobra.Command, verb string) (any, error) {
	known := SchemaVerbs(root)
	if verb == "" {
		j.Printf("%s\n", strings.Join(known, "\n"))
		return struct {
			Verbs []string `json:"verbs"`
		}{known}, nil
	}

	if !slices.Contains(known, verb) {
		return nil, cli.Usagef("no schema of %.60q (HINT: compress schema lists the verbs that have one)", verb)
	}

	text, err := schemas.ReadFile("schemas/" + SchemaFile(verb))
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", verb, err)
	}

	j.Printf("%s", text)
	return SchemaText(text), nil
}

// SchemaOf is the schema of a verb of [SchemaVerbs].
func SchemaOf(verb string) []byte {
	text, err := schemas.ReadFile("schemas/" + SchemaFile(verb))
	if err != nil {
		panic("reportcmd: " + err.Error())
	}
	return text
}
