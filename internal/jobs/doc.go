// Package jobs is a durable queue of small pieces of work on NATS JetStream: in a server of its own inside the
// program, or in a cluster that is reached by a URL. It knows nothing of what the work is.
//
// One program, the coordinator, makes an [Offer]: a named queue with a specification that says what all its
// work has in common. It hands over items and waits for their results with [Queue.Do]. Workers in the same
// process call [Queue.Work]; others, anywhere, call [Conn.Join], which shows them every offer and lets them
// refuse those that they can't serve the way the coordinator would.
//
//	server, err := jobs.Serve(jobs.ServerOptions{Dir: dir})
//	conn, err := jobs.Connect(ctx, jobs.Options{Server: server})
//	queue, err := conn.Offer(ctx, jobs.Offer{Name: "squares", Kind: "square", Contract: "v1"}, nil)
//	go queue.Work(ctx, 2, handler)
//	results, err := queue.Do(ctx, items, nil)
//	err = queue.Withdraw(ctx)
//
// # What is promised
//
// Every item is worked on at least once and counted exactly once: an item has an identifier of the caller's
// choice, the queue holds each identifier at most once, a worker that finds the result there already does no
// work, and the first result is the one that counts. So results must depend on the item and the offer alone;
// then neither the number of workers, nor their deaths, nor the order of things shows in them.
//
// A worker acknowledges an item after its result is stored, and says that it is alive while it works. If it
// dies, the item goes to another one after [Offer.Patience]; an item that was begun [Offer.Attempts] times
// without a result fails, since it kills those who work on it. A coordinator that dies leaves its items and
// results: the same offer, made again, finds them.
//
// Where the connection is lost both sides wait and go on when it is back, told through [Events]; items that
// were lost with the server's storage are handed over again.
package jobs
