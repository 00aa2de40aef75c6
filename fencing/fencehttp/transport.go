package fencehttp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
)

// Transport is an http.RoundTripper that sends the fence of a request's context in its header. It
// sends a request without a fence unchanged. It does not check the lease: give requests the
// lease's Context, which ends with the lease.
//
// Transport does not send the fence to another host after a redirect, as net/http does not send
// an Authorization header: any host could write with it. Another port or scheme is another host,
// except the step from http to https on the default ports. A Handler at the other host answers
// such a request with 428. To write there, send the request to that host directly.
type Transport struct {
	Base http.RoundTripper // nil means http.DefaultTransport
}

// RoundTrip implements http.RoundTripper. It returns fencing.ErrInvalidFence, and sends nothing,
// if no grant can have the fence.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	f, ok := FromContext(r.Context())
	if !ok || redirectedAway(r) {
		return base.RoundTrip(r)
	}
	r = r.Clone(r.Context()) // a RoundTripper must not modify the caller's request
	if err := SetHeader(r.Header, f); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes the body, on errors too
		}
		return nil, err
	}
	return base.RoundTrip(r)
}

// redirectedAway reports whether a redirect on the way to this request led to another host. A
// later redirect back does not help: the other host chose the address.
func redirectedAway(r *http.Request) bool {
	for r.Response != nil {
		before := r.Response.Request
		if before == nil || !sameHost(before.URL, r.URL) {
			return true
		}
		r = before
	}
	return false
}

// sameHost reports whether both URLs have the same scheme, host and port, or whether to is the
// https address of from.
func sameHost(from, to *url.URL) bool {
	if !strings.EqualFold(from.Hostname(), to.Hostname()) {
		return false
	}
	fromPort, toPort := port(from), port(to)
	return from.Scheme == to.Scheme && fromPort == toPort ||
		from.Scheme == "http" && to.Scheme == "https" && fromPort == "80" && toPort == "443"
}

func port(u *url.URL) string {
	return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

// CheckResponse returns the *fencing.StaleError that a Handler sent, and nil for any other
// response, such as a 412 for another precondition. The caller can still read the whole body, and
// must close it. CheckResponse reads at most 64 KB, and only of a 412 whose body is JSON. If
// reading fails, it returns the reader's error.
func CheckResponse(r *http.Response) error {
	if r.StatusCode != http.StatusPreconditionFailed {
		return nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != contentType {
		return nil //nolint:nilerr // another precondition
	}
	const maxBody = 64 << 10
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	// The rest of the body, and a repeated error, come from the reader itself.
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	if err != nil {
		return errs.Errorf("fencehttp: read the refusal: %w", err)
	}
	var a refusal
	if err := json.Unmarshal(body, &a); err != nil || len(body) == maxBody || a.Error != "stale" || a.Resource == "" || a.Token <= 0 {
		return nil //nolint:nilerr // another precondition
	}
	return &fencing.StaleError{Resource: a.Resource, Token: a.Token, Current: a.Current}
}
