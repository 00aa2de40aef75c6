package fencehttp_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/fencing/fencehttp"
)

// want fails the test unless err is the sentinel, or nil if the sentinel is nil.
func want(t *testing.T, what string, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: %v, want %v", what, err, sentinel)
	}
}

// echo answers with the fence that came, and redirects where the query says.
func echo(w http.ResponseWriter, r *http.Request) {
	if to := r.URL.Query().Get("to"); to != "" {
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		return
	}
	_, _ = io.WriteString(w, "fence:"+r.Header.Get(fencehttp.Header))
}

func newEcho(t *testing.T) (at string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(echo))
	t.Cleanup(server.Close)
	return server.URL
}

// via returns the address of a server that redirects to another.
func via(server, to string) string { return server + "/?to=" + url.QueryEscape(to) }

// TestTransportKeepsTheFenceFromOtherHosts: a redirect chooses the host, so the Transport sends the
// fence only to the host that the caller has named, and not after a redirect away and back.
func TestTransportKeepsTheFenceFromOtherHosts(t *testing.T) {
	t.Parallel()
	a, b := newEcho(t), newEcho(t) // other ports: other hosts
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: &fencehttp.Transport{Base: base}}
	ctx := fencehttp.NewContext(t.Context(), fencing.Fence{Name: "n", Token: 7})
	for name, test := range map[string]struct{ address, want string }{
		"no redirect":         {a, "fence:n@7"},
		"to the same host":    {via(a, a), "fence:n@7"},
		"to a path":           {via(a, "/other"), "fence:n@7"},
		"twice":               {via(a, via(a, a)), "fence:n@7"},
		"to another host":     {via(a, b), "fence:"},
		"at the second":       {via(a, via(a, b)), "fence:"},
		"there and back":      {via(a, via(b, a)), "fence:"},
		"there, and further":  {via(a, via(b, b)), "fence:"},
		"in another spelling": {via(a, strings.Replace(a, "http://127.0.0.1", "HTTP://127.0.0.1", 1)), "fence:n@7"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			r, err := http.NewRequestWithContext(ctx, method, test.address, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			body, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if err != nil || string(body) != test.want {
				t.Errorf("%s, %s: the server got %q, want %q, %v", name, method, body, test.want, err)
			}
		}
	}
}

// recorder is a RoundTripper that records the fences of requests, and returns an error.
type recorder struct{ fences []string }

var errRecorded = errors.New("recorded")

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	r.fences = append(r.fences, request.Header.Get(fencehttp.Header))
	return nil, errRecorded
}

// TestTransportComparesOrigins of redirected requests, which carry the response that led to them,
// as net/http builds them.
func TestTransportComparesOrigins(t *testing.T) {
	t.Parallel()
	ctx := fencehttp.NewContext(t.Context(), fencing.Fence{Name: "n", Token: 7})
	request := func(address string) *http.Request {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, test := range []struct {
		from, to string
		sent     bool
	}{
		{"http://host/a", "http://host/b", true},
		{"http://host/", "http://HOST:80/", true},
		{"https://host:443/", "https://host/", true},
		{"http://host/", "https://host/", true}, // the upgrade that servers ask for
		{"http://host:80/", "https://host:443/", true},
		{"https://host/", "http://host/", false},
		{"http://host:8080/", "https://host:8443/", false},
		{"http://host/", "http://host:8080/", false},
		{"http://host/", "http://sub.host/", false},
		{"http://sub.host/", "http://host/", false},
		{"http://[::1]/", "http://[::1]:80/", true},
	} {
		to := request(test.to)
		to.Response = &http.Response{Request: request(test.from)}
		base := &recorder{}
		answer, err := (&fencehttp.Transport{Base: base}).RoundTrip(to)
		if err == nil {
			_ = answer.Body.Close()
		}
		if want := map[bool]string{true: "n@7"}[test.sent]; !errors.Is(err, errRecorded) || base.fences[0] != want {
			t.Errorf("from %s to %s: sent %q, want %q", test.from, test.to, base.fences[0], want)
		}
	}
	to := request("http://host/") // a RoundTripper that does not set the request of its response
	to.Response = &http.Response{}
	base := &recorder{}
	if answer, err := (&fencehttp.Transport{Base: base}).RoundTrip(to); err == nil {
		_ = answer.Body.Close()
	}
	if base.fences[0] != "" {
		t.Errorf("from nowhere: sent %q", base.fences[0])
	}
}

// failing is a body that breaks off.
type failing struct{ io.Reader }

var errCut = errors.New("cut")

func (f failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = errCut
	}
	return n, err
}

// closing records that it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// TestCheckResponseLeavesOthersAlone: the caller can read the whole body of a 412 that is not a
// Handler's.
func TestCheckResponseLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	const ours = `{"error":"stale","message":"m","resource":"r","token":1,"current":2}`
	for name, test := range map[string]struct{ contentType, body string }{
		"empty":            {"application/json", ""},
		"no JSON":          {"application/json", "no JSON"},
		"another error":    {"application/json", `{"error": "etag"}`},
		"another type":     {"application/json", `{"error": 1}`},
		"their own stale":  {"application/json", `{"error": "stale"}`},
		"without a token":  {"application/json", `{"error": "stale", "resource": "r"}`},
		"longer than ours": {"application/json", `{"error": "etag", "filler": "` + strings.Repeat("x", 200<<10) + `"}`},
		"ours, and more":   {"application/json", ours + strings.Repeat(" ", 200<<10)},
		"another media":    {"text/plain", ours},
		"no media":         {"", ours},
	} {
		body := &closing{Reader: strings.NewReader(test.body)}
		r := &http.Response{StatusCode: http.StatusPreconditionFailed, Header: http.Header{"Content-Type": {test.contentType}}, Body: body}
		want(t, name, fencehttp.CheckResponse(r), nil)
		rest, err := io.ReadAll(r.Body)
		if string(rest) != test.body || err != nil {
			t.Errorf("%s: %d bytes are left of %d, %v", name, len(rest), len(test.body), err)
		}
		if err := r.Body.Close(); err != nil || !body.closed {
			t.Errorf("%s: the body is not closed", name)
		}
	}
	// A proxy in between may add a parameter.
	ourBody := io.NopCloser(strings.NewReader(ours))
	want(t, "ours", fencehttp.CheckResponse(&http.Response{
		StatusCode: http.StatusPreconditionFailed, Header: http.Header{"Content-Type": {"Application/JSON; charset=utf-8"}}, Body: ourBody,
	}), fencing.ErrStale)
	// One that breaks off is an error now, and again when the caller reads it.
	r := &http.Response{
		StatusCode: http.StatusPreconditionFailed, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(failing{strings.NewReader(`{"error":`)}),
	}
	want(t, "cut", fencehttp.CheckResponse(r), errCut)
	if rest, err := io.ReadAll(r.Body); string(rest) != `{"error":` || !errors.Is(err, errCut) {
		t.Errorf("cut: %q, %v", rest, err)
	}
}
