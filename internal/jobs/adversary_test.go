package jobs

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/system/systemtest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An adversary speaks NATS itself. What it can do depends on what it holds: nothing, a worker's token, or a cluster in
// which everybody may do everything. See docs/security-queue.md.

// stranger connects as somebody who is no program of ours.
func stranger(t *testing.T, url string, o ...nats.Option) *nats.Conn {
	t.Helper()
	c, err := nats.Connect(url,
		append(o, nats.Timeout(connectTime), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestStrangersWithoutToken: who has no token, or a wrong one, gets no connection.
func TestStrangersWithoutToken(t *testing.T) {
	s, _ := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{})
	if !strings.Contains(s.URL(), "worker:") || strings.Contains(s.Address(), "@") {
		t.Errorf("URL %s, address %s", s.URL(), s.Address())
	}

	for name, o := range map[string]nats.Option{
		"nobody": nats.Name("x"), "worker": nats.UserInfo(workerUser, "guessed"),
		"coordinator": nats.UserInfo(ownUser, ""), "token": nats.Token("guessed"),
	} {
		if c, err := nats.Connect(s.Address(), o); err == nil {
			c.Close()
			t.Errorf("%s was let in", name)
		}
	}

	c, err := Connect(t.Context(), Options{URL: s.URL(), Name: "worker"})
	if err != nil {
		t.Fatal(err)
	}

	c.Close()
}

// TestWorkersRights: a worker's token, and an open server, let nobody make an offer, hand out an item, remove anything,
// make a stream or a consumer, or listen to what goes to the coordinator; and a worker that keeps to the rules works.
func TestWorkersRights(t *testing.T) {
	t.Parallel() // it waits more than it computes
	for _, anyone := range []bool{false, true} {
		s, c := open(t, ServerOptions{Listen: "127.0.0.1:0", Open: anyone}, Events{})
		q := offer(t, c, Offer{Name: "q", Kind: "square", Contract: "1"}, strings.Repeat("spec", partSize))

		bad := stranger(t, s.URL())
		heard := make(chan string, 100)
		for _, subject := range []string{">", "compress.>", "_COORDINATOR.>", "$JS.>"} {
			_, _ = bad.Subscribe(subject, func(m *nats.Msg) { heard <- m.Subject })
		}

		for _, subject := range []string{
			"compress.work.q.evil", "compress.spec.q.0", "$KV." + offersBucket + ".evil",
			"$JS.API.STREAM.DELETE.compress_done_q", "$JS.API.STREAM.PURGE.compress_done_q",
			"$JS.API.STREAM.CREATE.evil", "$JS.API.CONSUMER.CREATE.compress_done_q",
			"$JS.API.CONSUMER.DELETE.compress_work_q.workers", "$JS.API.STREAM.UPDATE.compress_work_q",
		} {
			body := []byte(`{"name":"evil","subjects":["evil.>"],"storage":"memory"}`)
			if m, err := bad.Request(subject, body, askTime/10); err == nil {
				t.Errorf("open %t: %s was answered: %s", anyone, subject, m.Data)
			}
		}

		w, err := Connect(t.Context(), Options{URL: s.URL(), Name: "worker"})
		if err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = w.Join(ctx, 2, func(_ context.Context, _ Offer, spec []byte) (Handler, func(), error) {
				if len(spec) != 4*partSize {
					return nil, nil, fmt.Errorf("%w: %d bytes", ErrRefused, len(spec))
				}
				return func(_ context.Context, it Item) ([]byte, error) { return square(it) }, nil, nil
			})
		})

		results, err := q.Do(t.Context(), squares(10), nil)
		cancel()
		wg.Wait()
		w.Close()
		if err != nil {
			t.Fatal(err)
		}

		checkSquares(t, results, 10)
		if list, err := c.Offers(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("open %t: offers %v: %v", anyone, list, err)
		}
		if len(heard) > 0 {
			t.Errorf("open %t: a stranger heard of %s", anyone, <-heard)
		}
	}
}

