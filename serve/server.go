package serve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/lm"
)

// Server answers requests; it is an [http.Handler]. [Handler] makes it.
type Server struct {
	options Options
	mu      sync.Mutex // guards models and serial, and places and all that they have
	models  []*served
	serial  uint64
	places  []*place
	clock   uint64        // of uses of places
	held    int64         // bytes of open places, with their adapters
	adapted int64         // of these, those of adapters
	changed chan struct{} // closed, and another made, when a place becomes free or open
	loader  chan struct{} // holds one while a place is opened
	loading sync.Mutex    // held while an adapter is loaded or unloaded
	watch   *watch
	mux     *http.ServeMux
	keys    [][sha256.Size]byte
	ending  atomic.Bool
	stopped chan struct{} // closed when ending begins
	desks   chan struct{} // holds one for each long request that is taken apart
	asked   atomic.Int64  // requests that are being answered
}

// Handler makes a server for models, which must stay open until [Server.Shutdown] has returned. No other pass of them
// may run meanwhile where one of them has an Enter.
func Handler(models Models, o Options) (*Server, error) {
	if err := models.Validate(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}

	s := newServer(o)
	byLM := map[*lm.Model]*place{}
	for _, m := range models {
		p := byLM[m.LM]
		if p == nil {
			p = &place{name: m.Name}
			var err error
			if p.engine, err = newEngine(m.Name, m.LM, s.options, s.watch); err != nil {
				s.stop()
				return nil, err
			}
			byLM[m.LM] = p
			s.places = append(s.places, p)
		}

		one, err := newServed(context.Background(), m, p, s.options)
		if err != nil {
			s.stop()
			return nil, err
		}
		s.mu.Lock()
		s.countLocked(one)
		s.putLocked(one)
		s.mu.Unlock()
	}

	s.routes()
	return s, nil
}

// newServer is a server that has no models yet.
func newServer(o Options) *Server {
	s := &Server{
		options: o.filled(), watch: newWatch(), mux: http.NewServeMux(), changed: make(chan struct{}),
		loader: make(chan struct{}, 1), stopped: make(chan struct{}), desks: make(chan struct{}, desks),
	}
	for _, k := range o.Keys {
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	return s
}

// routes says who answers what.
func (s *Server) routes() {
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if s.ending.Load() {
			faultOf(errClosed).write(w)
			return
		}
		health := map[string]any{"status": "ok"}
		broken := map[string]string{}
		for _, e := range s.engines() {
			if err := e.broken(); err != nil {
				broken[e.name] = err.Error()
			}
		}
		if s.options.Budget > 0 {
			health["loaded"] = s.loaded()
		}
		if len(broken) > 0 {
			health["broken"] = broken
		}
		writeJSON(w, http.StatusOK, health)
	})
	s.mux.Handle("GET /{$}", newPage())
	s.mux.Handle("GET /metrics", s.watch.page())
	s.mux.HandleFunc("GET /v1/models", s.listModels)
	s.mux.HandleFunc("GET /v1/models/{$}", s.listModels)
	s.mux.HandleFunc("GET /v1/models/{name...}", s.showModel)
	s.mux.HandleFunc("POST /v1/completions", s.answer(s.completions))
	s.mux.HandleFunc("POST /v1/chat/completions", s.answer(s.chat))
	s.mux.HandleFunc("POST /tokenize", s.answer(s.tokenize))
	s.mux.HandleFunc("POST /detokenize", s.answer(s.detokenize))
	s.mux.HandleFunc("GET /tokenizer_info", s.tokenizerInfo)
	if s.options.AdapterRoot != "" {
		s.mux.HandleFunc("POST /v1/load_lora_adapter", s.answer(s.loadAdapter))
		s.mux.HandleFunc("POST /v1/unload_lora_adapter", s.answer(s.unloadAdapter))
	}
	s.mux.HandleFunc("/", s.nothing)
}

// nothing answers requests that nobody else does: there may be something for another method.
func (s *Server) nothing(w http.ResponseWriter, r *http.Request) {
	f := badRequest("", "there is nothing at %s %.100s", r.Method, r.URL.Path)
	f.status = http.StatusNotFound
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := *r
		other.Method = method
		if _, pattern := s.mux.Handler(&other); pattern != "/" {
			f.message += ", but there is at " + method
			f.status = http.StatusMethodNotAllowed
			w.Header().Add("Allow", method)
		}
	}
	f.write(w)
}

