package loracmd

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// maxConfig is the size of the largest file of settings.
const maxConfig = 64 << 10

// Configure sets flags from a YAML file whose keys are the flags' names. Flags of the command line win. A key
// that is no flag, a list in a list and a second document are errors.
func Configure(path string, flags *pflag.FlagSet, keys []string) error {
	text, err := small(path, maxConfig)
	if err != nil {
		return err
	}

	items, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	var faults []error
	for _, item := range items {
		key, ok := item.Key.(string)
		if !ok || !slices.Contains(keys, key) {
			faults = append(faults,
				cli.Usagef("%s: unknown key %v; known: %s", path, item.Key, strings.Join(keys, ", ")))
			continue
		}

		err := set(flags, key, item.Value)
		if err != nil {
			faults = append(faults, cli.Usagef("%s: %s: %w", path, key, err))
		}
	}

	return errors.Join(faults...)
}

// set gives a flag a value of the file, unless the command line has given it one.
func set(flags *pflag.FlagSet, key string, v any) error {
	value, err := scalar(v)
	if err != nil || flags.Changed(key) {
		return err
	}

	items, several := v.([]any)
	files, ok := flags.Lookup(key).Value.(*Files)
	if !several || !ok {
		return flags.Set(key, value)
	}

	if len(items) == 0 {
		return errors.New("no value")
	}

	for _, item := range items { // whose names may hold commas
		name, err := scalar(item)
		if err == nil {
			err = files.Append(name)
		}
		if err != nil {
			return err
		}
	}

	flags.Lookup(key).Changed = true
	return nil
}

// parse reads one mapping. The parser panics on some tags that do not fit; that is an error here.
func parse(text string) (items yaml.MapSlice, err error) {
	defer func() {
		if recover() != nil {
			items, err = nil, cli.Usagef("a tag (!!) that is not for this place")
		}
	}()
	if err := yaml.UnmarshalWithOptions([]byte(text), &items, yaml.Strict()); err != nil {
		return nil, cli.Usagef("%s", strings.SplitN(err.Error(), "\n", 2)[0])
	}
	return items, nil
}

// scalar is a value as the command line has it; lists become words between commas.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case []any:
		var words []string
		for _, x := range v {
			if _, nested := x.([]any); nested {
				return "", errors.New("a list in a list")
			}

			w, err := scalar(x)
			if err != nil {
				return "", err
			}
			words = append(words, w)
		}

		return strings.Join(words, ","), nil
	case string, bool, int, int64, uint64, float64:
		return fmt.Sprint(v), nil
	case nil:
		return "", errors.New("no value")
	}

	return "", errors.New("neither a number, a text nor a list of them")
}
