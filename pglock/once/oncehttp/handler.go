package oncehttp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing/fencehttp"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

const (
	// Header is the HTTP header that carries the key: a string of printable characters, with or
	// without double quotes around it.
	Header = "Idempotency-Key"

	// ReplayedHeader is set to "true" in a response that repeats a recorded one.
	ReplayedHeader = "Idempotent-Replayed"
)

// errNotRecorded is the error of a call whose response says that nothing was done.
var errNotRecorded = errors.New("oncehttp: the response is not recorded")

// Handler returns a handler that calls next once for each key, under the lease of the key, and
// records its response with once.Do. It is for effects outside the database.
//
// The context of next is done when the lease is lost. It is not done when the client leaves,
// because the client will try again. It carries the fence of the lease, so that a
// fencehttp.Transport sends the token along: see fencehttp.FromContext.
//
// scope returns whose key a request carries, such as the account of an authenticated request: see
// Scopes above. If all clients may get each other's responses, pass OneScope.
//
// The error wraps pglock.ErrInvalidOption.
func Handler(next http.Handler, client *pglock.Client, scope func(*http.Request) string, opts ...Option) (http.Handler, error) {
	c, err := newConfig(scope, opts)
	switch {
	case err != nil:
		return nil, err
	case next == nil, client == nil:
		return nil, errs.InvalidOption("oncehttp", "Handler: the handler or the client is nil: both must be set")
	case len(c.tx) != 1:
		return nil, errs.InvalidOption("oncehttp", "Handler: WithTx: is for TxHandler: use WithDo")
	}
	return &handler{config: c, next: next, run: func(w http.ResponseWriter, q request) error { return c.runDo(w, q, next, client) }}, nil
}

type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// TxHandler returns a handler that calls next once for each key, in a transaction that also records
// its response with once.Tx. It is for effects in the database only. next gets the transaction by
// TxFromContext, writes in it, and does not end it. The response is sent after the commit. db
// begins the transaction: it is a *pgxpool.Pool, or another type with its method Begin.
//
// The context of next is the request's: if the client leaves, the transaction is rolled back unless
// it is committed already. scope is as for Handler, and the error wraps pglock.ErrInvalidOption.
func TxHandler(next http.Handler, db beginner, scope func(*http.Request) string, opts ...Option) (http.Handler, error) {
	c, err := newConfig(scope, opts)
	switch {
	case err != nil:
		return nil, err
	case next == nil, pgtx.IsNil(db):
		return nil, errs.InvalidOption("oncehttp", "TxHandler: the handler or the pool is nil: both must be set")
	case len(c.do) != 1, c.lookup != nil:
		return nil, errs.InvalidOption("oncehttp", "TxHandler: WithDo or WithLookup: is for Handler: use WithTx")
	}
	return &handler{config: c, next: next, run: func(w http.ResponseWriter, q request) error { return c.runTx(w, q, next, db) }}, nil
}

type txKey struct{}

// TxFromContext returns the transaction of a request behind TxHandler. Behind no TxHandler, and for
// a request without a key, ok is false.
func TxFromContext(ctx context.Context) (tx pgx.Tx, ok bool) {
	tx, ok = ctx.Value(txKey{}).(pgx.Tx)
	return tx, ok
}

type handler struct {
	config
	next http.Handler
	run  func(w http.ResponseWriter, q request) error // sends the response, or returns why there is none
}

// request is a request with a key, whose body was read.
type request struct {
	*http.Request
	key         string // with its scope
	body        []byte
	fingerprint []byte
}

