package cli

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/internal/cputime"
	models "github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// Head is what every report says about the run that made it, beside the result of its verb: the keys that all
// of --report, --json and the report.json of a folder have.
type Head struct {
	Command string   `json:"command"` // full name of the verb, such as "compress lora train"
	Args    []string `json:"args"`    // the command line, without the program
	// the value of every flag of the verb, given or not, by its name
	Flags     map[string]any   `json:"flags"`
	Version   string           `json:"version"`             // of the program
	Seed      uint64           `json:"seed"`                // of everything that is drawn
	Started   string           `json:"started"`             // RFC 3339, UTC
	Finished  string           `json:"finished"`            // RFC 3339, UTC
	Seconds   float64          `json:"seconds"`             // from start to finish
	CPU       float64          `json:"cpu_seconds"`         // processor time of the process, on all of its threads
	Memory    int64            `json:"peak_memory_bytes"`   // most that the process had in memory at a time
	Device    *kernels.Info    `json:"device,omitempty"`    // where it computed; missing for work that needs no device
	Fallbacks map[string]int64 `json:"fallbacks,omitempty"` // operations that were left to the reference backend
	Remarks   []string         `json:"remarks,omitempty"`   // what a reader of the result must know
	// the models among the inputs whose values are those of a quantised form, and that form
	Quantised []models.Quantised `json:"source_quantization,omitempty"`
}

// head is what the run says about itself now.
func (j *Job) head() Head {
	now := time.Now()
	h := Head{
		Command: j.verb.CommandPath(), Args: withoutSecrets(j.app.args), Flags: flagValues(j.verb),
		Version: compress.Version(), Seed: j.Seed,
		Started: j.start.UTC().Format(time.RFC3339), Finished: now.UTC().Format(time.RFC3339),
		Seconds: now.Sub(j.start).Seconds(),
		CPU:     cputime.Process().Seconds(),
		Memory:  PeakMemory(), Remarks: j.remarks, Quantised: j.opened.Models(),
	}

	if j.dev != nil {
		info := j.dev.Info()
		h.Device, h.Fallbacks = &info, device.Fallbacks(j.dev)
	}

	return h
}

// Flags are the values of all flags, by name, as reports have them.
func (j *Job) Flags() map[string]any { return flagValues(j.verb) }

// secret is a name and a password in the address of a cluster: all up to the last @ of the host, as the password may
// hold others.
var secret = regexp.MustCompile(`(://)[^/,\s]*@`)

// clusterFlag takes addresses, which may lack their scheme.
const clusterFlag = "cluster"

// bare is what [secret] is, of the addresses without a scheme in a value of [clusterFlag].
var bare = regexp.MustCompile(`(^|,)(\s*)[^/,\s]*@`)

// withoutSecrets is a command line as it may be kept.
func withoutSecrets(args []string) []string {
	list := make([]string, len(args))
	for i, a := range args {
		list[i] = secret.ReplaceAllString(a, "$1")

		if i > 0 && args[i-1] == "--"+clusterFlag {
			list[i] = bare.ReplaceAllString(list[i], "$1$2")
		} else if value, ok := strings.CutPrefix(list[i], "--"+clusterFlag+"="); ok {
			list[i] = "--" + clusterFlag + "=" + bare.ReplaceAllString(value, "$1$2")
		}
	}

	return list
}

// flagValues are the values of a verb's flags as JSON has them: numbers, truth values, texts and lists of texts.
func flagValues(c *cobra.Command) map[string]any {
	all := map[string]any{}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			all[f.Name] = flagValue(f)
		}
	})
	return all
}

func flagValue(f *pflag.Flag) any {
	if own, ok := f.Value.(interface{ Reported() any }); ok {
		return own.Reported()
	}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return withoutSecrets(list.GetSlice())
	}

	text := secret.ReplaceAllString(f.Value.String(), "$1")
	if f.Name == clusterFlag {
		text = bare.ReplaceAllString(text, "$1$2")
	}

	switch f.Value.Type() {
	case "bool":
		return text == "true"
	case "int", "int64":
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	case "uint64":
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return n
		}
	case "float64":
		if x, err := strconv.ParseFloat(text, 64); err == nil && x-x == 0 {
			return x
		}
	}

	return text
}
