package evalcmd

import "github.com/modelcompress/compress/internal/strictyaml"

func readPlanText(file string, text []byte) (*Plan, error) {
	p, err := parsePlan(file, text)
	if err != nil {
		return nil, strictyaml.OneLine(ErrPlan, err)
	}
	return p, p.check(file)
}

// CheckPlan finds what is wrong with a plan by itself.
func CheckPlan(file string, text []byte) error {
	_, err := readPlanText(file, text)
	return err
}

// parsePlan reads the YAML.
func parsePlan(file string, text []byte) (*Plan, error) {
	src, err := strictyaml.Parse(file, text)
	if err != nil {
		return nil, err
	}

	p := &Plan{}
	r := src.NewReader()
	if n := r.Only(src, "a plan"); n != nil {
		r.Decode(n, "a plan", p)
	}

	return p, r.Err()
}