// Shutdown refuses new requests and waits for those that are being answered until ctx ends; then they are cut off with
// an error, streams too. It returns once no pass runs any more.
func (s *Server) Shutdown(ctx context.Context) {
	if !s.ending.Swap(true) {
		close(s.stopped)
	}

	s.drain(ctx)
	s.loader <- struct{}{} // whoever opens a place ends that first, and nobody begins to
	defer func() { <-s.loader }()
	s.drain(ctx)

	s.loading.Lock()
	defer s.loading.Unlock()
	for _, m := range s.list() {
		m.retire()
	}
	for _, p := range s.places {
		p.closeSource()
	}
}

// drain ends all loops.
func (s *Server) drain(ctx context.Context) {
	var all mmapsafe.Group
	for _, e := range s.engines() {
		all.Go(func() { e.drain(ctx) })
	}
	all.Wait()
}

// stop ends the loops at once.
func (s *Server) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Shutdown(ctx)
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w, code: http.StatusOK}
	_, pattern := s.mux.Handler(r)
	defer func() { s.watch.answered(pattern, rec.code) }()

	// A body that never comes would hold its place, and without a reader the connection: net/http waits for what is
	// left of it behind an answer.
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.options.patience))
	}

	s.cors(rec, r)
	switch {
	case !s.addressed(r):
		f := badRequest("", "this server has another name than %.100q", r.Host)
		f.status = http.StatusMisdirectedRequest
		f.write(rec)
	case r.Method == http.MethodOptions:
		rec.WriteHeader(http.StatusNoContent)
	case r.URL.Path != "/health" && r.URL.Path != "/" && !s.allowed(r):
		(&fault{
			http.StatusUnauthorized, "authentication_error", "no valid key: send Authorization: Bearer KEY", "",
			"invalid_api_key",
		}).write(rec)
	default:
		s.mux.ServeHTTP(rec, r)
	}
}

// recorder remembers the code of an answer.
type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap lets [http.ResponseController] find what it controls.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// addressed reports whether a request names this server. A page whose name is made to lead here (DNS rebinding) would
// otherwise be of the same origin.
func (s *Server) addressed(r *http.Request) bool {
	if len(s.options.Hosts) == 0 {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return slices.Contains(s.options.Hosts, strings.ToLower(strings.Trim(host, "[]")))
}

// allowed reports whether a request shows a key.
func (s *Server) allowed(r *http.Request) bool {
	if len(s.keys) == 0 {
		return true
	}

	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(key)))
	found := 0
	for _, k := range s.keys { // all of them, so that the time tells nothing
		found |= subtle.ConstantTimeCompare(sum[:], k[:])
	}
	return found == 1 && strings.EqualFold(scheme, "Bearer")
}

// cors lets scripts of allowed pages read answers.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" || !slices.Contains(s.options.Origins, origin) && !slices.Contains(s.options.Origins, "*") {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
}

// answer runs what answers a request within its time, and tells of its fault.
func (s *Server) answer(f func(ctx context.Context, w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// Whoever waits for a place has a body in memory.
		most := int64(s.options.Queue + s.options.Sequences)
		if s.asked.Add(1) > most {
			s.asked.Add(-1)
			faultOf(errBusy).write(w)
			return
		}
		defer s.asked.Add(-1)

		ctx, cancel := context.WithTimeout(r.Context(), s.options.Timeout)
		defer cancel()
		if err := f(ctx, w, r); err != nil { // then nothing was answered yet
			faultOf(err).write(w)
		}
	}
}

// putLocked takes a model in, in place of one of the same name, which it returns. The lock is held.
func (s *Server) putLocked(m *served) (old *served) {
	s.serial++
	m.serial = s.serial
	m.created = s.options.now()
	s.models = slices.Clone(s.models) // others may read the list that was
	if i := slices.IndexFunc(s.models, func(o *served) bool { return o.Name == m.Name }); i >= 0 {
		old = s.models[i]
		s.models[i] = m
		return old
	}
	s.models = append(s.models, m)
	return nil
}

// remove takes a model off the list.
func (s *Server) remove(m *served) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models = slices.DeleteFunc(slices.Clone(s.models), func(o *served) bool { return o.Name == m.Name })
	s.leftLocked(m)
}

