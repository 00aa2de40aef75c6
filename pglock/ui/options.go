package ui

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/pglock/pglock-go/internal/errs"
)

// Access is what a request may do. Each value includes those before it.
type Access int

// These are the values of Access.
const (
	None    Access = iota // nothing: the answer is 403
	Read                  // see all pages
	Operate               // ask holders to release their locks
	Revoke                // end grants
)

// Check is a result of the function of WithDoctor.
type Check struct {
	Name   string // what was checked
	Level  string // ok, warn, fail or skip
	Found  string
	Remedy string // empty without one
}

// Option configures a handler. A function that is nil stands for the default.
type Option func(*config) error

type config struct {
	authorize func(*http.Request) Access
	actor     func(*http.Request) string
	label     func(key, value string) (string, bool)
	doctor    func(context.Context) ([]Check, error) // nil if there is none
	logger    *slog.Logger
}

// WithAuthorize sets the function that decides what a request may do. It is called for each request, and
// for each update of an open page, so that a login that ends also ends the updates. It must be safe for
// concurrent use. By default, requests for which FromThisMachine is true may Read, and others nothing.
func WithAuthorize(authorize func(*http.Request) Access) Option {
	return func(c *config) error { c.authorize = authorize; return nil }
}

// WithActor sets the function that names the person behind a request, by default with the address of the
// peer. The name, of which the first 100 bytes count, is logged with each action and ends the reason that
// the holder sees.
func WithActor(actor func(*http.Request) string) Option {
	return func(c *config) error { c.actor = actor; return nil }
}

// WithLabels sets the function that formats the value of a label, or hides the label by returning false.
// The payload of an election is its label "payload". By default, all labels are shown as they are.
func WithLabels(format func(key, value string) (text string, shown bool)) Option {
	return func(c *config) error { c.label = format; return nil }
}

// WithDoctor sets the function whose results the page Doctor shows whenever it is opened. By default, the
// page says how to run the command pglock doctor.
func WithDoctor(doctor func(context.Context) ([]Check, error)) Option {
	return func(c *config) error { c.doctor = doctor; return nil }
}

// WithLogger logs each action at Info, with its actor and its outcome, by default to slog.Default(), and
// with nil not at all.
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
	c := config{logger: slog.Default()}
	err := errs.Apply("ui", &c, opts)
	if c.authorize == nil {
		c.authorize = func(r *http.Request) Access {
			if FromThisMachine(r) {
				return Read
			}
			return None
		}
	}
	if c.actor == nil {
		c.actor = func(r *http.Request) string { return hostOf(r.RemoteAddr) }
	}
	if c.label == nil {
		c.label = func(_, value string) (string, bool) { return value, true }
	}
	return c, err
}

// FromThisMachine reports whether a request comes from this machine and was meant for it: the peer and the
// Host are loopback addresses or localhost, and no proxy has marked the request as that of another peer. A
// function of WithAuthorize that trusts this machine should call it. The address of the peer is not enough,
// because another site can let its own name lead to this machine, and then a browser here sends its requests.
func FromThisMachine(r *http.Request) bool {
	for _, proxied := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"} {
		if r.Header.Get(proxied) != "" {
			return false
		}
	}
	peer, _ := netip.ParseAddr(hostOf(r.RemoteAddr)) // the zero address is not local
	host, _ := netip.ParseAddr(hostOf(r.Host))
	return peer.IsLoopback() && (host.IsLoopback() || hostOf(r.Host) == "localhost")
}

// hostOf returns an address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]")
}
