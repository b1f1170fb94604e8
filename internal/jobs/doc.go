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
// # How
//
// A queue is three JetStream streams and a key: the items (compress.work.NAME.ID), the results (compress.done.NAME.ID),
// the specification in parts, and the offer itself in the bucket of offers, which is written last, so that who sees it
// finds the rest. Exactly-once counting needs no transactions; it follows from two properties of the streams and one
// order:
//
//   - one message per subject, new ones discarded: an item or a result that is there cannot be there twice, so handing
//     over or storing it again is harmless, and the first result wins
//   - work-queue retention with acknowledgements: an item that is handed out and not acknowledged within Patience
//     goes to another worker
//   - a worker stores the result, then acknowledges the item ([Queue.Work]); a death in between leaves an item whose
//     result is found by the next worker
//
// The coordinator hears of results by subscription, and looks for what it misses once in a while (settle in do.go),
// since a message can be lost while a connection is down. That look hands over again what neither has a result nor is
// in the queue, which is also how everything starts and how a server that lost its storage is filled again. Memory
// holds the results that are waited for and nothing else; the state of the queue is the server's.
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
