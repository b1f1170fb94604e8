package adapter

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/lm/arch"
)

// maxPattern bounds the length of regular expressions, which come from files.
const maxPattern = 64 << 10

// Chosen lists the modules that a configuration adapts, as [Config.Fits] does. An entry that matches no module
// is an error that wraps ErrTarget.
func (c *Config) Chosen(modules []Module) ([]Module, error) {
	list, unmatched, err := c.Fits(modules)
	if err != nil {
		return nil, err
	}

	if len(unmatched) > 0 {
		return nil, fmt.Errorf("%w: %.200q matches no module; the model has %s", ErrTarget, unmatched[0],
			known(modules))
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: target_modules, exclude_modules and layers_to_transform leave no module; the "+
			"model has %s", ErrTarget, known(modules))
	}

	return list, nil
}

// Fits lists the modules that a configuration adapts, in their order, by PEFT's rules: what is excluded, or
// lies inside a module that is trained whole, is not adapted; a restriction to some blocks does not hold for
// entries that are whole paths. unmatched are the entries of target_modules that no module fits.
func (c *Config) Fits(modules []Module) (list []Module, unmatched []string, err error) {
	target, err := c.Targets.compile("target_modules")
	if err != nil {
		return nil, nil, err
	}

	exclude, err := c.Exclude.compile("exclude_modules")
	if err != nil {
		return nil, nil, err
	}

	if c.Targets.Regex != "" && c.Layers != nil {
		return nil, nil, fmt.Errorf("%w: layers_to_transform needs target_modules as a list, not a regular expression",
			ErrConfig)
	}

	layer, err := c.layerFilter()
	if err != nil {
		return nil, nil, err
	}

	hit := map[string]bool{}
	for _, m := range modules {
		entry, ok := target(m)
		if !ok {
			continue
		}

		hit[entry] = true // a restriction is no mistake in the name
		if _, out := exclude(m); out || c.inWhole(m.Path) || entry != m.Path && !layer(m.Path) {
			continue
		}

		list = append(list, m)
	}

	for _, n := range c.Targets.Names {
		if !hit[n] && !slices.ContainsFunc(modules, func(m Module) bool {
			return m.Path == n ||
				strings.HasSuffix(m.Path, "."+n)
		}) {
			unmatched = append(unmatched, n)
		}
	}

	return list, unmatched, nil
}

// inWhole reports whether a module is, or lies inside, one that is trained whole.
func (c *Config) inWhole(path string) bool {
	return slices.ContainsFunc(c.WholeModules, func(name string) bool {
		return slices.Contains(strings.Split(path, "."), name) || path == name ||
			strings.Contains("."+path+".", "."+name+".")
	})
}

// compile makes a function of the match that gives the entry which a module fits.
func (m Match) compile(key string) (func(Module) (string, bool), error) {
	switch {
	case m.All:
		return func(mod Module) (string, bool) {
			return "", mod.Linear() || mod.Role == arch.EmbedIn || mod.Role == arch.EmbedOut
		}, nil
	case m.Regex != "":
		re, err := compile(key, `\A(?:`+m.Regex+`)\z`)
		if err != nil {
			return nil, err
		}
		return func(mod Module) (string, bool) { return m.Regex, re.MatchString(mod.Path) }, nil
	}

	return func(mod Module) (string, bool) {
		if slices.Contains(m.Names, mod.Path) {
			return mod.Path, true
		}
		i := slices.IndexFunc(m.Names, func(n string) bool { return strings.HasSuffix(mod.Path, "."+n) })
		if i < 0 {
			return "", false
		}
		return m.Names[i], true
	}, nil
}

func compile(key, pattern string) (*regexp.Regexp, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("%w: %s is longer than %d bytes", ErrConfig, key, maxPattern)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, key, err)
	}
	return re, nil
}

// layerFilter makes a function of the restriction to some blocks.
func (c *Config) layerFilter() (func(path string) bool, error) {
	if c.Layers == nil {
		if len(c.LayersPattern) > 0 {
			return nil, fmt.Errorf("%w: layers_pattern needs layers_to_transform", ErrConfig)
		}
		return func(string) bool { return true }, nil
	}

	patterns := []string{`.*?\.[^.]*\.(\d+)\.`}
	if len(c.LayersPattern) > 0 {
		patterns = nil
		for _, p := range c.LayersPattern {
			patterns = append(patterns, `.*?\.`+p+`\.(\d+)\.`)
		}
	}

	var res []*regexp.Regexp
	for _, p := range patterns {
		re, err := compile("layers_pattern", `\A`+p)
		if err != nil {
			return nil, err
		}
		res = append(res, re)
	}

	return func(path string) bool {
		for _, re := range res {
			if found := re.FindStringSubmatch(path); found != nil {
				n, err := strconv.Atoi(found[1])
				return err == nil && slices.Contains(c.Layers, n)
			}
		}
		return false
	}, nil
}

// RankAlpha gives the rank and alpha of a module by the patterns.
func (c *Config) RankAlpha() (func(path string) (int, float64), error) {
	ranks, err := compileAll("rank_pattern", c.RankPattern)
	if err != nil {
		return nil, err
	}

	alphas, err := compileAll("alpha_pattern", c.AlphaPattern)
	if err != nil {
		return nil, err
	}

	return func(path string) (int, float64) {
		return int(ranks(path, float64(c.Rank))), alphas(path, c.Alpha)
	}, nil
}

func compileAll(key string, list []Pattern) (func(path string, other float64) float64, error) {
	res := make([]*regexp.Regexp, len(list))
	for i, p := range list {
		var err error
		if res[i], err = compile(key, patternOf(p)); err != nil {
			return nil, err
		}
	}

	return func(path string, other float64) float64 {
		for i, re := range res {
			if re.MatchString(path) {
				return list[i].Value
			}
		}
		return other
	}, nil
}

// patternOf is a pattern as the regular expression of whole paths.
func patternOf(p Pattern) string { return `\A(?:.*\.)?(?:` + p.Key + `)\z` }

// known lists the last parts of the modules' names for messages.
func known(modules []Module) string {
	var names []string
	for _, m := range modules {
		n := m.Path[strings.LastIndexByte(m.Path, '.')+1:]
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}
