package failure

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Unmarshal reads JSON as encoding/json does; the error about a value of another type is in the terms of the text, not
// of the Go type that it does not fit.
func Unmarshal(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}

	have := map[string]string{"array": "a list", "object": "an object", "bool": "true or false"}[wrong.Value]
	if number, ok := strings.CutPrefix(wrong.Value, "number "); ok {
		have = number
	} else if have == "" {
		have = "a " + wrong.Value
	}

	want := "a whole number"
	switch wrong.Type.Kind() {
	case reflect.Bool:
		want = "true or false"
	case reflect.String:
		want = "a string"
	case reflect.Slice:
		want = "a list"
	case reflect.Map, reflect.Struct:
		want = "an object"
	}

	place := ""
	if wrong.Field != "" {
		place = wrong.Field + ": "
	}
	return fmt.Errorf("%s%.40s, where %s is expected", place, have, want)
}
