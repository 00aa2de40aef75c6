package ui

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
)

const (
	healthTimeout = 2 * time.Second  // how long the database has to answer /healthz
	bodyTimeout   = 10 * time.Second // how long a peer has to send the body of a request
)

//go:embed static
var static embed.FS

var headers = map[string]string{
	"Content-Security-Policy":      "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Cache-Control":                "no-store",
}

type handler struct {
	Options
	client  *pglock.Client
	origins http.CrossOriginProtection
	sampler *sampler
	health  *sampler // of /healthz, which does not wait for the reads of pages
	servers sync.Map // of *http.Server: see shutdown

	// The sampler reads one page at a time, so it guards these.
	checked time.Time
	checks  []display.Check // of Doctor, at that time
}

// Handler returns a handler that serves the pages for operators of the client's schema. It has no
// goroutine, and reads nothing while there is no request. The error wraps pglock.ErrInvalidOption.
func Handler(client *pglock.Client, o Options) (http.Handler, error) {
	if client == nil {
		return nil, errs.InvalidOption("ui", "Handler: the client is nil: must be set")
	}
	return &handler{Options: o.withDefaults(), client: client, sampler: newSampler(), health: newSampler()}, nil
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	if r.ContentLength != 0 { // net/http reads also a body that is refused, before it reuses the connection
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // a wrapper of w may not support it
		w.Header().Set("Connection", "close")
	}
	access := h.Authorize(r)
	name := strings.TrimPrefix(r.URL.Path, "/")
	p, a := pageAt(name), actions[name]
	switch err := h.origins.Check(r); {
	case name == "healthz":
		h.serveHealth(w, r, access)
	case access < Read || err != nil || a != nil && access < a.needs:
		http.Error(w, "access refused", http.StatusForbidden)
	case a != nil && r.Method == http.MethodPost:
		h.act(w, r, access, a)
	case a != nil || r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	case strings.HasPrefix(name, "ui."):
		http.ServeFileFS(w, r, static, "static/"+name)
	case p == nil:
		http.NotFound(w, r)
	case p.Live && r.Method == http.MethodGet && r.Header.Get("Accept") == "text/event-stream":
		h.stream(w, r, p)
	default:
		key, load := h.loadFor(r, p)
		h.render(w, r, access, p, h.sampler.read(r.Context(), key, time.Now(), load))
	}
}

// serveHealth answers whether the database does. Requests of one second share one statement,
// because any client may send them.
func (h *handler) serveHealth(w http.ResponseWriter, r *http.Request, access Access) {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	reading := h.health.read(ctx, "", time.Now().Add(-time.Second), func(ctx context.Context) (any, error) {
		_, err := h.client.Get(ctx, "healthz") // any name
		return nil, err
	})
	text := "unavailable"
	switch err := reading.err; {
	case err == nil, errors.Is(err, pglock.ErrNotFound):
		_, _ = w.Write([]byte("ok\n"))
		return
	case access >= Read:
		text = errs.Text(err)
	}
	http.Error(w, text, http.StatusServiceUnavailable)
}

func (h *handler) render(w http.ResponseWriter, r *http.Request, access Access, p *page, reading reading) {
	var b bytes.Buffer
	if err := p.template.ExecuteTemplate(&b, "layout", h.view(r, access, p, reading)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept") // the same address has the stream
	w.WriteHeader(statusOf(reading.err))
	_, _ = b.WriteTo(w)
}

func statusOf(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, pglock.ErrInvalidOption), errors.Is(err, once.ErrInvalidKey):
		return http.StatusBadRequest
	case errors.Is(err, pglock.ErrNotFound), errors.Is(err, pglock.ErrStale), errors.Is(err, pglock.ErrGuarded), errors.Is(err, pglock.ErrNotAcquired),
		errors.Is(err, once.ErrNotFound), errors.Is(err, once.ErrInProgress):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}

const maxForm = 16 << 10

type action struct {
	name  string // in the log
	needs Access // Revoke: and the name that was typed
	then  string // the page that shows what the action has changed
	call  func(c *pglock.Client, ctx context.Context, name string, token pglock.Token, reason string) error
}

var actions = map[string]*action{
	"release":        {"request release", Operate, "lock", (*pglock.Client).RequestRelease},
	"revoke":         {"revoke", Revoke, "lock", (*pglock.Client).Revoke},
	"happened":       {"resolve as happened", Revoke, "once", resolve(true)},
	"did-not-happen": {"resolve as not happened", Revoke, "once", resolve(false)},
	"trigger": {"trigger", Operate, "schedules", func(c *pglock.Client, ctx context.Context, job string, _ pglock.Token, reason string) error {
		j, err := schedule.New(c, job)
		if err == nil {
			_, err = j.Trigger(ctx, reason)
		}
		return err
	}},
}

// resolve returns the call that ends an attempt without an outcome.
func resolve(happened bool) func(c *pglock.Client, ctx context.Context, key string, token pglock.Token, reason string) error {
	return func(c *pglock.Client, ctx context.Context, key string, token pglock.Token, reason string) error {
		return c.WithConn(ctx, func(conn *pgx.Conn) error {
			return once.Resolve(ctx, conn, key, token, happened, once.WithSchema(c.Schema()), once.WithReason(reason))
		})
	}
}

// act answers a form.
func (h *handler) act(w http.ResponseWriter, r *http.Request, access Access, a *action) {
	w.Header().Del("Connection") // the body is read
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	name, typed := r.URL.Query().Get("name"), r.PostFormValue("confirm")
	token, _ := strconv.ParseInt(r.PostFormValue("token"), 10, 64) // 0 is no token
	actor := display.Operator(h.Actor(r))
	why := r.PostFormValue("reason")
	reason := display.By(why, actor)
	var err error
	switch {
	case strings.TrimSpace(why) == "" && a != actions["trigger"]: // which ends nothing
		err = errs.InvalidOption("ui", "%s: nothing was changed: there is no reason: must be given", a.name)
	case a.needs == Revoke && typed != name && typed != visible(name):
		err = errs.InvalidOption("ui", "%s: nothing was changed: the typed name is another one: must be that of the lock or key", a.name)
	default:
		err = a.call(h.client, r.Context(), name, pglock.Token(token), reason)
	}
	h.Logger.InfoContext(r.Context(), "pglock: ui: "+a.name, "actor", actor, "name", name, "token", token, "reason", reason, "error", err)
	if err != nil {
		h.render(w, r, access, refusal, reading{err: err})
		return
	}
	w.Header().Set("Location", a.then+"?"+url.Values{"name": {name}}.Encode())
	w.WriteHeader(http.StatusSeeOther)
}
