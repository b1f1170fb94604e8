package jobs

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestRepliesAreNoOrders: the server sends its answers itself, and so past the rights of who asked. A worker that has
// them sent elsewhere, with content that it has stored before as a result, makes no offer, hands out no item and
// removes nothing by it.
func TestRepliesAreNoOrders(t *testing.T) {
	s, c := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{})
	q := offer(t, c, Offer{Name: "q", Kind: "square", Contract: "1"}, "spec")
	bad := stranger(t, s.URL())
	js, err := jetstream.New(bad)
	if err != nil {
		t.Fatal(err)
	}

	evil, err := json.Marshal(Offer{Name: "evil", Kind: "square", Contract: "1", Spec: strings.Repeat("0", 64)})
	if err != nil {
		t.Fatal(err)
	}

	stored := map[string]uint64{}
	for name, body := range map[string]string{
		"empty": "", "offer": string(evil), "item": `{"id":"evil","data":"MQ=="}`,
		"stream":   `{"name":"evil","subjects":["evil.>"],"storage":"memory"}`,
		"consumer": `{"stream_name":"compress_done_q","config":{"deliver_subject":"_INBOX.evil","ack_policy":"none"}}`,
	} {
		ack, err := js.Publish(t.Context(), "compress.done.q."+name, []byte(body))
		if err != nil {
			t.Fatal(name, err)
		}
		stored[name] = ack.Sequence
	}

	before := counts(t, c)
	get := func(name, to string) {
		ask, err := json.Marshal(map[string]any{"seq": stored[name]})
		if err != nil {
			t.Fatal(err)
		}
		for _, api := range []string{"$JS.API.DIRECT.GET.compress_done_q", "$JS.API.STREAM.MSG.GET.compress_done_q"} {
			if err := bad.PublishRequest(api, to, ask); err != nil {
				t.Fatal(err)
			}
		}
		if err := bad.PublishRequest("$JS.API.DIRECT.GET.compress_done_q.compress.done.q."+name, to, nil); err != nil {
			t.Fatal(err)
		}
	}

	get("offer", "$KV."+offersBucket+".evil")
	get("item", "compress.work.q.evil")
	get("item", "compress.spec.q.7")
	get("stream", "$JS.API.STREAM.CREATE.evil")
	get("consumer", "$JS.API.CONSUMER.CREATE.compress_done_q")
	get("empty", "$JS.API.STREAM.PURGE.compress_done_q")
	get("empty", "$JS.API.STREAM.DELETE.compress_work_q")
	get("empty", "$JS.API.CONSUMER.DELETE.compress_work_q.workers")

	for _, to := range []string{"compress.work.q.info", "$KV." + offersBucket + ".info"} {
		if err := bad.PublishRequest("$JS.API.INFO", to, nil); err != nil {
			t.Fatal(err)
		}
		if err := bad.PublishRequest("$JS.API.STREAM.INFO.compress_done_q", to, nil); err != nil {
			t.Fatal(err)
		}
	}

	// Nor does what else a message may ask the server for.
	for name, value := range map[string]string{"Nats-Rollup": "all", "Nats-Trace-Dest": "compress.work.q.traced"} {
		m := nats.NewMsg("compress.done.q." + name)
		m.Header.Set(name, value)
		if err := bad.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}

	for range 3 { // answers may ask again
		if _, err := bad.Request("$JS.API.STREAM.INFO.compress_done_q", nil, askTime); err != nil {
			t.Fatal(err)
		}
	}

	if after := counts(t, c); after != before {
		t.Errorf("a worker's questions changed what the server has:\n%s\nbefore:\n%s", after, before)
	}

	// What remains is that it can give results, which are read as those of items are.
	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 1, func(_ context.Context, it Item) ([]byte, error) { return square(it) })
	})
	results, err := q.Do(t.Context(), squares(3), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkSquares(t, results, 3)
}

// counts says which streams and consumers a server has, with how many messages.
func counts(t *testing.T, c *Conn) string {
	t.Helper()
	type state struct {
		Messages  uint64
		Consumers int
	}

	all := map[string]state{}
	list := c.js.ListStreams(t.Context())
	for info := range list.Info() {
		all[info.Config.Name] = state{info.State.Msgs, info.State.Consumers}
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}

	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
