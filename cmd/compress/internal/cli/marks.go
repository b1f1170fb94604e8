package cli

import "github.com/spf13/pflag"

// IsInput tells a flag that names something to be read; see [Inputs].
func IsInput(f *pflag.Flag) bool { return f.Annotations[inputMark] != nil }

// TakesEmpty tells a flag for which an empty text is a value; see [MayBeEmpty].
func TakesEmpty(f *pflag.Flag) bool { return f.Annotations[emptyMark] != nil }
