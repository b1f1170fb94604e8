// Package mediate is Mediator (Lai et al., 2025): task models of one base are averaged where they agree, and where they
// conflict each keeps what makes it different, as an expert beside the dense model, that a router weighs for each
// prompt.
//
//	o := merge.Options{Device: dev, Mediator: mediate.Mediator()}
//	report, err := merge.Models(ctx, recipe, "mediated", o)   // a recipe with merge_method: mediate
//
//	e, err := mediate.Open(ctx, "mediated")
//	routed, err := e.Attach(model, 0)
//	weights, verdict, err := routed.Route(ctx, ids, mediate.Policy{})
//	err = routed.Use(weights)
//
// [Conflict] measures how much task models contradict each other, in six metrics of the differences to the base, for
// every tensor and for groups of them. [Mediator] makes a folder: it routes the groups that a rule chooses by their
// conflict, averages the rest, and trains the router. [Experts] is such a folder: it is verified, exported as an
// ordinary checkpoint under fixed weights, or attached to a loaded model, [Routed], that computes with the experts of
// each request.
//
// An expert is here a task model's part in a folder of mediate, and never a matrix of a mixture of experts (package
// merge makes these). A group is a decoder layer, its attention or its MLP, or a tensor.
package mediate
