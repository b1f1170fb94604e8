package cli

import "strconv"

// Common repeats --device, --threads and --seed as far as they were given: what a verb hands on to other verbs
// that it runs.
func (j *Job) Common() (flags []string) {
	if j.device != "auto" {
		flags = append(flags, "--device", j.device)
	}
	if j.threads != 0 {
		flags = append(flags, "--threads", strconv.Itoa(j.threads))
	}
	if j.Seed != 0 {
		flags = append(flags, "--seed", strconv.FormatUint(j.Seed, 10))
	}

	return flags
}
