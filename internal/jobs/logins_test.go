package jobs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// guarded starts a NATS server that others run, with the logins of some options, and returns its address.
func guarded(t *testing.T, o *server.Options) string {
	t.Helper()
	o.Host, o.Port = "127.0.0.1", server.RANDOM_PORT
	o.NoSigs, o.NoLog = true, true
	o.JetStream, o.StoreDir = true, t.TempDir()
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}

	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(startTime) {
		t.Fatal("the server does not start")
	}

	return s.ClientURL()
}

// secretFile writes a file of credentials.
func secretFile(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pair makes a pair of keys: its public one, its seed, and itself to sign with.
func pair(t *testing.T, create func() (nkeys.KeyPair, error)) (public string, seed []byte, kp nkeys.KeyPair) {
	t.Helper()
	kp, err := create()
	if err != nil {
		t.Fatal(err)
	}

	public, errPublic := kp.PublicKey()
	seed, errSeed := kp.Seed()
	if err := errors.Join(errPublic, errSeed); err != nil {
		t.Fatal(err)
	}

	return public, seed, kp
}

// worksWith has a coordinator and a worker do a piece of work on a cluster, each with its own login, and checks that
// strangers, without a login or with a wrong one, get nowhere.
func worksWith(t *testing.T, url string, coordinator, worker, wrong Access) {
	t.Helper()
	for name, a := range map[string]Access{"none": {}, "a wrong one": wrong} {
		c, err := Connect(t.Context(), Options{URL: url, Access: a})
		if err == nil {
			c.Close()
			t.Errorf("%s opens the cluster", name)
		} else if !errors.Is(err, ErrConnect) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}

	connect := func(a Access) *Conn {
		c, err := Connect(t.Context(), Options{URL: url, Access: a})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}

	q := offer(t, connect(coordinator), Offer{Name: "q", Contract: "1", Patience: time.Minute}, "")
	helper := connect(worker)
	within(t, func(ctx context.Context) {
		_ = helper.Join(ctx, 1, func(context.Context, Offer, []byte) (Handler, func(), error) {
			return func(_ context.Context, it Item) ([]byte, error) { return square(it) }, nil, nil
		})
	})

	results, err := q.Do(t.Context(), squares(2), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkSquares(t, results, 2)
}

// TestNKeys: files of NKey seeds open a cluster that knows their public keys.
func TestNKeys(t *testing.T) {
	one, oneSeed, _ := pair(t, nkeys.CreateUser)
	two, twoSeed, _ := pair(t, nkeys.CreateUser)
	_, wrongSeed, _ := pair(t, nkeys.CreateUser)
	url := guarded(t, &server.Options{Nkeys: []*server.NkeyUser{{Nkey: one}, {Nkey: two}}})

	worksWith(t, url, Access{NKey: secretFile(t, "one", oneSeed)}, Access{NKey: secretFile(t, "two", twoSeed)},
		Access{NKey: secretFile(t, "wrong", wrongSeed)})
}

// TestCredentials: files of credentials, as the tool nsc writes them, open a cluster of their operator; those of an
// account that it does not know, and those that have run out, do not.
func TestCredentials(t *testing.T) {
	operator, _, operatorKey := pair(t, nkeys.CreateOperator)
	account, _, accountKey := pair(t, nkeys.CreateAccount)
	_, _, strangerKey := pair(t, nkeys.CreateAccount)

	system, _, _ := pair(t, nkeys.CreateAccount)

	known := &server.MemAccResolver{}
	for _, id := range []string{account, system} {
		claims := jwt.NewAccountClaims(id)
		if id == account { // that of the system cannot have streams
			claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
				DiskStorage: jwt.NoLimit, MemoryStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
			}
		}

		text, err := claims.Encode(operatorKey)
		if err == nil {
			err = known.Store(id, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	url := guarded(t, &server.Options{
		TrustedOperators: []*jwt.OperatorClaims{jwt.NewOperatorClaims(operator)}, AccountResolver: known,
		SystemAccount: system,
	})

	creds := func(name string, signer nkeys.KeyPair, expires int64) Access {
		user, seed, _ := pair(t, nkeys.CreateUser)
		c := jwt.NewUserClaims(user)
		c.Expires = expires
		token, err := c.Encode(signer)
		if err != nil {
			t.Fatal(err)
		}

		file, err := jwt.FormatUserConfig(token, seed)
		if err != nil {
			t.Fatal(err)
		}

		return Access{Creds: secretFile(t, name, file)}
	}

	worksWith(t, url, creds("one", accountKey, 0), creds("two", accountKey, 0), creds("wrong", strangerKey, 0))

	c, err := Connect(t.Context(), Options{URL: url, Access: creds("old", accountKey, time.Now().Unix()-60)})
	if err == nil {
		c.Close()
		t.Error("credentials that have run out open the cluster")
	}
}

// TestListenFarByDefault: a server whose address is not known to be loopback makes a token and a certificate by itself.
// What it says of itself is all that a worker needs, and less is not enough. (The address is loopback by a name
// that is not known to be, so that nobody else can reach it.)
func TestListenFarByDefault(t *testing.T) {
	s, c := open(t, ServerOptions{Listen: "LOCALHOST:0"}, Events{})
	if !strings.HasPrefix(s.URL(), "tls://worker:") || !strings.HasPrefix(s.Pin(), pinPrefix) {
		t.Fatalf("%s, fingerprint %q", s.URL(), s.Pin())
	}

	for name, o := range map[string]Options{
		"no fingerprint": {URL: s.URL()},
		"no token":       {URL: s.Address(), Access: Access{Pin: s.Pin()}},
		"a wrong token":  {URL: strings.Replace(s.URL(), "worker:", "worker:x", 1), Access: Access{Pin: s.Pin()}},
		"another's pin":  {URL: s.URL(), Access: Access{Pin: pin([]byte("another"))}},
		"coordinator's name": {
			URL: strings.Replace(s.URL(), "worker:", "coordinator:", 1), Access: Access{Pin: s.Pin()},
		},
	} {
		if c, err := Connect(t.Context(), o); err == nil {
			c.Close()
			t.Errorf("%s is enough", name)
		} else if !errors.Is(err, ErrConnect) {
			t.Errorf("%s: %v", name, err)
		}
	}

	q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
	worker, err := Connect(t.Context(), Options{URL: s.URL(), Access: Access{Pin: s.Pin()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Close)

	within(t, func(ctx context.Context) {
		_ = worker.Join(ctx, 1, func(context.Context, Offer, []byte) (Handler, func(), error) {
			return func(_ context.Context, it Item) ([]byte, error) { return square(it) }, nil, nil
		})
	})

	results, err := q.Do(t.Context(), squares(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkSquares(t, results, 1)
}
