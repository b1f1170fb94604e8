package arch

import "math"

// latent reads the widths of latent attention (DeepSeek-V2, 2024).
func (r *configReader) latent(c *Config) {
	if !r.has("kv_rank") {
		return
	}

	c.QRank = r.integerOr("q_rank", 0, maxDim, 0)
	c.KVRank, _ = r.integer("kv_rank", 1, maxDim)
	c.NopeDim, _ = r.integer("nope_dim", 1, maxDim)
	c.RopeDim, _ = r.integer("rope_dim", 2, maxDim)
	c.VDim, _ = r.integer("v_dim", 1, maxDim)
	c.KVHeads = c.Heads
	c.HeadDim = max(c.NopeDim+c.RopeDim, c.VDim)

	eps, _ := r.float("latent_eps")
	c.LatentEps = float32(eps)
}

// latentDim gives the size of a dimension of latent attention.
func (c *Config) latentDim(name string) (int64, bool) {
	heads := int64(c.Heads)
	switch name {
	case "qk":
		return heads * int64(c.NopeDim+c.RopeDim), true
	case "v":
		return heads * int64(c.VDim), true
	case "q_rank":
		return int64(c.QRank), true
	case "kv_rank":
		return int64(c.KVRank), true
	case "kv_a":
		return int64(c.KVRank + c.RopeDim), true
	case "kv_b":
		return heads * int64(c.NopeDim+c.VDim), true
	}
	return 0, false
}

// falconHeads works out the key/value heads where two flags decide them: multi_query means one, unless grouped_kv says
// that their number counts.
func (r *configReader) falconHeads(c *Config) {
	multi, grouped := r.flag("multi_query"), r.flag("grouped_kv")
	if multi && !grouped {
		c.KVHeads = 1
	}
}

// twoNorms reports whether parallel branches have a norm each: by their number, which where it is absent follows from
// grouped_kv, as those that go without it have one norm whatever the number.
func (r *configReader) twoNorms(c *Config) bool {
	n, given := r.float("parallel_norms")
	return r.flag("grouped_kv") && c.Parallel && (!given || n == 2)
}

// factor reads a multiplier; 1 where the architecture has none.
func (r *configReader) factor(field string) float32 {
	x, ok := r.float(field)
	if !ok {
		return 1
	}
	if x == 0 || math.Abs(x) > math.MaxFloat32 {
		r.fail(r.key(field), "%g is not a factor", x)
		return 1
	}
	return float32(x)
}

// routing reads how experts are chosen and what is done with their weights.
func (r *configReader) routing(c *Config) {
	c.RoutedScale = r.factor("routed_scale")
	c.GateAlpha = r.cap("gate_alpha")
	c.GateLimit = r.cap("gate_limit")
	c.Groups = r.integerOr("groups", 1, 1<<14, 1)
	c.TopGroups = r.integerOr("top_groups", 1, 1<<14, 1)

	if r.has("group_method") {
		switch name := r.text(r.key("group_method"), r.fallback("group_method")); name {
		case "greedy":
			c.Groups, c.TopGroups = 1, 1
		case "group_limited_greedy":
		default:
			r.fail(r.key("group_method"), "unknown method %.60q; known: greedy, group_limited_greedy", name)
		}
	}

	if r.err != nil || c.Groups == 1 {
		return
	}

	each := c.Experts / c.Groups
	switch {
	case c.Experts%c.Groups != 0:
		r.fail(r.key("groups"), "%d experts do not make %d equal groups", c.Experts, c.Groups)
	case c.TopGroups > c.Groups || c.TopK > c.TopGroups*each:
		r.fail(r.key("top_groups"), "%d of %d groups of %d experts do not hold %d", c.TopGroups, c.Groups, each, c.TopK)
	case c.Arch.Router == Sigmoid && each < 2:
		r.fail(r.key("groups"), "%d: a group needs two experts", c.Groups)
	}
}

// mlpTypes reads which blocks are mixtures from a list, which overrides the other rules.
func (r *configReader) mlpTypes(c *Config) {
	if !r.has("mlp_types") {
		return
	}

	key := r.key("mlp_types")
	types := r.strings(key)
	if types != nil && len(types) != c.Layers {
		r.fail(key, "%d entries for %d layers", len(types), c.Layers)
		return
	}

	for l, name := range types {
		if name != "dense" && name != "sparse" {
			r.fail(key, "layer %d: unknown type %.60q; known: dense, sparse", l, name)
			return
		}
		c.Mixture[l] = name == "sparse"
	}
}

// rotations works out which block has which rotation.
func (r *configReader) rotations(c *Config, local *Rope) {
	c.RopeOf = make([]int, c.Layers)
	for l := range c.RopeOf {
		c.RopeOf[l] = -1
	}
	if c.Rope == nil || r.err != nil {
		for _, key := range []string{"rope_parameters", "rope_scaling", "rope_theta"} {
			r.used[key] = true // without a rotation, they describe none
		}
		return
	}

	c.Ropes = []*Rope{c.Rope}
	if local != nil {
		c.Ropes = append(c.Ropes, local)
	}

	for l := range c.RopeOf {
		switch {
		case !r.rotates(c, l):
		case local != nil && c.Windows[l] > 0:
			c.RopeOf[l] = 1
		default:
			c.RopeOf[l] = 0
		}
	}
}

// rotates reports whether a block rotates queries and keys.
func (r *configReader) rotates(c *Config, l int) bool {
	switch c.Arch.RopeBlocks {
	case RopeSliding:
		return c.Windows[l] > 0
	case RopeListed:
		n := r.integerOr("rope_interval", 1, maxLayers, 1)
		if list := r.list("rope_layers"); list != nil {
			if len(list) < c.Layers {
				r.fail(r.key("rope_layers"), "%d entries for %d layers", len(list), c.Layers)
				return false
			}
			return list[l] != 0
		}
		return n < 1 || (l+1)%n != 0
	}
	return true
}