// leftLocked takes down that an adapter was unloaded, or that another has its name. The lock is held.
func (s *Server) leftLocked(m *served) {
	if m.guest {
		m.place.guests--
		return
	}
	// It does not come again when its place is opened again.
	m.place.gone = append(m.place.gone, m.Name)
	m.place.need -= m.Bytes
}

// list is the models as they are now.
func (s *Server) list() []*served {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.models
}

// Names are the models and adapters that there are, in the order of GET /v1/models.
func (s *Server) Names() (list []string) {
	for _, m := range s.list() {
		list = append(list, m.Name)
	}
	return list
}

// model finds what a request names, the first where it names nothing, and keeps it until the request lets it go. A
// model whose place is closed is opened, which may take until the requests of others have ended.
func (s *Server) model(ctx context.Context, name string) (m *served, let func(), err error) {
	for {
		s.mu.Lock()
		m, err := s.find(name)
		if err != nil {
			s.mu.Unlock()
			return nil, nil, err
		}
		if m.place.ready() {
			free, drop := s.useLocked(m.place), m.hold()
			s.mu.Unlock()
			return m, func() { drop(); free() }, nil
		}
		changed := s.changed
		s.mu.Unlock()

		err = s.bring(ctx, m.place, changed)
		if errors.Is(err, errPinned) {
			err = s.awaits(ctx, changed)
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// awaits waits until a place becomes free or open.
func (s *Server) awaits(ctx context.Context, changed chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-s.stopped:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// find is the model that a request names. The lock is held.
func (s *Server) find(name string) (*served, error) {
	m := s.models[0]
	if name != "" {
		m = s.named(name)
	}
	if m == nil {
		m = s.routed(name)
	}
	if m == nil {
		return nil, &fault{
			http.StatusNotFound, "invalid_request_error",
			"the model " + shown(name) + " does not exist (GET /v1/models lists those that do)", "model",
			"model_not_found",
		}
	}
	return m, nil
}

// named finds a model by its name; nil: there is none. The lock is held.
func (s *Server) named(name string) *served {
	if i := slices.IndexFunc(s.models, func(m *served) bool { return m.Name == name }); i >= 0 {
		return s.models[i]
	}
	return nil
}

// shown is a name that a client has sent, in an answer.
func shown(name string) string {
	return "\"" + strings.ToValidUTF8(name[:min(len(name), 200)], "?") + "\""
}

// modelCard is a model as it is listed.
type modelCard struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	OwnedBy string  `json:"owned_by"`
	Root    string  `json:"root,omitempty"`
	Parent  *string `json:"parent"`
	Context int     `json:"max_model_len"`
	// Beyond what others tell, for the page at /:
	Chat       bool  `json:"chat"` // it has a chat template
	Parameters int64 `json:"parameters"`
	Bytes      int64 `json:"weight_bytes"` // of the weights as they are stored; an adapter's are those of its model
	Loaded     bool  `json:"loaded"`       // it is in memory
}

// cardOf is the card of a model. The lock is held.
func (s *Server) cardOf(m *served) modelCard {
	c := m.card
	c.Created = m.created.Unix()
	c.Loaded = m.LM != nil
	return c
}

// choice is the card of a choice that a model's Router has.
func (c modelCard) choice(name string) modelCard {
	parent := c.ID
	c.Parent = &parent
	c.ID += ":" + name
	return c
}

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) {
	list := []modelCard{}
	s.mu.Lock()
	for _, m := range s.models {
		list = append(list, s.cardOf(m))
		for _, choice := range m.names {
			list = append(list, s.cardOf(m).choice(choice))
		}
	}
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *Server) showModel(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	m, err := s.find(r.PathValue("name"))
	var c modelCard
	if err == nil {
		c = s.cardOf(m)
		if choice := m.choiceOf(r.PathValue("name")); choice != "" {
			c = c.choice(choice)
		}
	}
	s.mu.Unlock()
	if err != nil {
		faultOf(err).write(w)
		return
	}
	writeJSON(w, http.StatusOK, c)
}

// newID names an answer.
func newID(prefix string) string {
	var raw [12]byte
	_, _ = rand.Read(raw[:]) // never fails
	return prefix + hex.EncodeToString(raw[:])
}
