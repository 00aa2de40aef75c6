package oncehttp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/quiet"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

const defaultMaxBody = 1 << 20

// Option configures a handler.
type Option func(*config) error

type config struct {
	requireKey bool
	maxBody    int64
	headers    []string
	notDone    []int
	lookup     func(r *http.Request) once.DoOption // nil if there is none
	do         []once.DoOption
	tx         []once.TxOption
	logger     *slog.Logger
	scope      func(*http.Request) string
	keyCheck   func(key string) error

	fingerprint func(*http.Request) ([]byte, error)

	documentation *url.URL // nil if there is none
}

// RequireKey refuses requests without a key with 400, which otherwise reach the handler without a
// record.
func RequireKey() Option {
	return func(c *config) error { c.requireKey = true; return nil }
}

// WithMaxBody sets the largest request body in bytes, 0 or more and 1 MiB by default. A longer one
// is answered with 413.
func WithMaxBody(n int64) Option {
	return func(c *config) error {
		c.maxBody = n
		return errs.Require("oncehttp", n >= 0, "WithMaxBody: %d bytes: must be 0 or more", n)
	}
}

// WithHeaders sets the headers that are recorded and repeated. Others, such as Set-Cookie and those
// of tracing, reach the first client only. The default is Cache-Control, Content-Disposition,
// Content-Encoding, Content-Language, Content-Type, ETag, Last-Modified, Link and Location.
func WithHeaders(names ...string) Option {
	return func(c *config) error { c.headers = names; return nil }
}

// OneScope is the scope of a handler whose clients may all get each other's responses, such as an
// internal service with a single client.
func OneScope(*http.Request) string { return "" }

// WithKeyCheck sets a function that checks the key of each request, without the double quotes
// around it, for instance that it is a UUID. A key for which check returns an error is answered
// with 400 invalid_key, whose detail has the text of the error. By default a key has, with its
// scope, 1 to 512 bytes of UTF-8 without NUL.
func WithKeyCheck(check func(key string) error) Option {
	return func(c *config) error {
		c.keyCheck = check
		return errs.Require("oncehttp", check != nil, "WithKeyCheck: the function is nil: must be set")
	}
}

// WithFingerprint sets a function that returns what a request and its repetitions have in common.
// If it differs, or the method or the path does, the answer is 422 mismatch. Use it for clients
// that encode a request anew for each attempt, or put the number of the attempt into it. The
// function may read the body of the request that it receives. If it returns an error, the answer is
// 400 invalid_body, with its text.
//
// The default are the query and the bytes of the body, or, of a multipart body, the headers and the
// bytes of its parts, because the boundary between them is a new one in each attempt.
func WithFingerprint(fingerprint func(r *http.Request) ([]byte, error)) Option {
	return func(c *config) error {
		c.fingerprint = fingerprint
		return errs.Require("oncehttp", fingerprint != nil, "WithFingerprint: the function is nil: must be set")
	}
}

// WithDocumentation sets the address of a page that describes to clients how the API uses keys. The
// package's own responses, which have no link by default, then link to it by a Link header and as
// the type of the problem, with the kind of error as the fragment.
func WithDocumentation(address string) Option {
	return func(c *config) error {
		u, err := url.Parse(address)
		c.documentation = u
		return errs.Require("oncehttp", err == nil && u.IsAbs() && u.Host != "" && !strings.ContainsAny(address, `<>" `),
			"WithDocumentation: %q is not the address of a page: must be like https://example.com/idempotency", address)
	}
}

// WithNotDone names statuses by which the handler says that the request had no effect and will have
// none, such as 429, by default none of them. Such a response is not recorded (TxHandler rolls back
// after it), and a repeated request runs the handler again.
func WithNotDone(statuses ...int) Option {
	return func(c *config) error { c.notDone = statuses; return nil }
}

// WithLookup sets the function that Handler calls when an earlier request with the key has left its
// outcome unknown. It returns the response that the earlier request should have had, with status
// 200 if it sets none, or once.NotDone(err) if that request had no effect and will have none (see
// once.WithLookup). Without it the answer is 500 outcome_unknown, and TxHandler refuses it.
func WithLookup(lookup func(ctx context.Context, r *http.Request, s once.Started) (Response, error)) Option {
	return func(c *config) error {
		c.lookup = func(r *http.Request) once.DoOption {
			return once.WithLookup(func(ctx context.Context, _ *pglock.Lease, s once.Started) (Response, error) {
				found, err := lookup(ctx, r, s)
				found.Status = cmp.Or(found.Status, http.StatusOK)
				if err == nil && !validStatus(found.Status) { // it can't be sent, so the outcome stays unknown
					err = fmt.Errorf("oncehttp: the function of WithLookup returned the status %d: must be from 200 to 999", found.Status)
				}
				return found, err
			})
		}
		return errs.Require("oncehttp", lookup != nil, "WithLookup: the function is nil: must be set")
	}
}

// WithDo sets options of once.Do for Handler, such as once.WithRetention, once.WithWait and
// once.WithLease. The default is once.WithWait(0), so that a request in progress is answered with
// 409.
func WithDo(opts ...once.DoOption) Option {
	return func(c *config) error { c.do = append(c.do, opts...); return nil }
}

// WithTx sets options of once.Tx for TxHandler, by default once.WithWait(0).
func WithTx(opts ...once.TxOption) Option {
	return func(c *config) error { c.tx = append(c.tx, opts...); return nil }
}

// WithLogger logs the causes of the responses 500 and 503 of this package, and responses that could
// not be recorded, by default to slog.Default(), and with nil not at all.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error { c.logger = quiet.Logger(l); return nil }
}

func newConfig(scope func(*http.Request) string, opts []Option) (config, error) {
	if scope == nil {
		return config{}, errs.InvalidOption("oncehttp", "the scope is nil: must be set, to OneScope if all clients may get each other's responses")
	}
	c := config{
		scope:   scope,
		maxBody: defaultMaxBody,
		headers: []string{
			"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type",
			"ETag", "Last-Modified", "Link", "Location",
		},
		fingerprint: defaultFingerprint,

		do:     []once.DoOption{once.WithWait(0)},
		tx:     []once.TxOption{once.WithWait(0)},
		logger: slog.Default(),
	}
	err := errs.Apply("oncehttp", &c, opts)
	return c, err
}
