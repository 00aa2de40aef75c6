package fencing

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Header is the HTTP header that carries a fence: its text, percent-encoded, for instance
//
//	Fencing-Token: account:1@33
const Header = "Fencing-Token"

type contextKey struct{}

// NewContext returns a context whose requests carry the fence, if they go through a
// Transport. In a server's handler, behind Handler, it is that of the request.
func NewContext(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, contextKey{}, f)
}

// FromContext returns the fence that NewContext put in.
func FromContext(ctx context.Context) (f Fence, ok bool) {
	f, ok = ctx.Value(contextKey{}).(Fence)
	return f, ok
}

// SetHeader puts the fence into a request's header. A fence that no grant can have is
// ErrInvalidFence, and the header is as it was.
func SetHeader(h http.Header, f Fence) error {
	text, err := f.MarshalText()
	if err != nil {
		return err
	}
	h.Set(Header, url.PathEscape(string(text)))
	return nil
}

// FromHeader reads the fence of a request. ok is false if there is none. Text that is no
// fence, and more than one, are ErrInvalidFence.
func FromHeader(h http.Header) (f Fence, ok bool, err error) {
	switch all := h.Values(Header); len(all) {
	case 0:
		return Fence{}, false, nil
	case 1:
		text, err := url.PathUnescape(all[0])
		if err != nil {
			return Fence{}, false, fmt.Errorf("%w: %w", ErrInvalidFence, err)
		}
		f, err := ParseFence(text)
		return f, err == nil, err
	default:
		return Fence{}, false, fmt.Errorf("%w: %d of them", ErrInvalidFence, len(all))
	}
}

// Transport puts the fence of a request's context into its header. A request without one
// is passed on as it is. It does not look at the lease: give requests the lease's
// Context.
type Transport struct {
	Base http.RoundTripper // nil means http.DefaultTransport
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	f, ok := FromContext(r.Context())
	if !ok {
		return base.RoundTrip(r)
	}
	r = r.Clone(r.Context()) // a RoundTripper may not change the caller's
	if err := SetHeader(r.Header, f); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it, also on errors
		}
		return nil, err
	}
	return base.RoundTrip(r)
}

// CheckResponse returns the *StaleError that a server's Handler answered with, and nil
// for any other response. It reads the body of the answer that it turns into an error;
// the caller closes it, as always.
func CheckResponse(r *http.Response) error {
	if r.StatusCode != http.StatusPreconditionFailed {
		return nil
	}
	const longest = 64 << 10
	var a answer
	body, err := io.ReadAll(io.LimitReader(r.Body, longest))
	if err != nil {
		return fmt.Errorf("fencing: reading a refusal: %w", err)
	}
	if err := json.Unmarshal(body, &a); err != nil || a.Error != answerStale {
		return nil //nolint:nilerr // somebody else's precondition
	}
	return &StaleError{Resource: a.Resource, Token: a.Token, Current: a.Current}
}
