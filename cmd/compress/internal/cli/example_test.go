package cli_test

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// A verb with a flag of its own; what Run returns is printed with --json.
func ExampleApp_Verb() {
	type result struct {
		Words int `json:"words"`
	}
	a := cli.New([]string{"count", "three", "more", "words", "--double"}, os.Stdout, os.Stdout)
	double := false
	cmd := a.Verb(cli.Verb{
		Use: "count WORD...", Short: "Count words", Long: "Counts the words of the command line.",
		Example: "compress count a b",
		Args:    cobra.MinimumNArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) {
			r := result{len(args)}
			if double {
				r.Words *= 2
			}
			j.Printf("%d words\n", r.Words)
			return r, nil
		},
	})

	cmd.Flags().BoolVar(&double, "double", false, "count every word twice")
	root := &cobra.Command{Use: "compress"}
	root.AddCommand(cmd)
	a.Execute(context.Background(), root)
	// Output: 6 words
}
