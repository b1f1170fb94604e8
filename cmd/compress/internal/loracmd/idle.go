package loracmd

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// only lists the flags that have an effect on some kinds only.
var only = []struct {
	flags, kinds []string
}{
	{[]string{"equivalent-rank", "shards", "private", "sampling", "paired"}, []string{"mos"}},
	{[]string{"dora", "lora-bias", "rank-pattern", "alpha-pattern"}, []string{"lora"}},
	{[]string{"d-initial"}, []string{"vera"}},
	{[]string{"unshared", "in-parts", "out-parts"}, []string{"prolora"}},
	{[]string{"mini-r"}, []string{"miss"}},
	{[]string{"gralora-k", "hybrid-r"}, []string{"gralora"}},
	{[]string{"shira-mask"}, []string{"shira"}},
	{[]string{"rasa-k"}, []string{"rasa"}},
	{[]string{"share"}, []string{"share"}},
	{[]string{"rslora"}, []string{"mos", "lora", "vera", "prolora", "share"}},
	{[]string{"alpha"}, []string{"mos", "lora", "vera", "prolora", "gralora", "rasa", "share"}},
	{[]string{"dropout", "bias"}, []string{"mos", "lora", "vera", "prolora", "miss", "gralora", "rasa", "share"}},
	{[]string{"lr-ratio"}, []string{"mos", "lora", "prolora", "gralora", "rasa", "share"}},
	{[]string{"rank"}, []string{"mos", "lora", "vera", "prolora", "miss", "gralora", "shira", "rasa", "share"}},
}

// sizes are the flags that say how large an adapter of a kind is.
var sizes = []string{
	"equivalent-rank", "shards", "private", "sampling", "paired", "unshared", "in-parts", "out-parts", "mini-r",
	"gralora-k", "hybrid-r", "shira-mask", "rasa-k", "share", "d-initial",
}

// Idle refuses flags that were given and would have no effect beside the others.
func Idle(f *pflag.FlagSet) error {
	if err := cli.CheckZeros(f); err != nil { // a configuration file has set some since the command line was checked
		return err
	}

	value := func(name string) string { return f.Lookup(name).Value.String() }
	kind := value("kind")
	if f.Changed("kind") || !f.Changed("init") {
		for _, o := range only {
			for _, name := range o.flags {
				if f.Changed(name) && !slices.Contains(o.kinds, kind) {
					return cli.Usagef("--%s is for --kind %s, not %s", name, strings.Join(o.kinds, ", "), kind)
				}
			}
		}
	}

	// The adapter to start from has sizes and places of its own.
	if f.Changed("init") {
		for _, name := range slices.Concat(sizes, []string{"targets", "exclude", "layers"}) {
			if f.Changed(name) {
				return cli.Usagef("--%s has no effect with --init: the adapter to start from has its own", name)
			}
		}
	}

	for _, pair := range [][2]string{
		{"eval-every", "eval"}, {"keep-best", "eval"}, {"allow-other-base", "init"}, {"teacher-stream", "teacher"},
	} {
		if f.Changed(pair[0]) && value(pair[1]) == "" {
			return cli.Usagef("--%s has no effect without --%s", pair[0], pair[1])
		}
	}

	for _, name := range []string{"distil-temperature", "distil-top", "distil-ce"} {
		if f.Changed(name) && value("teacher") == "" && value("teacher-cache") == "" {
			return cli.Usagef("--%s has no effect without --teacher or --teacher-cache", name)
		}
	}
	for _, name := range []string{"beta", "label-smoothing", "desirable-weight", "undesirable-weight"} {
		if f.Changed(name) && (value("objective") == "" || value("objective") == tokens) {
			return cli.Usagef("--%s has no effect without --objective dpo, orpo or kto", name)
		}
	}

	if f.Changed("batch") && value("batch") == "0" {
		return cli.Usagef("--batch 0: a step has at least one sequence")
	}
	if f.Changed("batch") && f.Changed("pack") && value("pack") != "0" {
		return cli.Usagef("--batch has no effect beside --pack, which fills steps by tokens")
	}

	return nil
}
