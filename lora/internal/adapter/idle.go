package adapter

import (
	"fmt"
	"slices"
	"strings"
)

// Idle refuses settings that have no effect on a model: excluded names and blocks that it does not have, and
// patterns of ranks and alphas that no adapted module fits. The error wraps ErrTarget.
func (c *Config) Idle(modules []Module) error {
	blocks := 0
	for _, m := range modules {
		blocks = max(blocks, m.Block+1)
	}

	for _, n := range c.Layers {
		if n < 0 || n >= blocks {
			return fmt.Errorf("%w: block %d of layers_to_transform; the model has blocks 0 to %d", ErrTarget, n,
				blocks-1)
		}
	}

	for _, m := range excluded(c.Exclude) {
		out, err := m.compile("exclude_modules")
		if err != nil {
			return err
		}

		if !slices.ContainsFunc(modules, func(m Module) bool { _, hit := out(m); return hit }) {
			return fmt.Errorf("%w: %.200q of exclude_modules matches no module; the model has %s", ErrTarget,
				m.Regex+strings.Join(m.Names, ""), known(modules))
		}
	}

	chosen, err := c.Chosen(modules)
	if err != nil {
		return err
	}

	if err := fitting("rank_pattern", c.RankPattern, chosen); err != nil {
		return err
	}

	return fitting("alpha_pattern", c.AlphaPattern, chosen)
}

// fitting refuses patterns that no module fits.
func fitting(key string, list []Pattern, modules []Module) error {
	for _, p := range list {
		re, err := compile(key, patternOf(p))
		if err != nil {
			return err
		}

		if !slices.ContainsFunc(modules, func(m Module) bool { return re.MatchString(m.Path) }) {
			return fmt.Errorf("%w: %.200q of %s matches no adapted module; there are %s", ErrTarget, p.Key, key,
				known(modules))
		}
	}

	return nil
}

// excluded takes a match apart into its entries.
func excluded(m Match) (list []Match) {
	if m.Regex != "" {
		return []Match{{Regex: m.Regex}}
	}
	for _, n := range m.Names {
		list = append(list, Match{Names: []string{n}})
	}
	return list
}