// TestFalseResults: what is no result of its item does not count, whoever sends it; the item is handed out again and
// the next result counts.
func TestFalseResults(t *testing.T) {
	var mu sync.Mutex
	var said []string
	s, c := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{Rejected: func(worker, item, reason string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, worker+" "+item+" "+reason)
	}})

	q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
	q.Accept(func(it Item, data []byte) error {
		if want, _ := square(it); string(want) != string(data) {
			return errors.New("no square")
		}
		return nil
	})

	bad := stranger(t, s.URL())
	js, err := jetstream.New(bad)
	if err != nil {
		t.Fatal(err)
	}

	for i, text := range []string{
		"null", "{}", "[]", "{", "", `{"id":"n5"}`, `{"id":"n6","data":"AAE=","attempt":1,"worker":"w\u001b[2J"}`,
		`{"id":"n7","data":"NDk=","attempt":1,"more":1}`,
		`{"id":"n8","attempt":1,"seconds":-1}`, `{"id":"n9","attempt":1,"failure":"x","data":"AA=="}`,
		`{"id":"n1","attempt":1,"data":"MQ=="}`,
	} {
		if _, err := js.Publish(t.Context(), fmt.Sprintf("compress.done.q.n%d", i), []byte(text)); err != nil {
			t.Fatal(i, err)
		}
	}

	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 2, func(_ context.Context, it Item) ([]byte, error) { return square(it) })
	})
	results, err := q.Do(t.Context(), squares(11), nil)
	if err != nil {
		t.Fatal(err)
	}

	checkSquares(t, results, 11)
	mu.Lock()
	defer mu.Unlock()

	all := strings.Join(said, "\n")
	// Ten: the one of n9 calls itself a failure, and those that lie there from before are tried again without a word.
	if len(said) < 10 || strings.ContainsRune(all, 0x1b) || !strings.Contains(all, `w\x1b[2J n6 no square`) {
		t.Errorf("%d were told: %s", len(said), all)
	}
}

// TestEndlessFalseResults: a worker that gives nothing but rubbish does not keep a coordinator for ever.
func TestEndlessFalseResults(t *testing.T) {
	_, c := open(t, ServerOptions{}, Events{})
	q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
	q.Accept(func(Item, []byte) error { return errors.New("rubbish") })
	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 1, func(_ context.Context, it Item) ([]byte, error) { return square(it) })
	})

	if _, err := q.Do(t.Context(), squares(1), nil); !errors.Is(err, ErrItem) ||
		!strings.Contains(err.Error(), "rubbish") {
		t.Error(err)
	}
}

// TestFalseOffers: in a cluster where everybody can list anything, what is no offer is left out and said, and ends no
// worker; nor does an offer that comes later and is refused.
func TestFalseOffers(t *testing.T) {
	t.Parallel() // it waits more than it computes
	s := cluster(t, t.TempDir(), -1)
	defer s.Shutdown()

	skipped := make(chan string, 100)
	coordinator, err := Connect(t.Context(), Options{URL: s.ClientURL(), Name: "coordinator"})
	if err != nil {
		t.Fatal(err)
	}
	defer coordinator.Close()

	kv, err := coordinator.offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	put := func(name string, o any) {
		text, err := json.Marshal(o)
		if raw, ok := o.(string); ok {
			text = []byte(raw)
		}
		if err == nil {
			_, err = kv.Put(t.Context(), name, text)
		}
		if err != nil {
			t.Fatal(name, err)
		}
	}

	hash := strings.Repeat("0", 64)
	put("a", "null")
	put("b", "{")
	put("c", `{"name":"c","patience":1}`)
	put("d", Offer{Name: "other", Kind: "square", Contract: "1", Spec: hash})
	put("e", Offer{Name: "e", Kind: "square", Contract: "\x1b]0;x\a", Spec: hash})
	put("f", Offer{Name: "f", Kind: "square", Contract: "1", Spec: hash, Bytes: math.MaxInt})
	put("g", Offer{Name: "g", Kind: "square", Contract: "1", Spec: hash}) // has no specification of that hash

	ready := make(chan struct{})
	var once sync.Once
	within(t, func(ctx context.Context) {
		w, err := Connect(ctx,
			Options{URL: s.ClientURL(), Name: "w", Events: Events{Skipped: func(name, reason string) {
				skipped <- name + " " + reason
				if name == "late" {
					once.Do(func() { close(ready) })
				}
			}}})
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()

		err = w.Join(ctx, 1, func(_ context.Context, o Offer, _ []byte) (Handler, func(), error) {
			if o.Kind != "square" {
				return nil, nil, fmt.Errorf("%w: kind %s", ErrRefused, o.Kind)
			}
			return func(_ context.Context, it Item) ([]byte, error) { return square(it) }, nil, nil
		})

		if ctx.Err() == nil {
			t.Errorf("the worker ended: %v", err)
		}
	})

	for range 7 {
		if text := <-skipped; strings.ContainsRune(text, 0x1b) {
			t.Errorf("%q", text)
		}
	}

	offer(t, coordinator, Offer{Name: "late", Kind: "dance", Contract: "1"}, "")
	<-ready
	results, err := offer(t, coordinator, Offer{Name: "good", Kind: "square", Contract: "1"}, "").Do(t.Context(),
		squares(3), nil)
	if err != nil {
		t.Fatal(err)
	}

	checkSquares(t, results, 3)
}

