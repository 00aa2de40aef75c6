package fencehttp

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
)

// Header is the HTTP header that carries a fence. Its value is the fence's text, percent-encoded:
//
//	Fencing-Token: account:1@33
const Header = "Fencing-Token"

type contextKey struct{}

// NewContext returns a copy of ctx that carries the fence. A Transport sends the fence with each
// request that has this context.
func NewContext(ctx context.Context, f fencing.Fence) context.Context {
	return context.WithValue(ctx, contextKey{}, f)
}

// FromContext returns the fence that NewContext stored in ctx. Behind a Handler, the context of
// a request carries the fence of that request.
func FromContext(ctx context.Context) (f fencing.Fence, ok bool) {
	f, ok = ctx.Value(contextKey{}).(fencing.Fence)
	return f, ok
}

// SetHeader writes the fence to a request's header. It returns fencing.ErrInvalidFence, and leaves
// the header unchanged, if no grant can have that fence.
func SetHeader(h http.Header, f fencing.Fence) error {
	text, err := f.MarshalText()
	if err != nil {
		return err
	}
	h.Set(Header, url.PathEscape(string(text)))
	return nil
}

// FromHeader reads the fence from a request's header. It returns false if there is none, and
// fencing.ErrInvalidFence if the value is not a fence or if there are several. A proxy may join
// several by commas. SetHeader encodes a comma in a name, so it is in none of them.
func FromHeader(h http.Header) (f fencing.Fence, ok bool, err error) {
	all := h.Values(Header)
	switch joined := strings.Join(all, ","); {
	case len(all) == 0:
		return fencing.Fence{}, false, nil
	case !strings.Contains(joined, ","):
		text, err := url.PathUnescape(all[0])
		if err != nil {
			return fencing.Fence{}, false, errs.Errorf("%w: %w", fencing.ErrInvalidFence, err)
		}
		f, err := fencing.ParseFence(text)
		return f, err == nil, err
	default:
		return fencing.Fence{}, false, errs.Errorf("%w: %d %s headers: a request carries one", fencing.ErrInvalidFence, strings.Count(joined, ",")+1, Header)
	}
}
