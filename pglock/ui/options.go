package ui

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Access is what a request may do. Each value includes those before it.
type Access int

// These are the values of Access.
const (
	None    Access = iota // nothing: the answer is 403
	Read                  // see all pages
	Operate               // ask holders to release their locks
	Revoke                // end grants, and resolve keys without an outcome
)

// Check is a result of Options.Doctor.
type Check struct {
	Name   string // what was checked
	Level  string // ok, warn, fail or skip
	Found  string
	Remedy string // empty without one
}

// Options configure a handler. Each field may be left out.
type Options struct {
	// Authorize decides what a request may do. It is called for each request, and for each update
	// of an open page, so that a login that ends also ends the updates. It must be safe for
	// concurrent use. By default, requests for which FromThisMachine is true may Read, and others
	// nothing.
	Authorize func(*http.Request) Access

	// Actor names the person behind a request, by default with the address of the peer. The name,
	// of which the first 100 bytes count, is logged with each action and ends the reason that the
	// holder sees.
	Actor func(*http.Request) string

	// Label formats the value of a label, or hides the label by returning false. The payload of an
	// election is its label "payload". By default, all labels are shown as they are.
	Label func(key, value string) (text string, shown bool)

	// Doctor returns what the page Doctor shows whenever it is opened. The first page has what
	// failed, from one call a minute. By default, the page Doctor says how to run the command
	// pglock doctor.
	Doctor func(context.Context) ([]Check, error)

	// Logger logs each action at Info, with its actor and its outcome. The default is
	// slog.Default().
	Logger *slog.Logger
}

// withDefaults returns the options with what was left out, except Doctor.
func (o Options) withDefaults() Options {
	if o.Authorize == nil {
		o.Authorize = func(r *http.Request) Access {
			if FromThisMachine(r) {
				return Read
			}
			return None
		}
	}
	if o.Actor == nil {
		o.Actor = func(r *http.Request) string { return hostOf(r.RemoteAddr) }
	}
	if o.Label == nil {
		o.Label = func(_, value string) (string, bool) { return value, true }
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

// FromThisMachine reports whether a request comes from this machine and was meant for it: the peer
// and the Host are loopback addresses or localhost, and no proxy has marked the request as that of
// another peer. A function Authorize that trusts this machine should call it. The address of the
// peer is not enough, because another site can let its own name lead to this machine, and then a
// browser here sends its requests.
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
