package oncehttp

import (
	"context"
	"log/slog"
	"net/http"
	"net/textproto"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

const defaultMaxBody = 1 << 20

// Option configures a handler.
type Option func(*config) error

type config struct {
	requireKey bool
	methods    map[string]bool
	maxBody    int64
	headers    map[string]bool
	scope      func(*http.Request) string
	notDone    map[int]bool
	lookup     func(ctx context.Context, r *http.Request, s once.Started) (Response, error)
	do         []once.DoOption
	tx         []once.TxOption
	logger     *slog.Logger
}

// RequireKey refuses requests without a key with 400. Default: they reach the handler, and nothing
// is recorded.
func RequireKey() Option {
	return func(c *config) error { c.requireKey = true; return nil }
}

// WithMethods sets the methods of requests whose key is used. Requests with other methods reach the
// handler. Default POST and PATCH.
func WithMethods(methods ...string) Option {
	return func(c *config) error {
		if len(methods) == 0 {
			return invalidOption("WithMethods names no method: must name at least one")
		}
		c.methods = set(methods)
		return nil
	}
}

// WithMaxBody sets the largest request body in bytes, 0 or more. A longer one is answered with 413.
// Default 1 MiB.
func WithMaxBody(n int64) Option {
	return func(c *config) error {
		if n < 0 {
			return invalidOption("WithMaxBody: %d bytes: must be 0 or more", n)
		}
		c.maxBody = n
		return nil
	}
}

// WithHeaders sets the headers that are recorded and repeated. Others, such as Set-Cookie and those
// of tracing, reach the first client only. Default: Cache-Control, Content-Disposition,
// Content-Encoding, Content-Language, Content-Type, ETag, Last-Modified, Link and Location.
func WithHeaders(names ...string) Option {
	return func(c *config) error {
		canonical := make([]string, len(names))
		for i, n := range names {
			canonical[i] = textproto.CanonicalMIMEHeaderKey(n)
		}
		c.headers = set(canonical)
		return nil
	}
}

// WithScope sets the function that tells whose keys are separate, for instance by the account of an
// authenticated request. Equal keys of two scopes are two keys. Default: one scope.
func WithScope(scope func(*http.Request) string) Option {
	return func(c *config) error {
		if scope == nil {
			return invalidOption("WithScope: the function is nil: must be set")
		}
		c.scope = scope
		return nil
	}
}

// WithNotDone names statuses by which the handler says that the request had no effect and will have
// none, such as 429. Such a response is not recorded, and a repeated request runs the handler
// again. TxHandler rolls back after it. Default: none.
func WithNotDone(statuses ...int) Option {
	return func(c *config) error {
		for _, s := range statuses {
			if s < 200 || s > 599 {
				return invalidOption("WithNotDone: status %d: must be from 200 to 599", s)
			}
		}
		c.notDone = set(statuses)
		return nil
	}
}

// WithLookup sets the function that Handler calls when an earlier request with the key has left its
// outcome unknown. It returns the response that the earlier request should have had, or
// once.NotDone(err) if that request had no effect and will have none. See once.WithLookup. Not for
// TxHandler. Default: 500 outcome_unknown.
func WithLookup(lookup func(ctx context.Context, r *http.Request, s once.Started) (Response, error)) Option {
	return func(c *config) error {
		if lookup == nil {
			return invalidOption("WithLookup: the function is nil: must be set")
		}
		c.lookup = lookup
		return nil
	}
}

// WithDo sets options of once.Do for Handler, such as once.WithRetention, once.WithWait and
// once.WithLease. Default: once.WithWait(0), so that a request in progress is answered with 409.
func WithDo(opts ...once.DoOption) Option {
	return func(c *config) error { c.do = append(c.do, opts...); return nil }
}

// WithTx sets options of once.Tx for TxHandler. Default: once.WithWait(0).
func WithTx(opts ...once.TxOption) Option {
	return func(c *config) error { c.tx = append(c.tx, opts...); return nil }
}

// WithLogger logs the causes of the responses 500 and 503 of this package, and responses that could
// not be recorded. Nil means no logger. Default: slog.Default().
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l == nil {
			l = slog.New(slog.DiscardHandler)
		}
		c.logger = l
		return nil
	}
}

func newConfig(opts []Option) (config, error) {
	c := config{
		methods: set([]string{http.MethodPost, http.MethodPatch}),
		maxBody: defaultMaxBody,
		headers: set([]string{
			"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type",
			"Etag", "Last-Modified", "Link", "Location",
		}),
		do:     []once.DoOption{once.WithWait(0)},
		tx:     []once.TxOption{once.WithWait(0)},
		logger: slog.Default(),
	}
	for _, o := range opts {
		if o == nil {
			return c, invalidOption("an option is nil: must be set")
		}
		if err := o(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// lookupOption returns the once.WithLookup of a request.
func (c *config) lookupOption(r *http.Request) once.DoOption {
	return once.WithLookup(func(ctx context.Context, _ *pglock.Lease, s once.Started) (Response, error) {
		return c.lookup(ctx, r, s)
	})
}

func set[T comparable](values []T) map[T]bool {
	m := make(map[T]bool, len(values))
	for _, v := range values {
		m[v] = true
	}
	return m
}

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("oncehttp", format, args...)
}
