package cli

import (
	"regexp"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NotZero marks flags of numbers whose 0 is no value of their own but stands for the default, as it does in the
// options of the libraries: given explicitly, it is refused instead of meaning another number without a word. A flag
// whose own default is 0 and whose help says a number as the default needs no mark.
func NotZero(cmd *cobra.Command, flags ...string) { mark(cmd, zeroMark, flags) }

// saidDefault is the default that a help text says.
var saidDefault = regexp.MustCompile(`\(default: (.*)\)$`)

// otherNumber is such a text that begins with a number other than 0.
var otherNumber = regexp.MustCompile(`^-?(0*\.0*)?[1-9]`)

// CheckZeros refuses flags that were given as 0 where that stands for their default; see [NotZero].
func CheckZeros(set *pflag.FlagSet) (err error) {
	set.Visit(func(f *pflag.Flag) {
		if value, bad := strconv.ParseFloat(f.Value.String(), 64); bad != nil || value != 0 || err != nil {
			return
		}
		switch f.Value.Type() {
		case "int", "int64", "uint64", "float64":
		default:
			return
		}

		standard := f.DefValue
		if said := saidDefault.FindStringSubmatch(f.Usage); standard == "0" && said != nil {
			standard = said[1]
		}
		if f.Annotations[zeroMark] != nil || f.DefValue == "0" && otherNumber.MatchString(standard) {
			err = Usagef("--%s 0: want another number than 0 (HINT: leave it out for the default: %s)", f.Name,
				standard)
		}
	})
	return err
}