func (q request) with(ctx context.Context) *http.Request {
	r := q.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(q.body))
	r.ContentLength, r.TransferEncoding = int64(len(q.body)), nil
	return r
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	keys := r.Header.Values(Header)
	switch {
	case safe(r.Method), len(keys) == 0 && !h.requireKey:
		h.next.ServeHTTP(w, r)
		return
	case len(keys) == 0:
		h.refuse(w, http.StatusBadRequest, "missing_key", "the request has no "+Header+" header")
		return
	case len(keys) > 1:
		h.refuse(w, http.StatusBadRequest, "invalid_key", "the request has several "+Header+" headers")
		return
	}
	key := unquoted(keys[0])
	if key == "" {
		h.refuseCall(w, r, once.ErrInvalidKey)
		return
	}
	if h.keyCheck != nil {
		if err := h.keyCheck(key); err != nil {
			h.refuse(w, http.StatusBadRequest, "invalid_key", "the key is invalid: "+errs.Text(err))
			return
		}
	}
	// A scope contains no slash, so that no two pairs of scope and key are equal.
	q := request{Request: r, key: url.QueryEscape(h.scope(r)) + "/" + key}
	body := r.Body
	if body == nil {
		body = http.NoBody
	}
	var err error
	if q.body, err = io.ReadAll(http.MaxBytesReader(w, body, h.maxBody)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			h.refuse(w, http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("the request body is larger than %d bytes", h.maxBody))
		} else {
			h.refuse(w, http.StatusBadRequest, "invalid_body", "the request body could not be read")
		}
		return
	}
	content, err := h.fingerprint(q.with(r.Context()))
	if err != nil {
		h.refuse(w, http.StatusBadRequest, "invalid_body", "the request is invalid: "+errs.Text(err))
		return
	}
	q.fingerprint = fmt.Appendf(nil, "%q %q %x", r.Method, r.URL.EscapedPath(), sha256.Sum256(content))
	if err := h.run(w, q); err != nil {
		h.refuseCall(w, r, err)
	}
}

// safe reports whether requests with that method have no effect, by RFC 9110.
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions || method == http.MethodTrace
}

// unquoted returns a key without the double quotes of a string of RFC 8941.
func unquoted(value string) string {
	if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' && !strings.Contains(value[1:n-1], `"`) {
		return value[1 : n-1]
	}
	return value
}

func (c *config) runDo(w http.ResponseWriter, q request, next http.Handler, client *pglock.Client) error {
	opts := c.do
	if c.lookup != nil {
		opts = append(opts[:len(opts):len(opts)], c.lookup(q.with(q.Context())))
	}
	var rec *recorder // of this request, if next ran
	recorded, err := once.Do(q.Context(), client, q.key, q.fingerprint, func(ctx context.Context, l *pglock.Lease) (Response, error) {
		rec = &recorder{header: http.Header{}}
		ctx, stop := l.WithContext(context.WithoutCancel(ctx))
		defer stop()
		next.ServeHTTP(rec, q.with(fencehttp.NewContext(ctx, l.Fence())))
		response := rec.finish(c.headers)
		if slices.Contains(c.notDone, response.Status) {
			return Response{}, once.NotDone(errNotRecorded)
		}
		return response, nil
	}, opts...)
	switch {
	case rec == nil && err != nil:
		return err
	case rec == nil, err == nil && (rec.status != recorded.Status || !bytes.Equal(rec.body.Bytes(), recorded.Body)):
		return recorded.replay(w, c.headers) // this request did not run next, or another one has replaced it
	}
	rec.send(w)
	if err != nil && !errors.Is(err, errNotRecorded) { // the client has its response, but a repetition would not get it
		c.logger.WarnContext(q.Context(), "oncehttp: response not recorded", "method", q.Method, "path", q.URL.Path, "error", err)
	}
	return nil
}

func (c *config) runTx(w http.ResponseWriter, q request, next http.Handler, db beginner) error {
	tx, err := db.Begin(q.Context())
	if err != nil {
		return errs.Errorf("oncehttp: begin: %w", err)
	}
	defer pgtx.Rollback(q.Context(), tx) //nolint:errcheck // does nothing after the commit; pgx closes a connection that fails
	var rec *recorder
	recorded, err := once.Tx(q.Context(), tx, q.key, q.fingerprint, func(ctx context.Context) (Response, error) {
		rec = &recorder{header: http.Header{}}
		next.ServeHTTP(rec, q.with(context.WithValue(ctx, txKey{}, tx)))
		response := rec.finish(c.headers)
		if response.Status >= http.StatusInternalServerError || slices.Contains(c.notDone, response.Status) {
			return Response{}, errNotRecorded
		}
		return response, nil
	}, c.tx...)
	switch {
	case errors.Is(err, errNotRecorded):
		rec.send(w)
		return nil
	case err != nil:
		return err
	case rec == nil:
		return recorded.replay(w, c.headers)
	}
	if err := tx.Commit(q.Context()); err != nil {
		return errs.Errorf("oncehttp: commit: %w", err)
	}
	rec.send(w)
	return nil
}