// TestSigns: what workers say is told once, within bounds, and not in a terminal's language.
func TestSigns(t *testing.T) {
	var mu sync.Mutex
	var told []string
	note := func(worker, reason string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, worker+reason)
	}

	s, c := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{Joined: func(w string) { note(w, "") }, Refused: note})
	q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
	stop, err := q.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	bad := stranger(t, s.URL())
	for range 3 {
		_ = bad.Publish("compress.signs.q", []byte(`{"kind":"joined","worker":"\u001b[31mred"}`))
		_ = bad.Publish("compress.signs.q",
			[]byte(`{"kind":"refused","worker":"w","reason":"`+strings.Repeat("x", 100_000)+`"}`))
		_ = bad.Publish("compress.signs.q", []byte(`null`))
	}

	for i := range 2 * maxSayings {
		_ = bad.Publish("compress.signs.q", fmt.Appendf(nil, `{"kind":"joined","worker":"w%d"}`, i))
	}
	if err := errors.Join(bad.Flush(), c.nc.Flush()); err != nil { // what the server has passed on is here
		t.Fatal(err)
	}

	stop()
	mu.Lock()
	defer mu.Unlock()

	size := len(strings.Join(told, ""))
	if len(told) > maxSayings || strings.ContainsRune(strings.Join(told, ""), 0x1b) ||
		size > 10*maxSayings+maxReason+100 {
		t.Errorf("%d were told, %d bytes", len(told), size)
	}
}

// raw is a connection on which a test speaks the protocol itself, word by word.
type raw struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

// rawly connects to a server and says what is to be said first.
func rawly(t *testing.T, s *Server, words string) raw {
	t.Helper()
	c, err := net.Dial("tcp", s.nats.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })

	if err := c.SetDeadline(time.Now().Add(startTime)); err != nil {
		t.Fatal(err)
	}

	r := raw{c, t, bufio.NewReader(c)}
	r.say(words)
	return r
}

// login is what a worker says first, and a question that tells when it is let in.
func (s *Server) login() string {
	return fmt.Sprintf(`CONNECT {"user":%q,"pass":%q,"verbose":false}`+"\r\nPING\r\n", workerUser, s.keys.Token)
}

func (r raw) say(words string) {
	r.t.Helper()
	if _, err := io.WriteString(r, words); err != nil {
		r.t.Fatal(err)
	}
}

// end is what the server says until it ends the connection.
func (r raw) end() string {
	r.t.Helper()
	text, err := io.ReadAll(r.r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		r.t.Error("the server does not end the connection")
	}
	return string(text)
}

// until reads up to a line that begins so.
func (r raw) until(word string) {
	r.t.Helper()
	for {
		line, err := r.r.ReadString('\n')
		if err != nil {
			r.t.Fatalf("%v before %s", err, word)
		}
		if strings.HasPrefix(line, word) {
			return
		}
	}
}

// TestLimits: a message that is too large, too many subscriptions, or no login within its time end the connection that
// does it, and no other.
func TestLimits(t *testing.T) {
	t.Parallel() // it waits more than it computes
	s, c := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{})
	login := s.login()
	silent := rawly(t, s, "")
	large := rawly(t, s, login)
	large.until("PONG")
	large.say(fmt.Sprintf("PUB compress.done.q.x %d\r\n", maxPayload+1))
	if text := large.end(); !strings.Contains(text, "Maximum Payload") {
		t.Errorf("a large message: %q", text)
	}

	many := rawly(t, s, login)
	many.until("PONG")
	for i := range maxSubs {
		many.say(fmt.Sprintf("SUB _INBOX.%d %d\r\n", i, i))
	}
	many.say("PING\r\n")
	many.until("PONG")
	many.say("SUB _INBOX.more more\r\n")
	many.until("-ERR 'maximum subscriptions exceeded'")

	if text := silent.end(); !strings.Contains(text, "Authentication Timeout") {
		t.Errorf("a connection without a login: %q", text)
	}
	if _, err := c.Offers(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestManyConnections: more connections than there may be are turned away, and when they are gone others are let in.
func TestManyConnections(t *testing.T) {
	if files, limited := systemtest.MostFiles(); limited && files < 4*maxConnections {
		t.Skipf("%d files can be open, %d connections have two ends each", files, maxConnections)
	}

	s, c := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{})
	var list []raw
	for range maxConnections - 1 { // and the coordinator
		one := rawly(t, s, s.login())
		one.until("PONG")
		list = append(list, one)
	}

	more := rawly(t, s, "")
	if text := more.end(); !strings.Contains(text, "maximum connections exceeded") {
		t.Errorf("one more: %q", text)
	}
	if _, err := c.Offers(t.Context()); err != nil {
		t.Error(err)
	}

	for _, one := range list {
		_ = one.Close()
	}

	worker, err := Connect(t.Context(), Options{URL: s.URL()})
	for err != nil && strings.Contains(err.Error(), "maximum connections") && t.Context().Err() == nil {
		worker, err = Connect(t.Context(), Options{URL: s.URL()}) // the server has yet to notice
	}
	if err != nil {
		t.Fatal(err)
	}
	worker.Close()
}

