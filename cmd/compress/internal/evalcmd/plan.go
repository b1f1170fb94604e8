package evalcmd

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/modelcompress/compress/internal/strictyaml"
)

func readPlanText(file string, text []byte) (*Plan, error) {
	p, err := parsePlan(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", file, ErrPlan, planFault(err))
	}
	return p, p.check(file)
}

// CheckPlan finds what is wrong with a plan by itself.
func CheckPlan(file string, text []byte) error {
	_, err := readPlanText(file, text)
	return err
}

// parsePlan reads the YAML. Its parser panics on some tags that do not fit; that is an error here.
func parsePlan(text []byte) (p *Plan, err error) {
	defer func() {
		if recover() != nil {
			p, err = nil, errors.New("a tag (!!) that is not for this place")
		}
	}()

	// the decoder writes aliases out, however many there are
	if _, err := strictyaml.Parse("", text); errors.Is(err, strictyaml.ErrLimit) {
		return nil, errors.New("too many values, or too deep; aliases count as often as they are used")
	}

	p = &Plan{}
	return p, yaml.UnmarshalWithOptions(text, p, yaml.Strict())
}

// planFault is what the YAML package has to say, without the names of this program's own types.
func planFault(err error) string {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) || wrong.Token == nil {
		return strings.TrimSpace(yaml.FormatError(err, false, false))
	}

	want, ok := map[reflect.Kind]string{
		reflect.Int: "a whole number", reflect.String: "a text", reflect.Bool: "true or false", reflect.Slice: "a list",
		reflect.Struct: "keys and values",
	}[wrong.DstType.Kind()]
	if !ok {
		want = "something else"
	}

	at := wrong.Token.Position
	return fmt.Sprintf("line %d, column %d: %s: want %s", at.Line, at.Column, wrong.Token.Value, want)
}
