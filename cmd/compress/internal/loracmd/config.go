package loracmd

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// maxConfig is the size of the largest file of settings.
const maxConfig = 64 << 10

// errConfig: a file of settings that cannot be used.
var errConfig = cli.Usagef("unusable settings")

// Configure sets flags from a YAML file whose keys are the flags' names. Flags of the command line win. A key
// that is no flag, a list in a list and a second document are errors; all faults are named at their places.
func Configure(path string, flags *pflag.FlagSet, keys []string) error {
	text, err := small(path, maxConfig)
	if err != nil {
		return err
	}

	src, err := strictyaml.Parse(path, []byte(text))
	if err != nil {
		return strictyaml.OneLine(errConfig, err)
	}

	r := src.NewReader()
	top := r.Only(src, "a file of settings")
	if top == nil {
		return nil
	}

	o := r.Object(top, "the settings")
	for _, key := range keys {
		o.Get(key)
	}

	o.Close()
	for _, e := range top.Entries {
		if list, ok := words(r, e.Key, e.Value); ok && slices.Contains(keys, e.Key) {
			set(r, flags, e, list)
		}
	}

	return strictyaml.OneLine(errConfig, r.Err())
}

// words takes the words of a value: of a scalar one, of a list as many as it has.
func words(r *strictyaml.Reader, key string, n *strictyaml.Node) (list []string, ok bool) {
	items := []*strictyaml.Node{n}
	if n.Kind == strictyaml.List {
		items = n.Items
	}

	for _, item := range items {
		switch {
		case item.Kind == strictyaml.Scalar:
			list = append(list, item.Text)
			continue
		case item.Kind == strictyaml.List:
			r.Add(item.Place, strictyaml.ErrType, "%s: a list in a list", key)
		case item.Kind == strictyaml.Null:
			r.Add(item.Place, strictyaml.ErrType, "%s: no value", key)
		default:
			r.Add(item.Place, strictyaml.ErrType, "%s: %s, which is no number, no text and no list of them", key,
				item.Kind)
		}
		return nil, false
	}

	return list, true
}

// set gives a flag a value of the file, unless the command line has given it one.
func set(r *strictyaml.Reader, flags *pflag.FlagSet, e strictyaml.Entry, list []string) {
	flag := flags.Lookup(e.Key)
	if flag.Changed {
		return
	}

	err := errors.New("no value")
	files, several := flag.Value.(*Files)
	switch {
	case len(list) == 0 && several: // an empty list of anything else is an empty text
	case several && e.Value.Kind == strictyaml.List: // their names may hold commas
		err = files.Replace(list)
		flag.Changed = true
	default:
		err = flags.Set(e.Key, strings.Join(list, ","))

		// A count may be written as 1e3 or 20.0, and a switch as yes, which no flag takes. But a rank of yes is none.
		x, ok := e.Value.Number()
		truth := !strings.ContainsAny(e.Value.Text, "0123456789")
		if err != nil && ok && !e.Value.Quoted && truth == (flag.Value.Type() == "bool") {
			err = flags.Set(e.Key, strconv.FormatFloat(x, 'f', -1, 64))
		}
	}

	var bad *pflag.InvalidValueError
	switch {
	case errors.As(err, &bad):
		r.Add(e.Value.Place, strictyaml.ErrValue, "%s", cli.BadValue(bad))
	case err != nil:
		r.Add(e.Value.Place, strictyaml.ErrValue, "%s: %v", e.Key, err)
	}
}