// TestEncrypted: an address that is not loopback has a certificate of its own, which the next server of the same folder
// has too, as it has the token; an open server has neither. Workers know a certificate by its fingerprint, or by its
// authority. (No test listens where others could reach it.)
func TestEncrypted(t *testing.T) {
	dir := t.TempDir()
	far := ServerOptions{Listen: "0.0.0.0:0", Keep: filepath.Join(dir, "kept", "keys")}
	first, err := far.keys()
	if err != nil {
		t.Fatal(err)
	}

	again, err := far.keys()
	if err != nil || first.Cert == nil || len(first.Token) < leastToken || again.Token != first.Token ||
		string(again.Cert) != string(first.Cert) {
		t.Errorf("%d and %d bytes of a token: %v", len(first.Token), len(again.Token), err)
	}

	if st, err := os.Stat(far.Keep); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the token can be read by others: %v", err)
	}

	for name, o := range map[string]ServerOptions{
		"open":     {Listen: "0.0.0.0:0", Open: true},
		"loopback": {Listen: "[::1]:0"},
	} {
		if k, err := o.keys(); err != nil || k.Cert != nil || (k.Token == "") != o.Open {
			t.Errorf("%s: %+v %v", name, k, err)
		}
	}

	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := errors.Join(writeSecret(cert, first.Cert), writeSecret(key, first.Key)); err != nil {
		t.Fatal(err)
	}

	s, _ := open(t, ServerOptions{Listen: "127.0.0.1:0", Cert: cert, Key: key}, Events{})
	if !strings.HasPrefix(s.URL(), "tls://worker:") || s.Pin() != "" {
		t.Errorf("%s, fingerprint %q", s.URL(), s.Pin())
	}

	block, _ := pem.Decode(first.Cert)
	c, err := Connect(t.Context(), Options{URL: s.URL(), Access: Access{Pin: pin(block.Bytes)}})
	if err != nil {
		t.Fatal(err)
	}

	c.Close()

	for name, a := range map[string]Access{"no authority": {}, "another": {Pin: pin([]byte("x"))}} {
		if c, err := Connect(t.Context(), Options{URL: s.URL(), Access: a}); err == nil {
			c.Close()
			t.Errorf("%s: the certificate is believed", name)
		}
	}

	plain := strings.Replace(s.URL(), "tls://", "nats://", 1)
	if c, err := Connect(t.Context(), Options{URL: plain, Access: Access{Pin: pin(block.Bytes)}}); err != nil {
		t.Error("the server says itself that it encrypts:", err)
	} else {
		c.Close()
	}
}

// TestLogins: the file of a token opens a server of that token, and one that is too short is refused.
func TestLogins(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}

	token := write("token", "0123456789abcdef\n")
	s, _ := open(t, ServerOptions{Listen: "127.0.0.1:0", TokenFile: token}, Events{})
	for _, login := range []string{token, write("login", "worker:0123456789abcdef")} {
		c, err := Connect(t.Context(), Options{URL: s.Address(), Access: Access{Login: login}})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}

	if _, err := Serve(ServerOptions{Listen: "127.0.0.1:0", TokenFile: write("short", "abc")}); !errors.Is(err,
		ErrAccess) {
		t.Error(err)
	}

	for name, a := range map[string]Access{
		"two": {Login: token, NKey: token}, "half": {Cert: token}, "pin": {Pin: "sha256:00"},
		"pin and CA": {Pin: pin(nil), CA: token},
	} {
		if err := a.Validate(); !errors.Is(err, ErrAccess) {
			t.Errorf("%s: %v", name, err)
		}
	}

	for name, a := range map[string]Access{
		"empty": {Login: write("empty", "\n")},
		"none":  {Creds: filepath.Join(dir, "none")}, "no seed": {NKey: token},
	} {
		if _, err := Connect(t.Context(), Options{URL: s.Address(), Access: a}); !errors.Is(err, ErrAccess) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
